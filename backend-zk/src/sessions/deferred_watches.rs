//! The watches on the nodes of held locks, set late and together.
//!
//! Most locks are released before, and a watch costs the servers more than a list, and the client a
//! task.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{BootClock, Clock, Moment};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// How long a node has existed before it is watched.
pub(crate) const WATCH_DELAY: Duration = Duration::from_millis(50);

/// The watches of one session that are not set yet.
pub(crate) struct DeferredWatches {
    sender: UnboundedSender<Deferred>,
    receiver: tokio::sync::Mutex<UnboundedReceiver<Deferred>>,
    clock: Arc<BootClock>,
}

struct Deferred {
    since: Moment,
    set: Box<dyn FnOnce() + Send>,
}

impl DeferredWatches {
    pub(crate) fn new(clock: Arc<BootClock>) -> DeferredWatches {
        let (sender, receiver) = unbounded_channel();
        DeferredWatches { sender, receiver: receiver.into(), clock }
    }

    /// Calls `set` after [`WATCH_DELAY`]. It finds out whether the watch is still wanted.
    pub(crate) fn defer(&self, set: impl FnOnce() + Send + 'static) {
        let deferred = Deferred { since: self.clock.now(), set: Box::new(set) };
        // The receiver exists as long as `self`.
        let _ = self.sender.send(deferred);
    }

    /// Sets the watches that are due, forever.
    pub(crate) async fn run(&self) {
        let mut receiver = self.receiver.lock().await;
        while let Some(deferred) = receiver.recv().await {
            if self.clock.now() - WATCH_DELAY < deferred.since {
                // By then, all that were deferred up to now are due.
                tokio::time::sleep(WATCH_DELAY).await;
            }
            (deferred.set)();
        }
    }
}
