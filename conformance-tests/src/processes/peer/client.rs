//! One client process at work: each worker acquires, holds, writes, and leaves in one of many ways.
//!
//! The workers are careless: they write without asking the guard first, since a process can be
//! stopped between the question and the write anyway. What keeps the register right is its check of
//! the token.

use std::io;
use std::time::Duration;

use fencelock_core::{Error, ErrorKind, Guard, Lock, Locks, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::history::{ClaimId, What, Worker};
use crate::how::How;
use crate::processes::register::process::Registers;
use crate::processes::workload::{Errors, Shift, Workload, lock_name};

/// Works until `calm` changes, and finishes what was begun.
pub(crate) async fn work(
    locks: &Locks,
    shift: &Shift,
    calm: &watch::Receiver<u64>,
) -> Result<Errors> {
    let mut workers = JoinSet::new();
    for index in 0..shift.workload.workers {
        let history = format!("{}-{index}", shift.history.display());
        let worker = Client {
            locks: locks.clone(),
            workload: shift.workload.clone(),
            random: StdRng::seed_from_u64(shift.seed.wrapping_add(u64::from(index))),
            history: Worker::to_file(history.as_ref()).map_err(|error| trouble(&error))?,
            registers: Registers::connect(&shift.register).await.map_err(|e| trouble(&e))?,
            errors: Errors::new(),
        };
        workers.spawn(worker.work(calm.clone()));
    }
    let mut errors = Errors::new();
    while let Some(worker) = workers.join_next().await {
        let of_one = worker.map_err(|error| trouble(&error))?.map_err(|error| trouble(&error))?;
        for (kind, count) in of_one {
            *errors.entry(kind).or_default() += count;
        }
    }
    Ok(errors)
}

fn trouble(error: &impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidArgument, error.to_string())
}

struct Client {
    locks: Locks,
    workload: Workload,
    random: StdRng,
    history: Worker,
    registers: Registers,
    errors: Errors,
}

/// What came of asking for a lock.
enum Asked {
    Granted(Guard),
    Refused,
    /// It was dropped on the way.
    Cancelled,
}

impl Client {
    async fn work(mut self, mut calm: watch::Receiver<u64>) -> io::Result<Errors> {
        calm.mark_unchanged();
        while !calm.has_changed().unwrap_or(true) {
            self.once().await?;
        }
        Ok(self.errors)
    }

    async fn once(&mut self) -> io::Result<()> {
        let name = lock_name(self.random.random_range(0..self.workload.locks));
        let how = self.any_mode();
        let lock = how.lock(&self.locks, &name).ttl(self.workload.ttl);
        let claim = self.history.invoke(&name, how);
        match self.ask(lock).await {
            Ok(Asked::Granted(guard)) => {
                self.history.granted(&guard, claim);
                self.hold(&guard, &name, how, claim).await?;
                self.leave(guard, claim).await;
            }
            Ok(Asked::Refused) => self.history.record(claim, What::Refused),
            Ok(Asked::Cancelled) => self.history.record(claim, What::Unknown),
            Err(error) => {
                // Only a busy lock is a sure no.
                let sure = error.kind() == ErrorKind::WaitTimedOut;
                self.history.record(claim, if sure { What::Refused } else { What::Unknown });
                if !sure {
                    *self.errors.entry(error.kind().message().to_owned()).or_default() += 1;
                    sleep(Duration::from_millis(self.random.random_range(5..50))).await;
                }
            }
        }
        Ok(())
    }

    fn any_mode(&mut self) -> How {
        let modes = self.locks.profile().modes;
        match self.random.random_range(0..10) {
            0 if modes.shared => How::Shared,
            1 if modes.permits => How::Permits { n: self.random.random_range(1..=2), limit: 3 },
            _ => How::Exclusive,
        }
    }

    async fn ask(&mut self, lock: Lock) -> Result<Asked> {
        let ms = Duration::from_millis(self.random.random_range(0..100));
        let asked = match self.random.random_range(0..10) {
            0 => lock.try_acquire().await?,
            1 => Some(lock.wait_at_most(ms).acquire().await?),
            2 => match timeout(ms / 5, lock.acquire()).await {
                Ok(acquired) => Some(acquired?),
                Err(_) => return Ok(Asked::Cancelled),
            },
            _ => Some(lock.acquire().await?),
        };
        Ok(asked.map_or(Asked::Refused, Asked::Granted))
    }

    /// Reads, waits, writes: another one in between is what a lock is there to prevent.
    async fn hold(
        &mut self,
        guard: &Guard,
        name: &str,
        how: How,
        claim: ClaimId,
    ) -> io::Result<()> {
        let token = guard.fencing_token().get();
        let read = match how == How::Exclusive {
            true => Some(self.registers.read(name, token).await?),
            false => None,
        };
        if self.random.random_range(0..2_000) == 0 {
            self.hold_for_long(guard, claim).await;
        } else {
            let longest = self.workload.hold_at_most.as_micros().max(1);
            let hold = self.random.random_range(0..u64::try_from(longest).unwrap_or(u64::MAX));
            sleep(Duration::from_micros(hold)).await;
        }
        if let Some(values) = read {
            self.registers.write(name, token, values.one_more()).await?;
        }
        Ok(())
    }

    /// Longer than the lease, so that it has to be renewed.
    async fn hold_for_long(&mut self, guard: &Guard, claim: ClaimId) {
        for _ in 0..30 {
            sleep(self.workload.ttl / 20).await;
            if !self.history.observe(guard, claim) {
                break;
            }
        }
    }

    async fn leave(&mut self, guard: Guard, claim: ClaimId) {
        match self.random.random_range(0..20) {
            0 => {
                self.history.observe(&guard, claim);
                self.history.record(claim, What::ReleaseInvoked);
                drop(guard);
            }
            1 => {
                self.history.observe(&guard, claim);
                self.history.record(claim, What::ReleaseInvoked);
                // Dropped on its way.
                let _ = timeout(Duration::ZERO, guard.release()).await;
            }
            _ => {
                // What it answered is in the history.
                let _ = self.history.release(guard, claim).await;
            }
        }
    }
}
