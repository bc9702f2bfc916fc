//! The watches on the nodes of held locks, set late and together.
//!
//! Most locks are released before, and a watch costs the servers more than a list, and the client a
//! task.

use std::collections::VecDeque;
use std::sync::MutexGuard;
use std::time::Duration;

use fencelock_core::sync::Mutex;
use fencelock_core::{BootClock, Clock, Moment};
use tokio::sync::Notify;

/// How long a node has existed before it is watched.
pub(crate) const WATCH_DELAY: Duration = Duration::from_millis(50);

/// The watches of one session that are not set yet.
#[derive(Default)]
pub(crate) struct DeferredWatches {
    pending: Mutex<VecDeque<Pending>>,
    filled: Notify,
}

struct Pending {
    since: Moment,
    set: Box<dyn FnOnce() + Send>,
}

impl DeferredWatches {
    fn pending(&self) -> MutexGuard<'_, VecDeque<Pending>> {
        self.pending.lock()
    }

    /// Calls `set` at [`WATCH_DELAY`] after `since`, which must not be before that of the last
    /// call. `set` finds out whether the watch is still wanted.
    pub(crate) fn defer(&self, since: Moment, set: impl FnOnce() + Send + 'static) {
        let mut pending = self.pending();
        pending.push_back(Pending { since, set: Box::new(set) });
        if pending.len() == 1 {
            self.filled.notify_one();
        }
    }

    /// Sets the watches that are due, forever.
    pub(crate) async fn run(&self, clock: &BootClock) {
        loop {
            self.filled.notified().await;
            loop {
                tokio::time::sleep(WATCH_DELAY).await;
                let due = clock.now() - WATCH_DELAY;
                let mut pending = self.pending();
                while pending.front().is_some_and(|first| first.since <= due) {
                    if let Some(first) = pending.pop_front() {
                        (first.set)();
                    }
                }
                if pending.is_empty() {
                    // Give memory back after a burst.
                    pending.shrink_to(64);
                    break;
                }
            }
        }
    }
}
