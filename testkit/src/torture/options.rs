//! How long a store is tortured, and how hard.

use std::time::Duration;

use fencelock_conformance::workload::Workload;

use crate::deployments::Fault;

/// How long and how hard.
#[derive(Clone, Debug)]
pub struct Options {
    /// Decides what happens.
    pub seed: u64,
    /// When to stop, after the round that is under way.
    pub until: Until,
    /// How long each fault lasts.
    pub faults_for: Duration,
    /// How long there is none, after each.
    pub quiet_for: Duration,
    /// Only these, of those that the store has; all, if none is named. One that is named twice
    /// comes twice as often.
    pub only: Vec<Fault>,
    /// Processes that use the store.
    pub processes: u32,
    /// What each of them does.
    pub workload: Workload,
}

impl Options {
    pub(super) fn has_transactions(&self) -> bool {
        self.workload.uses_locks() && self.workload.transactions_percent > 0
    }
}

/// When a store has been tortured enough.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After that time.
    Time(Duration),
    /// When that many acquisitions have been granted.
    Acquisitions(u64),
    /// After that many rounds.
    Rounds(u32),
}
