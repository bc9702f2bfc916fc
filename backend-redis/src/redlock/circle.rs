//! What is known of all nodes together: whose clocks agree, and whether their set was changed.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::{BootClock, Error, ErrorKind};
use tokio::sync::watch;

use super::clocks::{Agreement, Offset, agreement};
use super::marker::Deployment;
use super::waiters::Waiters;

/// What is known of all nodes, and must be the same for all of them.
#[derive(Debug)]
pub(crate) struct Circle {
    pub(crate) deployment: Deployment,
    /// How far two clocks may be apart.
    pub(crate) tolerance: Duration,
    pub(crate) clock: Arc<BootClock>,
    pub(crate) waiters: Waiters,
    clocks: Mutex<Clocks>,
    /// The highest epoch that a node has shown.
    pub(super) epoch: AtomicU32,
    /// Counts what has become known, for those who wait at connect.
    pub(crate) news: watch::Sender<u64>,
}

#[derive(Debug)]
struct Clocks {
    offsets: Vec<Option<Offset>>,
    agreement: Option<Arc<Agreement>>,
}

impl Circle {
    pub(crate) fn new(
        deployment: Deployment,
        tolerance: Duration,
        clock: Arc<BootClock>,
    ) -> Circle {
        let clocks = Clocks { offsets: vec![None; deployment.nodes], agreement: None };
        Circle {
            deployment,
            tolerance,
            clock,
            waiters: Waiters::at(deployment.nodes),
            clocks: Mutex::new(clocks),
            epoch: AtomicU32::new(deployment.epoch),
            news: watch::Sender::new(0),
        }
    }

    fn clocks(&self) -> MutexGuard<'_, Clocks> {
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read(&self, node: usize, offset: Option<Offset>) {
        let tolerance = u64::try_from(self.tolerance.as_micros()).unwrap_or(u64::MAX);
        let mut clocks = self.clocks();
        clocks.offsets[node] = offset;
        clocks.agreement = agreement(&clocks.offsets, tolerance).map(Arc::new);
    }

    /// The nodes whose clocks agree; if a majority's do not, how far each is ahead of ours, in µs.
    pub(crate) fn agreement(&self) -> Result<Arc<Agreement>, Vec<Option<Offset>>> {
        let clocks = self.clocks();
        clocks.agreement.clone().ok_or_else(|| clocks.offsets.clone())
    }

    /// Whether a later set of nodes has taken the place of this one.
    pub(super) fn is_replaced(&self) -> bool {
        self.epoch.load(Ordering::Relaxed) > self.deployment.epoch
    }

    pub(super) fn replaced(&self) -> Error {
        let epoch = self.epoch.load(Ordering::Relaxed);
        let message = format!("its set of nodes was changed, to set_epoch={epoch}");
        Error::new(ErrorKind::Refused, message)
    }

    pub(super) fn tell_news(&self) {
        self.news.send_modify(|count| *count += 1);
    }
}
