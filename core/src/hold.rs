//! One granted lock: until when it may be believed in, and how it ends.
//!
//! The guard and the keeper share it. Whoever ends it first decides how it ended; after its end
//! nothing revives it, since a revived hold was how other libraries got two holders.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::Span;

use crate::claim::Claim;
use crate::error::LostReason;
use crate::observe::{self, Meters};
use crate::seat::Seat;
use crate::token::FencingToken;
use crate::validity::Moment;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Released,
    Lost(LostReason),
}

/// How long a hold may last, whatever the store says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) at: Moment,
    pub(crate) reason: LostReason,
}

pub(crate) struct Hold {
    seat: Arc<Seat>,
    token: FencingToken,
    since: Moment,
    limit: Limit,
    /// How often it is renewed, if it is.
    period: Option<Duration>,
    /// The validity's end in nanoseconds; [`ENDED`] once it has ended, for good.
    until: AtomicU64,
    ending: OnceLock<Ending>,
    changed: Notify,
    span: Span,
    meters: Arc<Meters>,
}

const ENDED: u64 = 0;

/// What makes a hold.
pub(crate) struct Grant {
    pub(crate) token: FencingToken,
    /// When the attempt was sent.
    pub(crate) asked: Moment,
    /// When its answer was read.
    pub(crate) since: Moment,
    pub(crate) valid_until: Moment,
    pub(crate) limit: Limit,
    pub(crate) period: Option<Duration>,
}

impl Hold {
    pub(crate) fn new(seat: Arc<Seat>, grant: &Grant, span: Span, meters: Arc<Meters>) -> Hold {
        Hold {
            seat,
            token: grant.token,
            since: grant.since,
            limit: grant.limit,
            period: grant.period,
            until: AtomicU64::new(grant.valid_until.min(grant.limit.at).as_nanos()),
            ending: OnceLock::new(),
            changed: Notify::new(),
            span,
            meters,
        }
    }

    pub(crate) fn claim(&self) -> &Arc<Claim> {
        self.seat.claim()
    }

    pub(crate) fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    pub(crate) fn token(&self) -> FencingToken {
        self.token
    }

    /// Its end whatever the store says.
    pub(crate) fn limit(&self) -> Moment {
        self.limit.at
    }

    pub(crate) fn period(&self) -> Option<Duration> {
        self.period
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn meters(&self) -> &Arc<Meters> {
        &self.meters
    }

    /// The end of the validity, or `None` after the hold's end.
    pub(crate) fn valid_until(&self) -> Option<Moment> {
        match self.until.load(Ordering::Acquire) {
            ENDED => None,
            nanos => Some(Moment::from_nanos(nanos)),
        }
    }

    /// Exact to the nanosecond, with no help from any timer: whoever asks past the end ends it.
    pub(crate) fn is_held(&self, now: Moment) -> bool {
        match self.valid_until() {
            None => false,
            Some(until) if now < until => true,
            Some(until) => {
                self.expire(until, now);
                // A renewal may have moved the end between the two reads.
                self.valid_until().is_some_and(|until| now < until)
            }
        }
    }

    /// Moves the validity's end forward. `false` when the hold has ended or its end has passed: a
    /// late "renewed" revives nothing.
    pub(crate) fn extend(&self, valid_until: Moment, now: Moment) -> bool {
        let new = valid_until.min(self.limit.at);
        loop {
            let Some(old) = self.valid_until() else { return false };
            if now >= old {
                return false;
            }
            if new <= old {
                return true;
            }
            let (old, new) = (old.as_nanos(), new.as_nanos());
            let moved = self.until.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
            if moved.is_ok() {
                self.changed.notify_waiters();
                return true;
            }
        }
    }

    /// Ends the hold because `until`, which must still be its end, has passed.
    pub(crate) fn expire(&self, until: Moment, now: Moment) {
        let old = until.as_nanos();
        if self.until.compare_exchange(old, ENDED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            let reason = match now >= self.limit.at {
                true => self.limit.reason,
                false => LostReason::Expired,
            };
            self.close(Ending::Lost(reason), now);
        }
    }

    /// Ends the hold. `false` when it had ended before.
    pub(crate) fn end(&self, ending: Ending, now: Moment) -> bool {
        if self.until.swap(ENDED, Ordering::AcqRel) == ENDED {
            return false;
        }
        self.close(ending, now);
        true
    }

    /// Once per hold, by whoever took its validity away.
    fn close(&self, ending: Ending, now: Moment) {
        let _ = self.ending.set(ending);
        let lost = match ending {
            Ending::Released => None,
            Ending::Lost(reason) => Some(reason),
        };
        self.meters.ended(self.claim(), now.duration_since(self.since), lost);
        self.changed.notify_waiters();
        if let Some(reason) = lost {
            self.span.in_scope(|| observe::lost(self.claim(), self.token, reason));
            // Nobody may use it any more, so others need not wait for the guard to be dropped,
            // which a forgotten one never is.
            self.seat.leave();
        }
    }

    pub(crate) fn ending(&self) -> Option<Ending> {
        self.ending.get().copied()
    }

    /// Completes at the next change: extended or ended. A change after this call, but before the
    /// first poll, counts.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + '_ {
        self.changed.notified()
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("lock", self.claim().name())
            .field("mode", &self.claim().mode())
            .field("token", &self.token)
            .field("valid_until", &self.valid_until())
            .finish_non_exhaustive()
    }
}
