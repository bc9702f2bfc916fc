//! What is known of all nodes together: whose clocks agree, and whether their set was replaced.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::sync::Mutex;
use fencelock_core::{BootClock, Error, ErrorKind};
use tokio::sync::watch;

use super::waiters::Waiters;
use crate::redlock::rules::clocks::{Agreement, Offset, agreement, micros};
use crate::redlock::rules::incarnation::Deployment;

#[derive(Debug)]
pub(crate) struct QuorumView {
    pub(crate) deployment: Deployment,
    /// How far two clocks may be apart.
    pub(crate) tolerance: Duration,
    pub(crate) clock: Arc<BootClock>,
    pub(crate) waiters: Waiters,
    known: Mutex<Known>,
    /// Counts changes, for a client that waits for them at connect.
    pub(crate) updates: watch::Sender<u64>,
}

#[derive(Debug)]
struct Known {
    offsets: Vec<Option<Offset>>,
    agreement: Option<Arc<Agreement>>,
    /// By node, the `set_epoch` in its incarnation record, 0 without one.
    epochs: Vec<u32>,
    /// By node, the run of the server that its name led to last.
    runs: Vec<String>,
}

impl QuorumView {
    pub(crate) fn new(
        deployment: Deployment,
        tolerance: Duration,
        clock: Arc<BootClock>,
    ) -> QuorumView {
        let nodes = deployment.nodes;
        let known = Known {
            offsets: vec![None; nodes],
            agreement: None,
            epochs: vec![0; nodes],
            runs: vec![String::new(); nodes],
        };
        QuorumView {
            deployment,
            tolerance,
            clock,
            waiters: Waiters::at(nodes),
            known: Mutex::new(known),
            updates: watch::Sender::new(0),
        }
    }

    pub(super) fn set_offset(&self, node: usize, offset: Offset) {
        let mut known = self.known.lock();
        known.offsets[node] = Some(offset);
        known.agreement = agreement(&known.offsets, micros(self.tolerance)).map(Arc::new);
    }

    /// The nodes whose clocks agree; if a majority's do not, how far each is ahead of ours, in µs.
    pub(crate) fn agreement(&self) -> Result<Arc<Agreement>, Vec<Option<Offset>>> {
        let known = self.known.lock();
        known.agreement.clone().ok_or_else(|| known.offsets.clone())
    }

    /// Records to which run of a server a node's name leads; whether another name leads there.
    pub(super) fn set_run(&self, node: usize, run_id: &str) -> bool {
        let mut known = self.known.lock();
        run_id.clone_into(&mut known.runs[node]);
        known.runs.iter().filter(|run| *run == run_id).count() > 1
    }

    /// By node, the run of the server that its name led to last.
    pub(super) fn runs(&self) -> Vec<String> {
        self.known.lock().runs.clone()
    }

    /// Records the `set_epoch` that a node has, 0 without an incarnation record.
    pub(super) fn set_epoch(&self, node: usize, epoch: u32) {
        self.known.lock().epochs[node] = epoch;
    }

    /// The error for writing to a node, if a later set has replaced this one: this set must not be
    /// revived by nodes that lost their data.
    pub(crate) fn superseded(&self) -> Option<Error> {
        let epoch = self.known.lock().epochs.iter().copied().max()?;
        if epoch <= self.deployment.epoch {
            return None;
        }
        let message = format!("its set of nodes was changed, to set_epoch={epoch}");
        Some(Error::new(ErrorKind::Refused, message))
    }

    pub(super) fn publish_update(&self) {
        self.updates.send_modify(|count| *count += 1);
    }
}
