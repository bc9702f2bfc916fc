//! One granted lock: until when it is valid, and how it ends, of which `close` tells whoever waits for its loss.
//!
//! The guard and the renewal worker share it. The first to end it decides how it ended; after its
//! end nothing revives it, since a revived hold was how other libraries got two holders.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::Span;

use crate::claim::cleanup::CleanupGuard;
use crate::store::claim::Claim;
use crate::sync::Mutex;
use crate::telemetry;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::program;
use crate::time::moment::Moment;
use crate::types::error::{LostReason, Result, invalid};
use crate::types::mode::Mode;
use crate::types::token::FencingToken;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Released,
    Lost(LostReason),
}

/// The end of a hold, whatever the store answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) at: Moment,
    pub(crate) reason: LostReason,
}

pub(crate) struct Hold {
    pub(crate) cleanup: Arc<CleanupGuard>,
    pub(crate) grant: Grant,
    pub(crate) span: Span,
    pub(crate) metrics: Arc<Metrics>,
    /// The validity's end in nanoseconds; [`ENDED`] after the hold's end, which is final.
    until: AtomicU64,
    ending: OnceLock<Ending>,
    changed: Notify,
    downgrade: Downgrade,
    /// See [`mark_logged`](Hold::mark_logged).
    is_logged: AtomicBool,
    /// Of a tenure, the turn that runs. It is taken once, to report its end.
    turn: Mutex<Option<Box<RunningTurn>>>,
}

/// The turn of a tenure that runs: a loss of the hold is logged and counted as its own.
pub(crate) struct RunningTurn {
    pub(crate) token: FencingToken,
    pub(crate) span: Span,
    pub(crate) since: Moment,
}

const ENDED: u64 = 0;

/// What a store has granted, and for how long.
#[derive(Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) token: FencingToken,
    /// When the attempt was sent.
    pub(crate) asked: Moment,
    /// When the answer was read.
    pub(crate) since: Moment,
    /// As the store granted it. What counts is [`Hold::valid_until`], which renewals move.
    pub(crate) first_valid_until: Moment,
    pub(crate) limit: Limit,
    /// The time between two renewals, if it is renewed.
    pub(crate) period: Option<Duration>,
}

impl Hold {
    pub(crate) fn new(
        cleanup: Arc<CleanupGuard>,
        grant: Grant,
        span: Span,
        metrics: Arc<Metrics>,
    ) -> Hold {
        Hold {
            cleanup,
            grant,
            span,
            metrics,
            until: AtomicU64::new(grant.first_valid_until.min(grant.limit.at).as_nanos()),
            ending: OnceLock::new(),
            changed: Notify::new(),
            downgrade: Downgrade::default(),
            is_logged: AtomicBool::new(false),
            turn: Mutex::default(),
        }
    }

    pub(crate) fn claim(&self) -> &Arc<Claim> {
        self.cleanup.claim()
    }

    /// The mode in which the lock is certainly held: a downgrade counts from its first request on.
    pub(crate) fn mode(&self) -> Mode {
        self.downgrade.mode(self.claim())
    }

    pub(crate) fn downgrade(&self) -> &Downgrade {
        &self.downgrade
    }

    /// The end of the validity, or `None` after the hold's end.
    pub(crate) fn valid_until(&self) -> Option<Moment> {
        match self.until.load(Ordering::Acquire) {
            ENDED => None,
            nanos => Some(Moment::from_nanos(nanos)),
        }
    }

