//! One client process at work under faults: what its tasks share.

mod adding;
mod leading;
mod locks;
mod ticking;
mod transactions;

use std::io;
use std::time::Duration;

use fencelock_core::{Error, ErrorKind, Guard, Locks, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::history::{ClaimId, Worker};
use crate::processes::database::OpenRegisters;
use crate::processes::register::process::Registers;
use crate::processes::workload::{Errors, NEVER_TWICE, ONCE, Shift, Workload};
use transactions::Transactions;

/// Works until `calm` changes, and finishes what was begun.
pub(super) async fn work(
    locks: &Locks,
    shift: &Shift,
    registers_in_database: Option<OpenRegisters>,
    calm: &watch::Receiver<u64>,
) -> Result<Errors> {
    let mut tasks = JoinSet::new();
    let calm = Calm::of(calm);
    let Workload { workers, .. } = shift.workload;
    if shift.workload.uses_locks() {
        for index in 0..workers {
            let registers = Registers::connect(&shift.register).await.map_err(|e| trouble(&e))?;
            let tools = Tools::of(locks, shift, index)?;
            let transactions = Transactions::of(shift, index, registers_in_database);
            tasks.spawn(locks::Client { tools, registers, transactions }.work(calm.clone()));
        }
    }
    if shift.workload.uses_cells() && locks.profile().cells.is_some() {
        let adders = if shift.workload.uses_locks() { 1 } else { workers };
        let mut index = workers;
        let mut tools = || {
            index += 1;
            Tools::of(locks, shift, index)
        };
        for _ in 0..adders {
            tasks.spawn(adding::add(tools()?, calm.clone()));
        }
        for job in [ONCE, NEVER_TWICE] {
            tasks.spawn(ticking::run(tools()?, job, shift.ticks_ahead, calm.clone()));
        }
        tasks.spawn(leading::lead(tools()?, calm.clone()));
        tasks.spawn(leading::observe(tools()?, calm.clone()));
    }
    let mut errors = Errors::new();
    while let Some(task) = tasks.join_next().await {
        let of_one = task.map_err(|error| trouble(&error))?.map_err(|error| trouble(&error))?;
        for (kind, count) in of_one {
            *errors.entry(kind).or_default() += count;
        }
    }
    Ok(errors)
}

fn trouble(error: &impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidArgument, error.to_string())
}

/// The end of a round's work.
#[derive(Clone)]
struct Calm(watch::Receiver<u64>);

impl Calm {
    fn of(receiver: &watch::Receiver<u64>) -> Calm {
        let mut receiver = receiver.clone();
        receiver.mark_unchanged();
        Calm(receiver)
    }

    fn has_come(&self) -> bool {
        self.0.has_changed().unwrap_or(true)
    }

    async fn comes(&mut self) {
        // Its sender is gone only with the process.
        let _ = self.0.changed().await;
    }
}

/// What each task has.
struct Tools {
    locks: Locks,
    workload: Workload,
    random: StdRng,
    history: Worker,
    errors: Errors,
}

impl Tools {
    /// Those of the task `index`.
    fn of(locks: &Locks, shift: &Shift, index: u32) -> Result<Tools> {
        let history = format!("{}-{index}", shift.history.display());
        Ok(Tools {
            locks: locks.clone(),
            workload: shift.workload.clone(),
            random: StdRng::seed_from_u64(shift.seed.wrapping_add(u64::from(index))),
            history: Worker::to_file(history.as_ref())
                .map_err(|error: io::Error| trouble(&error))?,
            errors: Errors::new(),
        })
    }

    /// Counts an error, and pauses.
    async fn count(&mut self, error: &Error) {
        *self.errors.entry(error.kind().message().to_owned()).or_default() += 1;
        self.pause(5..50).await;
    }

    /// For some of so many milliseconds.
    async fn pause(&mut self, ms: std::ops::Range<u64>) {
        sleep(Duration::from_millis(self.random.random_range(ms))).await;
    }

    fn usual_hold(&mut self) -> Duration {
        let longest = self.workload.hold_at_most.as_micros().max(1);
        let hold = self.random.random_range(0..u64::try_from(longest).unwrap_or(u64::MAX));
        Duration::from_micros(hold)
    }

    /// Longer than the lease, so that it has to be renewed.
    async fn hold_for_long(&mut self, guard: &Guard, claim: &ClaimId) {
        for _ in 0..30 {
            sleep(self.workload.ttl / 20).await;
            if !self.history.observe(guard, claim) {
                break;
            }
        }
    }
}
