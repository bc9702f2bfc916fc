//! The work of each client process.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{IntoDeserializer, value};
use serde::{Deserialize, Serialize};

/// How often each kind of error was answered.
pub type Errors = BTreeMap<String, u64>;

/// How a process uses the store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Workload {
    /// How many tasks acquire, each in its own loop; with cells only, how many add to counters.
    pub workers: u32,
    /// Only locks, or only what is made of cells; by default both, where the store has cells.
    pub only: Option<Only>,
    /// How many locks they share.
    pub locks: u32,
    /// The longest usual hold. A few last longer than the TTL.
    pub hold_at_most: Duration,
    /// For how long locks are held without renewal.
    pub ttl: Duration,
    /// Of a hundred exclusive holds, so many add to registers in the lock's database, if it is in one: in a
    /// transaction that checks the lock, and in one that does not.
    pub transactions_percent: u32,
}

/// A part of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Only {
    /// Locks in all modes.
    Locks,
    /// Counters, jobs that run once for each tick, and elections.
    Cells,
}

impl fmt::Display for Only {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Only::Locks => "locks",
            Only::Cells => "cells",
        })
    }
}

impl FromStr for Only {
    type Err = value::Error;

    fn from_str(word: &str) -> Result<Only, value::Error> {
        Only::deserialize(word.into_deserializer())
    }
}

impl Workload {
    /// Whether it has the locks that have no other purpose.
    #[must_use]
    pub fn uses_locks(&self) -> bool {
        self.only != Some(Only::Cells)
    }

    /// Whether it has counters, jobs and elections, if the store has cells.
    #[must_use]
    pub fn uses_cells(&self) -> bool {
        self.only != Some(Only::Locks)
    }
}

/// The counters that all processes add to.
pub const COUNTERS: [&str; 3] = ["counter-0", "counter-1", "counter-2"];

/// The job that is done when a run has said so.
pub const ONCE: &str = "once";

/// The job of which each tick is begun once at most.
pub const NEVER_TWICE: &str = "never-twice";

/// How long a tick is.
pub const TICK: Duration = Duration::from_millis(100);

/// In this election all processes are candidates.
pub const ELECTION: &str = "election";

/// The name of the `n`th lock. Every other one is an account's.
#[must_use]
pub fn lock_name(n: u32) -> String {
    format!("{}{n}", if is_account(n) { ACCOUNT } else { "lock-" })
}

const ACCOUNT: &str = "account-";

/// Accounts are locked in pairs too, to move money between them, and with local hand-offs.
pub(crate) fn is_account(n: u32) -> bool {
    n % 2 == 1
}

/// Whether every grant of the lock of this name is the store's own, and asked for at once.
#[must_use]
pub fn is_granted_in_order(name: &str) -> bool {
    !name.starts_with(ACCOUNT) && ![ONCE, NEVER_TWICE].contains(&name)
}

/// The part of one process in one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shift {
    /// How it uses the store.
    pub workload: Workload,
    /// Decides what its clients do.
    pub seed: u64,
    /// How far the clock that its ticks go by is ahead, in seconds.
    pub ticks_ahead: i64,
    /// The register's socket.
    pub register: PathBuf,
    /// The URL of the store, if it is in a database with registers.
    pub database: Option<String>,
    /// Where each worker writes its history, at a name that begins like this.
    pub history: PathBuf,
}
