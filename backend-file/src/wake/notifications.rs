//! The claims that have to be notified of a change of the queue, because no closing pipe does it.
//!
//! They are collected under the latch and notified after it, since they need the latch. A
//! redundant notification is harmless, so every uncertain case is notified.

use crate::queue::entry::Entry;
use crate::queue::rules::Queue;
use crate::storage::lock_files::LockFiles;
use crate::storage::slot_pipe;
use crate::wake::wake_pipe::{ClaimKey, WakePipe, claim_key};

/// Notifications of claims of one lock that are still to be sent.
#[derive(Debug)]
pub(crate) struct Notifications {
    lock_hash: u64,
    pending: Vec<Notification>,
    /// For the watchers of the removed entry, to which the closing of its pipe may be enough.
    watchers: Vec<Notification>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Notification {
    wake_pipe: u16,
    claim: ClaimKey,
}

impl Notifications {
    pub(crate) fn new(lock_hash: u64) -> Notifications {
        Notifications { lock_hash, pending: Vec::new(), watchers: Vec::new() }
    }

    fn of(&self, entry: &Entry) -> Notification {
        Notification { wake_pipe: entry.wake_pipe, claim: claim_key(self.lock_hash, entry.ticket) }
    }

    /// Entry `at` was granted. The next one may fit too.
    pub(crate) fn after_grant(&mut self, queue: &Queue, at: usize) {
        let next = queue.woken_by_grant(at).map(|next| self.of(&queue.entries[next]));
        self.pending.extend(next);
    }

    /// Entry `removed` was removed.
    pub(crate) fn after_removal(&mut self, queue: &Queue, removed: &Entry) {
        for watcher in queue.watchers(removed) {
            self.watchers.push(self.of(watcher));
        }
        let next = queue.next_to_hold().map(|next| self.of(&queue.entries[next]));
        // The next one may watch another entry, if it has not attempted since it became the first.
        self.pending.extend(next.filter(|next| !self.watchers.contains(next)));
    }

    /// The pipe of `removed` was closed. Notifies the watchers that cannot notice: those in this
    /// process have no pipe open, and a copy that a child inherited keeps the pipe alive for the
    /// others.
    pub(crate) fn after_closing(&mut self, removed: &Entry, files: &LockFiles) {
        let same_process = |watcher: &Notification| watcher.wake_pipe == removed.wake_pipe;
        // Another claim may have its slot by now; the watchers are then notified needlessly.
        let is_dead = || matches!(slot_pipe::watch(files.dir(), removed.slot), Ok(None));
        if !self.watchers.iter().all(same_process) && is_dead() {
            self.watchers.retain(same_process);
        }
        self.with_pipe_open();
    }

    /// The pipe of the removed entry stays open, since its owner lives. Notifies all watchers.
    pub(crate) fn with_pipe_open(&mut self) {
        self.pending.append(&mut self.watchers);
    }

    /// Notifies the owner of `entry` at once.
    pub(crate) fn notify(&self, entry: &Entry, wake_pipe: &WakePipe) {
        let Notification { wake_pipe: number, claim } = self.of(entry);
        wake_pipe.wake(number, claim);
    }

    pub(crate) fn send(self, wake_pipe: &WakePipe) {
        for Notification { wake_pipe: number, claim } in self.pending {
            wake_pipe.wake(number, claim);
        }
    }
}
