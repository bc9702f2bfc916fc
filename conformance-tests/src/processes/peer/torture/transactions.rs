//! Transactions on the lock's own database, by its holders: each adds one to the lock's register by reading,
//! thinking and writing.
//!
//! One checks the lock first and one does not, each in registers of its own: what the check prevented is what
//! the others show. As everywhere here, no holder asks its guard before.

use std::time::Duration;

use fencelock_core::{Check, Error, ErrorKind};
use rand::RngExt;
use tokio::time::timeout;

use super::tools::Tools;
use crate::history::{ClaimId, What};
use crate::processes::database::{Addition, DatabaseRegisters, OpenRegisters};
use crate::processes::workload::Shift;

/// So many tasks of a process have a connection for transactions: a server has a limit of a few hundred.
const CONNECTIONS: u32 = 8;

/// One in so many transactions takes a while, so that a process that is frozen is often within one.
const THINKERS: u32 = 10;

/// A transaction that is not answered then is given up, with its connection.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct Transactions {
    open: OpenRegisters,
    url: String,
    percent: u32,
    /// `None` after an error: the next one connects again.
    registers: Option<Box<dyn DatabaseRegisters>>,
}

impl Transactions {
    /// Those of the task `index`, if it has any.
    pub(super) fn of(
        shift: &Shift,
        index: u32,
        open: Option<OpenRegisters>,
    ) -> Option<Transactions> {
        let url = shift.database.clone().filter(|_| index < CONNECTIONS)?;
        let percent = shift.workload.transactions_percent;
        Some(Transactions { open: open?, url, percent, registers: None })
    }

    /// Whether this hold has some.
    pub(super) fn are_due(&self, tools: &mut Tools) -> bool {
        tools.random.random_range(0..100) < self.percent
    }

    /// Runs both, in any order.
    pub(super) async fn run(
        &mut self,
        tools: &mut Tools,
        register: &str,
        check: &Check,
        claim: &ClaimId,
    ) {
        let mut checks = [Some(check), None];
        if tools.random.random() {
            checks.reverse();
        }
        for check in checks {
            let id = tools.random.random();
            let think = match tools.random.random_range(0..THINKERS) {
                0 => tools.workload.ttl / 8,
                _ => tools.usual_hold(),
            };
            let addition = Addition { id, register, check, think };
            match self.add(addition).await {
                Ok(()) => {
                    let checked = check.is_some();
                    tools.history.record(claim, What::Committed { id, checked });
                }
                Err(error) if error.kind() == ErrorKind::Lost => {
                    tools.history.record(claim, What::CheckRefused);
                }
                Err(error) => {
                    self.registers = None;
                    tools.count(&error).await;
                }
            }
        }
    }

    async fn add(&mut self, addition: Addition<'_>) -> Result<(), Error> {
        let registers = self.registers.get_or_insert_with(|| (self.open)(&self.url));
        timeout(PATIENCE, registers.add_one(addition)).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unreachable, "a transaction was not answered"))
        })
    }
}
