//! A claim that waits in the store's queue: the store's last answer, how long the store has been
//! silent, and whether the caller's future is at work or parked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use crate::claim::cleanup::CleanupGuard;
use crate::sync::Mutex;
use crate::time::moment::Moment;
use crate::types::error::Error;

/// An answer is expected for so long at least, and for twice the time of the last one, but not for longer than the other:
/// one answer of a store that stood still says nothing of the next.
const SLOW_ANSWER: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];

pub(crate) struct Wait {
    pub(crate) cleanup: Arc<CleanupGuard>,
    /// When the first request was sent that the store has not answered since: never, if it owes no
    /// answer. Waiting for a wake-up is not silence, however long it takes.
    unanswered_since: AtomicU64,
    last_answer: Mutex<LastAnswer>,
    caller: AtomicU8,
    /// From when on it is long; never, if it has a limit.
    long_at: Moment,
}

/// The store's last answer to an attempt or a check. It decides what the end of the wait means: a
/// store that is unreachable must not look like a busy lock.
#[derive(Clone)]
pub(crate) enum LastAnswer {
    None,
    /// A place in the queue: the lock is busy.
    Queued,
    Failed(Error),
}

/// The caller's future is at work, perhaps with an attempt in flight.
const AT_WORK: u8 = 0;
/// It waits for a wake-up: no attempt is in flight.
const PARKED: u8 = 1;
/// It was dismissed while it was parked.
const DISMISSED: u8 = 2;

impl Wait {
    pub(crate) fn new(cleanup: Arc<CleanupGuard>, long_at: Moment) -> Wait {
        Wait {
            cleanup,
            unanswered_since: AtomicU64::new(Moment::NEVER.as_nanos()),
            last_answer: Mutex::new(LastAnswer::None),
            caller: AtomicU8::new(AT_WORK),
            long_at,
        }
    }

    /// Whether it has lasted so long without a limit that its client may wait for itself.
    pub(crate) fn is_long(&self, now: Moment) -> bool {
        now >= self.long_at
    }

    pub(crate) fn asked(&self, now: Moment) {
        self.unanswered_since.fetch_min(now.as_nanos(), Ordering::AcqRel);
    }

    /// The claim has its place in the queue.
    pub(crate) fn answered(&self) {
        self.unanswered_since.store(Moment::NEVER.as_nanos(), Ordering::Release);
        *self.last_answer.lock() = LastAnswer::Queued;
    }

    /// The answer was an error: the silence continues.
    pub(crate) fn failed(&self, error: Error) {
        *self.last_answer.lock() = LastAnswer::Failed(error);
    }

    /// Whether the answer to its first request may still be on its way, if the `last` one took so long.
    pub(crate) fn expects_answer(&self, now: Moment, last: Duration) -> bool {
        let asked = Moment::from_nanos(self.unanswered_since.load(Ordering::Acquire));
        let is_early = now < asked + (2 * last).clamp(SLOW_ANSWER[0], SLOW_ANSWER[1]);
        is_early && matches!(*self.last_answer.lock(), LastAnswer::None)
    }

    pub(crate) fn last_answer(&self) -> LastAnswer {
        self.last_answer.lock().clone()
    }

    /// Until when the store may stay silent.
    pub(crate) fn silence_ends(&self) -> Moment {
        let since = Moment::from_nanos(self.unanswered_since.load(Ordering::Acquire));
        since + self.cleanup.claim().request.unreachable_after
    }

    pub(crate) fn park(&self) {
        self.caller.store(PARKED, Ordering::Release);
    }

    /// Back to work. `false` when the wait was dismissed meanwhile: its clean-up has begun already.
    pub(crate) fn unpark(&self) -> bool {
        self.caller.swap(AT_WORK, Ordering::AcqRel) == PARKED
    }

    /// Ends the wait: releases a parked claim, whose future may not be polled for long, and wakes one
    /// that is at work, so that it finds out.
    pub(crate) fn dismiss(&self) {
        let parked =
            self.caller.compare_exchange(PARKED, DISMISSED, Ordering::AcqRel, Ordering::Acquire);
        match parked {
            Ok(_) => self.cleanup.leave(),
            Err(_) => {
                self.cleanup.claim().wake();
            }
        }
    }
}
