//! What each client process is told to do.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

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

/// The part of one process in one round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Shift {
    pub(crate) workload: Workload,
    pub(crate) seed: u64,
    /// The register's socket.
    pub(crate) register: PathBuf,
    /// Where each worker writes its history, at a name that begins like this.
    pub(crate) history: PathBuf,
}
