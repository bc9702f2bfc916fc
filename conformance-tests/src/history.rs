//! A record of the requests and answers of a lock's clients, written while they happen.
//!
//! Each worker appends to a buffer or file of its own before and after each call, so that a kill
//! leaves an open event and not a wrong one. Times are `CLOCK_MONOTONIC`, which all processes of
//! a machine share; files of several processes can be merged by them.

pub mod checker;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{ErrorKind, Guard, Lock, Locks, Result};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::how::How;

/// Nanoseconds on `CLOCK_MONOTONIC`.
#[must_use]
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let (secs, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    secs.unwrap_or(0) * 1_000_000_000 + nanos.unwrap_or(0)
}

/// One thing that happened to one acquisition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, by [`now`].
    pub at: u64,
    /// Whose: unique among all processes.
    pub worker: u64,
    /// Which of the worker's acquisitions.
    pub claim: u64,
    /// The lock.
    pub lock: String,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// Acquire was called.
    Invoked {
        /// In this mode.
        how: How,
    },
    /// Acquire returned a guard.
    Granted {
        /// With this fencing token.
        token: u64,
        /// The end of its validity, by [`now`]; 0 when it had ended by the time of the event, at an
        /// unknown time.
        valid_until: u64,
    },
    /// Acquire said no: nothing is held.
    Refused,
    /// Acquire returned neither a guard nor a refusal, for example because it was dropped or the store did not answer.
    Unknown,
    /// The guard was asked, and may be believed in until then.
    Valid {
        /// By [`now`].
        until: u64,
    },
    /// The guard said that it was lost.
    Lost,
    /// The process was killed: its holds end here.
    Killed,
    /// Release was called.
    ReleaseInvoked,
    /// Release is done.
    Released,
    /// Release said that the lock was no longer held.
    NotHeld,
    /// Release did not say what happened.
    ReleaseUnknown,
    /// The protected resource was written under the lock.
    Wrote {
        /// With this token.
        token: u64,
        /// Whether the resource took it.
        accepted: bool,
    },
    /// A counter was asked to add this, or nothing, to read it.
    AddInvoked {
        /// Not negative.
        n: i64,
    },
    /// It answered.
    Added {
        /// With this sum.
        sum: i64,
    },
    /// The acquisition that was invoked is the claim of a tick of a `once`.
    ForTick {
        /// Its number.
        tick: u64,
        /// Whether a tick that was begun is not run again.
        never_twice: bool,
    },
    /// The claim was answered that the tick is done, or begun if it is never run twice.
    AlreadyDone,
    /// The tick is about to be marked as done.
    MarkInvoked,
    /// It is marked as done. Without this and [`NotMarked`](What::NotMarked), that is unknown.
    Marked,
    /// It was not marked as done, and will not be.
    NotMarked,
    /// A transaction on the lock's own database was committed.
    Committed {
        /// Its id.
        id: i64,
        /// Whether it had checked the lock.
        checked: bool,
    },
    /// A transaction on the lock's own database was refused by its check.
    CheckRefused,
    /// An observer of an election was told who leads.
    Observed {
        /// The term; `None` when there is no leader.
        term: Option<u64>,
    },
}

/// Names one of a worker's acquisitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimId {
    number: u64,
    lock: Arc<str>,
}

/// One sequence of acquisitions, and its record.
#[derive(Debug)]
pub struct Worker {
    id: u64,
    last_claim: u64,
    events: Vec<Event>,
    file: Option<File>,
}

impl Default for Worker {
    fn default() -> Worker {
        Worker::new()
    }
}

impl Worker {
    /// A worker that remembers its events.
    #[must_use]
    pub fn new() -> Worker {
        let id = crate::seed::fresh();
        Worker { id, last_claim: 0, events: Vec::new(), file: None }
    }

