//! The work of each client process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How often each kind of error was answered.
pub type Errors = BTreeMap<String, u64>;

/// How a process uses the locks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Workload {
    /// How many tasks acquire, each in its own loop.
    pub workers: u32,
    /// How many locks they share.
    pub locks: u32,
    /// The longest usual hold. A few last longer than the TTL.
    pub hold_at_most: Duration,
    /// For how long locks are held without renewal.
    pub ttl: Duration,
}

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
    !name.starts_with(ACCOUNT)
}

/// The part of one process in one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shift {
    /// How it uses the locks.
    pub workload: Workload,
    /// Decides what its clients do.
    pub seed: u64,
    /// The register's socket.
    pub register: PathBuf,
    /// Where each worker writes its history, at a name that begins like this.
    pub history: PathBuf,
}
