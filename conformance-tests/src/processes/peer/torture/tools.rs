//! What each task of a client process has.

use std::io;
use std::time::Duration;

use fencelock_core::{Error, Guard, Locks, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::history::{ClaimId, Worker};
use crate::processes::trouble;
use crate::processes::workload::{Errors, Shift, Workload};

/// The end of a round's work.
#[derive(Clone)]
pub(super) struct Calm(watch::Receiver<u64>);

impl Calm {
    pub(super) fn of(receiver: &watch::Receiver<u64>) -> Calm {
        let mut receiver = receiver.clone();
        receiver.mark_unchanged();
        Calm(receiver)
    }

    pub(super) fn has_come(&self) -> bool {
        self.0.has_changed().unwrap_or(true)
    }

    pub(super) async fn comes(&mut self) {
        // Its sender is gone only with the process.
        let _ = self.0.changed().await;
    }
}

/// What each task has.
pub(super) struct Tools {
    pub(super) locks: Locks,
    pub(super) workload: Workload,
    pub(super) random: StdRng,
    pub(super) history: Worker,
    pub(super) errors: Errors,
}

impl Tools {
    /// Those of the task `index`.
    pub(super) fn of(locks: &Locks, shift: &Shift, index: u32) -> Result<Tools> {
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
    pub(super) async fn count(&mut self, error: &Error) {
        *self.errors.entry(error.kind().message().to_owned()).or_default() += 1;
        self.pause(5..50).await;
    }

    /// For some of so many milliseconds.
    pub(super) async fn pause(&mut self, ms: std::ops::Range<u64>) {
        sleep(Duration::from_millis(self.random.random_range(ms))).await;
    }

    pub(super) fn usual_hold(&mut self) -> Duration {
        let longest = self.workload.hold_at_most.as_micros().max(1);
        let hold = self.random.random_range(0..u64::try_from(longest).unwrap_or(u64::MAX));
        Duration::from_micros(hold)
    }

    /// Longer than the lease, so that it has to be renewed.
    pub(super) async fn hold_for_long(&mut self, guard: &Guard, claim: &ClaimId) {
        for _ in 0..30 {
            sleep(self.workload.ttl / 20).await;
            if !self.history.observe(guard, claim) {
                break;
            }
        }
    }
}
