//! What is known of all nodes together: whose clocks agree, and whether their set was changed.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::{BootClock, Error, ErrorKind};
use tokio::sync::watch;

use super::clocks::{Agreement, Offset, agreement};
use super::incarnation::Deployment;
use super::waiters::Waiters;

/// What is known of all nodes, and must be the same for all of them.
#[derive(Debug)]
pub(crate) struct QuorumView {
    pub(crate) deployment: Deployment,
    /// How far two clocks may be apart.
    pub(crate) tolerance: Duration,
    pub(crate) clock: Arc<BootClock>,
    pub(crate) waiters: Waiters,
    clocks: Mutex<Clocks>,
    /// The epochs that the nodes show, 0 for what shows none.
    epochs: Vec<AtomicU32>,
    /// Counts what has become known, for those who wait at connect.
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
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read(&self, node: usize, offset: Offset) {
        let tolerance = u64::try_from(self.tolerance.as_micros()).unwrap_or(u64::MAX);
        let mut clocks = self.clocks();
        clocks.offsets[node] = Some(offset);
        clocks.agreement = agreement(&clocks.offsets, tolerance).map(Arc::new);
    }

    /// The nodes whose clocks agree; if a majority's do not, how far each is ahead of ours, in µs.
    pub(crate) fn agreement(&self) -> Result<Arc<Agreement>, Vec<Option<Offset>>> {
        let clocks = self.clocks();
        clocks.agreement.clone().ok_or_else(|| clocks.offsets.clone())
    }

    /// A node shows that it is of this set.
    pub(super) fn shows(&self, node: usize, epoch: u32) {
        self.epochs[node].store(epoch, Ordering::Relaxed);
    }

    /// Why nothing more is to be written to the nodes, if a later set has taken the place of this
    /// one: it must not come back to incarnation by nodes that lost their data.
    pub(super) fn superseded(&self) -> Option<Error> {
        let epochs = self.epochs.iter().map(|epoch| epoch.load(Ordering::Relaxed));
        let epoch = epochs.max().filter(|epoch| *epoch > self.deployment.epoch)?;
        let message = format!("its set of nodes was changed, to set_epoch={epoch}");
        Some(Error::new(ErrorKind::Refused, message))
    }

    pub(super) fn publish_update(&self) {
        self.updates.send_modify(|count| *count += 1);
    }
}
