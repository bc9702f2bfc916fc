//! Who has to be told about a change of the queue beyond those whom a closing pipe tells.
//!
//! It is decided under the latch and said after it. Saying it twice is harmless, so every case
//! that is not certain is said.

use crate::door::{ClaimKey, WakePipe};
use crate::files::Files;
use crate::pipe;
use crate::place::FileLock;
use crate::queue::{Entry, Queue};

/// Rings that are still to be sent.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    pending: Vec<Notification>,
    /// Whoever watched the entry that is going, and will hear its pipe close.
    watchers: Vec<Notification>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Notification {
    wake_pipe: u16,
    claim_key: ClaimKey,
}

impl Notification {
    fn to(entry: &Entry, lock: &FileLock) -> Notification {
        Notification { wake_pipe: entry.wake_pipe, claim_key: lock.claim_key(entry.ticket) }
    }
}

impl Notifications {
    /// Entry `at` was granted: does the next fit too?
    pub(crate) fn after_grant(&mut self, queue: &Queue, at: usize, lock: &FileLock) {
        let next =
            queue.woken_by_grant(at).map(|next| Notification::to(&queue.entries[next], lock));
        self.pending.extend(next);
    }

    /// Entry `gone` was removed.
    pub(crate) fn after_removal(&mut self, queue: &Queue, gone: &Entry, lock: &FileLock) {
        self.watchers.extend(queue.watchers(gone).map(|entry| Notification::to(entry, lock)));
        let next = queue.next_to_hold().map(|next| Notification::to(&queue.entries[next], lock));
        // It watches somebody else, as when it has not yet looked since it became the first.
        self.pending.extend(next.filter(|next| !self.watchers.contains(next)));
    }

    /// The pipe of `gone` was closed: rings those who could not hear it. Watchers in this process
    /// have no pipe open, and a copy of it that a child inherited keeps it alive for the others.
    pub(crate) fn after_closing(&mut self, gone: &Entry, files: &Files) {
        let silent = |notification: &Notification| notification.wake_pipe == gone.wake_pipe;
        if self.watchers.iter().all(silent) || !is_dead(gone, files) {
            self.pending.append(&mut self.watchers);
        } else {
            self.pending.extend(self.watchers.drain(..).filter(silent));
        }
    }

    /// The pipe of what was removed stays open, since its owner lives: rings all who watched it.
    pub(crate) fn without_closing(&mut self) {
        self.pending.append(&mut self.watchers);
    }

    pub(crate) fn send(self, wake_pipe: &WakePipe) {
        for notification in self.pending {
            wake_pipe.ring(notification.wake_pipe, notification.claim_key);
        }
    }
}

/// Its slot may be another's by now, which is then rung for nothing.
fn is_dead(entry: &Entry, files: &Files) -> bool {
    matches!(pipe::watch(files.dir(), entry.slot), Ok(None))
}
