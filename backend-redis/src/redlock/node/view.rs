//! What is known of all nodes together: whose clocks agree, and whether their set was replaced.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard};
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
    clocks: Mutex<Clocks>,
    /// By node, the `set_epoch` in its incarnation record, 0 without one.
    epochs: Vec<AtomicU32>,
    /// Counts changes, for a client that waits for them at connect.
    pub(crate) updates: watch::Sender<u64>,
}

#[derive(Debug)]
struct Clocks {
    offsets: Vec<Option<Offset>>,
    agreement: Option<Arc<Agreement>>,
}

impl QuorumView {
    pub(crate) fn new(
        deployment: Deployment,
        tolerance: Duration,
        clock: Arc<BootClock>,
    ) -> QuorumView {
        let clocks = Clocks { offsets: vec![None; deployment.nodes], agreement: None };
        QuorumView {
            deployment,
            tolerance,
            clock,
            waiters: Waiters::at(deployment.nodes),
            clocks: Mutex::new(clocks),
            epochs: (0..deployment.nodes).map(|_| AtomicU32::new(0)).collect(),
            updates: watch::Sender::new(0),
        }
    }

    fn clocks(&self) -> MutexGuard<'_, Clocks> {
        self.clocks.lock()
    }

    pub(super) fn set_offset(&self, node: usize, offset: Offset) {
        let mut clocks = self.clocks();
        clocks.offsets[node] = Some(offset);
        clocks.agreement = agreement(&clocks.offsets, micros(self.tolerance)).map(Arc::new);
    }

    /// The nodes whose clocks agree; if a majority's do not, how far each is ahead of ours, in µs.
    pub(crate) fn agreement(&self) -> Result<Arc<Agreement>, Vec<Option<Offset>>> {
        let clocks = self.clocks();
        clocks.agreement.clone().ok_or_else(|| clocks.offsets.clone())
    }

    /// Records the `set_epoch` that a node has, 0 without an incarnation record.
    pub(super) fn set_epoch(&self, node: usize, epoch: u32) {
        self.epochs[node].store(epoch, Ordering::Relaxed);
    }

    /// The error for writing to a node, if a later set has replaced this one: this set must not be
    /// revived by nodes that lost their data.
    pub(crate) fn superseded(&self) -> Option<Error> {
        let epochs = self.epochs.iter().map(|epoch| epoch.load(Ordering::Relaxed));
        let epoch = epochs.max().filter(|epoch| *epoch > self.deployment.epoch)?;
        let message = format!("its set of nodes was changed, to set_epoch={epoch}");
        Some(Error::new(ErrorKind::Refused, message))
    }

    pub(super) fn publish_update(&self) {
        self.updates.send_modify(|count| *count += 1);
    }
}