    /// A worker that appends its events to a file as they happen.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn to_file(path: &Path) -> std::io::Result<Worker> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Worker { file: Some(file), ..Worker::new() })
    }

    /// What a worker without a file remembers.
    #[must_use]
    pub fn into_events(self) -> Vec<Event> {
        self.events
    }

    /// Writes one event down, now.
    pub fn record(&mut self, claim: &ClaimId, what: What) {
        let lock = claim.lock.to_string();
        let event = Event { at: now(), worker: self.id, claim: claim.number, lock, what };
        match &mut self.file {
            None => self.events.push(event),
            Some(file) => {
                if let Ok(mut line) = serde_json::to_vec(&event) {
                    line.push(b'\n');
                    // One write: a kill leaves a whole line or none.
                    let _ = file.write_all(&line);
                }
            }
        }
    }

    /// Acquires `name`, waiting for as long as it takes.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub async fn acquire(
        &mut self,
        locks: &Locks,
        name: &str,
        how: How,
    ) -> Result<(Guard, ClaimId)> {
        self.acquire_lock(&how.lock(locks, name), name, how).await
    }

    /// Acquires `lock`, which is `name` wanted like `how`, and may have options.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub async fn acquire_lock(
        &mut self,
        lock: &Lock,
        name: &str,
        how: How,
    ) -> Result<(Guard, ClaimId)> {
        let claim = self.invoke(name, how);
        match lock.acquire().await {
            Ok(guard) => {
                self.granted(&guard, &claim);
                Ok((guard, claim))
            }
            Err(error) => {
                let what = match error.kind() {
                    ErrorKind::Unreachable => What::Unknown,
                    _ => What::Refused,
                };
                self.record(&claim, what);
                Err(error)
            }
        }
    }

    /// Acquire is about to be called.
    pub fn invoke(&mut self, name: &str, how: How) -> ClaimId {
        self.begin(name, What::Invoked { how })
    }

    /// Something else is about to be called, which is `what`.
    pub fn begin(&mut self, name: &str, what: What) -> ClaimId {
        self.last_claim += 1;
        let claim = ClaimId { number: self.last_claim, lock: name.into() };
        self.record(&claim, what);
        claim
    }

    /// Acquire has returned a guard.
    pub fn granted(&mut self, guard: &Guard, claim: &ClaimId) {
        let token = guard.fencing_token().get();
        self.record(claim, What::Granted { token, valid_until: valid_until(guard) });
    }

    /// Asks the guard for how long it may be believed in; `false` when it may not.
    pub fn observe(&mut self, guard: &Guard, claim: &ClaimId) -> bool {
        let until = valid_until(guard);
        let held = guard.is_held();
        self.record(claim, if held { What::Valid { until } } else { What::Lost });
        held
    }

    /// Release is about to be called, or the guard dropped.
    pub fn releasing(&mut self, guard: &Guard, claim: &ClaimId) {
        self.observe(guard, claim);
        self.record(claim, What::ReleaseInvoked);
    }

    /// Release has returned.
    pub fn released(&mut self, claim: &ClaimId, answer: &Result<()>) {
        let what = match answer {
            Ok(()) => What::Released,
            Err(error) if error.kind() == ErrorKind::NotHeld => What::NotHeld,
            Err(_) => What::ReleaseUnknown,
        };
        self.record(claim, what);
    }

    /// Releases.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn release(&mut self, guard: Guard, claim: &ClaimId) -> Result<()> {
        self.releasing(&guard, claim);
        let released = guard.release().await;
        self.released(claim, &released);
        released
    }
}

/// The end of a guard's validity on the history's clock, rather too early than too late; 0 when it
/// has ended: then the guard does not say when.
fn valid_until(guard: &Guard) -> u64 {
    let asked = now();
    match guard.remaining() {
        Duration::ZERO => 0,
        Duration::MAX => u64::MAX,
        left => asked.saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX)),
    }
}

/// Reads what workers wrote to a file. A last line that a kill cut off is not an event.
///
/// # Errors
/// When the file cannot be read.
pub fn read(path: &Path) -> std::io::Result<Vec<Event>> {
    let text = std::fs::read_to_string(path)?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// Ends the claims in a process's history that its death left open. `at` is a time before the
/// kill, so that no belief is taken for longer than it lasted; what it wrote down afterwards shows
/// that it was still alive.
pub fn killed(history: &mut Vec<Event>, at: u64) {
    let at = history.iter().map(|it| it.at).fold(at, u64::max);
    let mut claims: Vec<(u64, u64, String)> =
        history.iter().map(|it| (it.worker, it.claim, it.lock.clone())).collect();
    claims.dedup();
    let ends = claims.into_iter().map(|(worker, claim, lock)| Event {
        at,
        worker,
        claim,
        lock,
        what: What::Killed,
    });
    history.extend(ends.collect::<Vec<_>>());
}
