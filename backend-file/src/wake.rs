//! Who has to be told about a change of the queue beyond those whom a closing pipe tells.
//!
//! It is decided under the latch and said after it. Saying it twice is harmless, so every case
//! that is not certain is said.

use crate::door::{Caller, Door};
use crate::files::Files;
use crate::pipe;
use crate::place::Place;
use crate::queue::{Entry, Queue};

/// Rings that are still to be sent.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    calls: Vec<Call>,
    /// Whoever watched the entry that is going, and will hear its pipe close.
    watchers: Vec<Call>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    door: u16,
    caller: Caller,
}

impl Call {
    fn to(entry: &Entry, place: &Place) -> Call {
        Call { door: entry.door, caller: place.caller(entry.ticket) }
    }
}

impl Wake {
    /// Entry `at` was granted: does the next fit too?
    pub(crate) fn after_grant(&mut self, queue: &Queue, at: usize, place: &Place) {
        let next = queue.rung_by_grant(at).map(|next| Call::to(&queue.entries[next], place));
        self.calls.extend(next);
    }

    /// Entry `gone` was removed.
    pub(crate) fn after_removal(&mut self, queue: &Queue, gone: &Entry, place: &Place) {
        self.watchers.extend(queue.watchers(gone).map(|entry| Call::to(entry, place)));
        let next = queue.next_to_hold().map(|next| Call::to(&queue.entries[next], place));
        // It watches somebody else, as when it has not yet looked since it became the first.
        self.calls.extend(next.filter(|next| !self.watchers.contains(next)));
    }

    /// The pipe of `gone` was closed: rings those who could not hear it. Watchers in this process
    /// have no pipe open, and a copy of it that a child inherited keeps it alive for the others.
    pub(crate) fn after_closing(&mut self, gone: &Entry, files: &Files) {
        let silent = |call: &Call| call.door == gone.door;
        if self.watchers.iter().all(silent) || !is_dead(gone, files) {
            self.calls.append(&mut self.watchers);
        } else {
            self.calls.extend(self.watchers.drain(..).filter(silent));
        }
    }

    /// The pipe of what was removed stays open, since its owner lives: rings all who watched it.
    pub(crate) fn without_closing(&mut self) {
        self.calls.append(&mut self.watchers);
    }

    pub(crate) fn send(self, door: &Door) {
        for call in self.calls {
            door.ring(call.door, call.caller);
        }
    }
}

/// Its slot may be another's by now, which is then rung for nothing.
fn is_dead(entry: &Entry, files: &Files) -> bool {
    matches!(pipe::watch(files.dir(), entry.slot), Ok(None))
}
