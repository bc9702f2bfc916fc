//! A claim that waits in the store's queue: what the store said last, how long it has been silent,
//! and who may speak for the claim while nobody polls it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::error::Error;
use crate::seat::Seat;
use crate::validity::Moment;

pub(crate) struct Wait {
    seat: Arc<Seat>,
    /// When it first asked what the store has not answered since: never, if it owes nothing.
    /// Waiting for a bell is no silence, however long it takes.
    unanswered_since: AtomicU64,
    unreachable_after: Duration,
    said: Mutex<Said>,
    place: AtomicU8,
}

/// What the store said last, to an attempt or a look. It decides what the end of the wait means: a
/// store that cannot be asked must not look like a busy lock.
#[derive(Clone)]
pub(crate) enum Said {
    Nothing,
    /// A place in the queue: the lock is busy.
    Queued,
    /// Why it could not say more.
    Trouble(Error),
}

/// The caller's future is at work, perhaps with an attempt under way.
const AT_WORK: u8 = 0;
/// It waits for its bell: no attempt is under way.
const PARKED: u8 = 1;
/// It was sent away while it was parked.
const SENT_AWAY: u8 = 2;

impl Wait {
    pub(crate) fn new(seat: Arc<Seat>, unreachable_after: Duration) -> Wait {
        Wait {
            seat,
            unanswered_since: AtomicU64::new(Moment::NEVER.as_nanos()),
            unreachable_after,
            said: Mutex::new(Said::Nothing),
            place: AtomicU8::new(AT_WORK),
        }
    }

    pub(crate) fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    pub(crate) fn asked(&self, now: Moment) {
        self.unanswered_since.fetch_min(now.as_nanos(), Ordering::AcqRel);
    }

    /// The claim has its place in the queue.
    pub(crate) fn answered(&self) {
        self.unanswered_since.store(Moment::NEVER.as_nanos(), Ordering::Release);
        self.set_said(Said::Queued);
    }

    /// An answer that is none: the silence goes on.
    pub(crate) fn troubled(&self, error: Error) {
        self.set_said(Said::Trouble(error));
    }

    fn set_said(&self, said: Said) {
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = said;
    }

    pub(crate) fn said(&self) -> Said {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Until when the store may stay silent.
    pub(crate) fn silence_ends(&self) -> Moment {
        let since = Moment::from_nanos(self.unanswered_since.load(Ordering::Acquire));
        since + self.unreachable_after
    }

    pub(crate) fn park(&self) {
        self.place.store(PARKED, Ordering::Release);
    }

    /// Back to work. `false` when it was sent away meanwhile: its seat is left already.
    pub(crate) fn unpark(&self) -> bool {
        self.place.swap(AT_WORK, Ordering::AcqRel) == PARKED
    }

    /// Leaves the seat of a parked claim, whose future may not be polled for long, and sends one
    /// at work to find out.
    pub(crate) fn send_away(&self) {
        let sent =
            self.place.compare_exchange(PARKED, SENT_AWAY, Ordering::AcqRel, Ordering::Acquire);
        match sent {
            Ok(_) => self.seat.leave(),
            Err(_) => {
                self.seat.claim().wake();
            }
        }
    }
}