    /// Whether it is held, for a caller that has locked a mutex: a validity that is over stays to be
    /// noticed by [`is_held`](Hold::is_held), which then reports it to the program.
    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        self.valid_until().is_some_and(|until| now < until)
    }

    /// Exact to the nanosecond without a timer: a call after the validity's end ends the hold.
    pub(crate) fn is_held(&self, now: Moment) -> bool {
        match self.valid_until() {
            None => false,
            Some(until) if now < until => true,
            Some(until) => {
                self.expire(until, now);
                // A renewal may have moved the end between the two reads.
                self.is_valid(now)
            }
        }
    }

    /// Moves the validity's end forward. `false` when the hold has ended or its validity has: a late
    /// renewal revives nothing. The caller then calls [`was_extended`](Hold::was_extended).
    pub(crate) fn extend(&self, valid_until: Moment, now: Moment) -> bool {
        let new = valid_until.min(self.grant.limit.at);
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
                return true;
            }
        }
    }

    /// Notifies the tasks that watch the end of the validity. It must not be called while a mutex is locked:
    /// the program's wakers may use the client.
    pub(crate) fn was_extended(&self) {
        self.changed.notify_waiters();
    }

    /// Ends the hold because `until`, which must still be its end, has passed.
    pub(crate) fn expire(&self, until: Moment, now: Moment) {
        let old = until.as_nanos();
        if self.until.compare_exchange(old, ENDED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            let Limit { at, reason } = self.grant.limit;
            let reason = if now >= at { reason } else { LostReason::Expired };
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

    /// Called once per hold, by the caller that ended its validity.
    fn close(&self, ending: Ending, now: Moment) {
        let _ = self.ending.set(ending);
        let lost = match ending {
            Ending::Released => None,
            Ending::Lost(reason) => Some(reason),
        };
        self.changed.notify_waiters();
        if lost.is_some() {
            // The holder may not use the lock any more, so others need not wait until the guard is
            // dropped, which a forgotten one never is.
            self.cleanup.leave();
        }
        // A hold that is counted itself has no turns.
        let turn = match self.claim().counted() {
            Some(_) => None,
            None => self.turn.lock().take(),
        };
        self.report(turn, now, lost);
    }

    /// Counts and logs an end: of the `turn`, or of the hold itself.
    fn report(&self, turn: Option<Box<RunningTurn>>, now: Moment, lost: Option<LostReason>) {
        // A tenure is counted turn by turn.
        let is_counted = turn.is_some() || self.claim().counted().is_some();
        let (token, span, since) = match &turn {
            Some(turn) => (turn.token, &turn.span, turn.since),
            None => (self.grant.token, &self.span, self.grant.since),
        };
        if is_counted {
            self.metrics.ended(&self.claim().request, now.duration_since(since), lost);
        }
        if let Some(reason) = lost {
            telemetry::lost(span, self.claim(), token, reason);
        }
        if turn.is_some() {
            program::call(|| drop(turn));
        }
    }

    /// Counts and logs that a guard has reached its limit, which shares the hold or is a turn of it: others have it.
    pub(crate) fn report_lost_share(&self, span: &Span, token: FencingToken) {
        self.metrics.lost(&self.claim().request, LostReason::HoldLimit);
        telemetry::lost(span, self.claim(), token, LostReason::HoldLimit);
    }

    /// `turn` runs from now on.
    pub(crate) fn begin_turn(&self, turn: RunningTurn) {
        let since = turn.since;
        *self.turn.lock() = Some(Box::new(turn));
        // A loss since the turn was offered has not seen it.
        if let Some(Ending::Lost(reason)) = self.ending() {
            let turn = self.turn.lock().take();
            if turn.is_some() {
                self.report(turn, since, Some(reason));
            }
        }
    }

    /// The turn that runs has ended, and the hold has not.
    pub(crate) fn end_turn(&self, now: Moment) {
        let turn = self.turn.lock().take();
        if turn.is_some() {
            self.report(turn, now, None);
        }
    }

    pub(crate) fn ending(&self) -> Option<Ending> {
        self.ending.get().copied()
    }

    /// Marks that the log says of this hold that its own client waits for it; whether it was before.
    pub(crate) fn mark_logged(&self) -> bool {
        self.is_logged.swap(true, Ordering::Relaxed)
    }

    /// Completes at the next change: extended or ended. A change after this call, but before the
    /// first poll, counts.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + '_ {
        self.changed.notified()
    }
}

/// How far the downgrade of a hold is.
#[derive(Debug, Default)]
pub(crate) struct Downgrade(Mutex<Stage>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    None,
    /// Requested, and not confirmed.
    Asked,
    Confirmed,
}

impl Downgrade {
    pub(crate) fn mode(&self, claim: &Claim) -> Mode {
        match *self.0.lock() {
            Stage::None => claim.mode(),
            Stage::Asked | Stage::Confirmed => Mode::Shared,
        }
    }

    /// Begins, unless it has begun. An acquisition of the same owner takes a share first and looks at the
    /// mode then: so it is counted here, or sees a reader.
    ///
    /// # Errors
    /// Others may write.
    pub(crate) fn begin(&self, is_sole: impl FnOnce() -> bool) -> Result<()> {
        let mut stage = self.0.lock();
        if *stage == Stage::None {
            if !is_sole() {
                let message = "other guards of its owner may still write; release them before the \
                               downgrade";
                return Err(invalid(message));
            }
            *stage = Stage::Asked;
        }
        Ok(())
    }

    pub(crate) fn confirm(&self) {
        *self.0.lock() = Stage::Confirmed;
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        *self.0.lock() == Stage::Confirmed
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // The worker may have the last reference.
        if !self.span.is_none() {
            let span = std::mem::replace(&mut self.span, Span::none());
            program::call(|| drop(span));
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("lock", self.claim().name())
            .field("mode", &self.mode())
            .field("token", &self.grant.token)
            .field("valid_until", &self.valid_until())
            .finish_non_exhaustive()
    }
}
