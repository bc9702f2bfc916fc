//! From a request for a lock to its grant, once for every store: contend, wait, retry, give up.
//!
//! The drivers only attempt. Whatever ends this future, an error, a limit or the caller's drop,
//! the seat's own `Drop` leaves nothing behind.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tracing::{Instrument, Span};

use crate::backend::{AttemptOutcome, Residue};
use crate::claim::{Claim, IfBusy, LockKind, Wanted};
use crate::connected::{Connected, closed, silent};
use crate::error::{Error, ErrorKind, LostReason, Operation, Result};
use crate::guard::Guard;
use crate::hold::{Grant, Hold, Limit};
use crate::mode::Mode;
use crate::name::LockName;
use crate::observe::{self, Meters, Outcome};
use crate::options::{Label, in_words};
use crate::pace::Pace;
use crate::profile::Liveness;
use crate::seat::Seat;
use crate::validity::{Moment, lease_end};
use crate::wait::{Said, Wait};

/// What a caller asked for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) name: LockName,
    pub(crate) family: LockKind,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) renewed: bool,
    pub(crate) hold_at_most: Option<Duration>,
    /// How long the store may stay silent.
    pub(crate) unreachable_after: Duration,
    pub(crate) label: Label,
}

/// How long a caller waits for a lock that is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    None,
    /// Of this limit, so much is left.
    AtMost {
        limit: Duration,
        left: Duration,
    },
    Unlimited,
}

pub(crate) async fn acquire(
    core: &Arc<Connected>,
    request: &Request,
    patience: Patience,
) -> Result<Guard> {
    let profile = core.store.profile();
    let spans = Spans {
        caller: Span::current(),
        acquire: observe::acquire_span(&request.name, profile.store, request.mode),
    };
    let span = spans.acquire.clone();
    let contending = contend(core, request, patience, &spans).instrument(span);
    contending.await.map_err(|error| core.explain(error, Operation::Acquire, &request.name))
}

struct Spans {
    caller: Span,
    acquire: Span,
}

async fn contend(
    core: &Arc<Connected>,
    request: &Request,
    patience: Patience,
    spans: &Spans,
) -> Result<Guard> {
    // A store that answers at once must not let one task keep its worker thread for ever.
    tokio::task::coop::consume_budget().await;
    core.store.profile().require(request.mode, request.ttl)?;
    let wanted = Wanted {
        name: request.name.clone(),
        family: request.family,
        mode: request.mode,
        ttl: request.ttl,
        renewed: request.renewed,
        if_busy: if patience == Patience::None { IfBusy::Refuse } else { IfBusy::Queue },
        label: request.label.clone(),
    };
    let claim = Arc::new(Claim::new(
        core.keeper.next_id(),
        wanted,
        core.yard.runtime.clone(),
        core.rung.clone(),
    ));
    let mut outcome = Counted { meters: &core.meters, claim: &claim, outcome: Outcome::Cancelled };
    let seat = Arc::new(Seat::take(core.store.begin(claim.clone()), core.yard.clone()));
    let result = match core.closing.is_cancelled() || core.keeper.has_stopped() {
        // Looked at only now: `close` waits for every seat that was taken before.
        true => {
            seat.nothing_left();
            Err(closed())
        }
        false => Contention::new(core, &seat, request, patience, spans).run().await,
    };
    outcome.outcome = match &result {
        Ok(_) => Outcome::Granted,
        Err(error) => Outcome::of(error),
    };
    result
}

/// Counts an acquisition that ends in any way but a grant, which counts itself.
struct Counted<'a> {
    meters: &'a Meters,
    claim: &'a Claim,
    outcome: Outcome,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if self.outcome != Outcome::Granted {
            self.meters.finished(self.claim, self.outcome);
        }
    }
}

/// One claim on its way to the lock.
struct Contention<'a> {
    core: &'a Arc<Connected>,
    seat: &'a Arc<Seat>,
    request: &'a Request,
    wait: Arc<Wait>,
    started: Moment,
    gives_up: Moment,
    patience: Patience,
    spans: &'a Spans,
}

impl<'a> Contention<'a> {
    fn new(
        core: &'a Arc<Connected>,
        seat: &'a Arc<Seat>,
        request: &'a Request,
        patience: Patience,
        spans: &'a Spans,
    ) -> Contention<'a> {
        let started = core.now();
        let gives_up = match patience {
            Patience::AtMost { left, .. } => started + left,
            Patience::None | Patience::Unlimited => Moment::NEVER,
        };
        let wait = Arc::new(Wait::new(seat.clone(), request.unreachable_after));
        Contention { core, seat, request, wait, started, gives_up, patience, spans }
    }

    async fn run(&self) -> Result<Guard> {
        let mut pace = Pace::start();
        let mut asked = self.started;
        loop {
            match self.attempt(asked).await? {
                Ok(AttemptOutcome::Granted { token, valid_until }) => {
                    let token = token.in_epoch(self.core.settings.token_epoch);
                    let since = self.core.now();
                    let limit = hold_limit(self.request, asked, since);
                    let period = self.period();
                    return self.grant(&Grant { token, asked, since, valid_until, limit, period });
                }
                Ok(AttemptOutcome::Busy { rest }) => {
                    if rest == Residue::Nothing {
                        self.seat.nothing_left();
                    }
                    return Err(self.busy());
                }
                // A driver that queued a claim that was not to be: the seat's drop undoes it.
                Ok(AttemptOutcome::Waiting { .. }) if self.patience == Patience::None => {
                    return Err(self.busy());
                }
                Ok(AttemptOutcome::Waiting { check_after }) => {
                    self.wait.answered();
                    pace = Pace::start();
                    self.wait_for_bell(check_after).await?;
                }
                Err(error) if error.is_retryable() => {
                    self.wait.troubled(error);
                    let claim = self.seat.claim();
                    self.back_off(pace.next(claim.label(), claim.id())).await?;
                }
                Err(error) => return Err(error),
            }
            asked = self.core.now();
        }
    }

    /// How often the hold is renewed. A fixed lease is not, but a session that carries one is.
    fn period(&self) -> Option<Duration> {
        let (profile, request) = (self.core.store.profile(), self.request);
        match request.renewed || profile.liveness != Liveness::Lease {
            true => profile.renewal.period(request.ttl),
            false => None,
        }
    }

    /// One attempt and its answer, unless the wait limit or the store's silence ends it.
    async fn attempt(&self, asked: Moment) -> Result<Result<AttemptOutcome>> {
        self.wait.asked(asked);
        let contender = self.seat.contender();
        let mut attempt = contender.attempt();
        // The store may answer at once; then there is no timer to set up.
        if let Poll::Ready(answer) = poll_once(attempt.as_mut()).await {
            return Ok(answer);
        }
        let silence_ends = self.wait.silence_ends();
        let slept = tokio::select! {
            biased;
            answer = &mut attempt => return Ok(answer),
            () = self.core.closing.cancelled() => return Err(closed()),
            slept = self.sleep_until(self.gives_up.min(silence_ends)) => slept,
        };
        slept?;
        let error = match self.gives_up <= silence_ends {
            true => self.timed_out(),
            false => self.silent(),
        };
        // On a busy machine the answer may have come while this task was not running; and what the
        // driver says of a request that is answered explains nothing.
        match poll_once(attempt.as_mut()).await {
            Poll::Ready(answer) => Ok(answer),
            Poll::Pending => Err(error),
        }
    }

    /// Waits for the bell, which the driver or the keeper's look rings.
    async fn wait_for_bell(&self, check_after: Duration) -> Result<()> {
        let (core, claim) = (self.core, self.seat.claim());
        self.wait.park();
        if !core.keeper.watch(self.wait.clone(), check_after, core.now()) {
            return Err(closed());
        }
        let _watched = Watched { core, claim };
        core.meters.waits(claim, 1.0);
        // The bell last: a driver that always rings must not outlast a limit.
        let woken = tokio::select! {
            biased;
            () = core.closing.cancelled() => Err(closed()),
            slept = self.sleep_until(self.gives_up) => slept.and(Err(self.timed_out())),
            () = claim.bell.notified() => Ok(()),
        };
        match self.wait.unpark() {
            true => woken,
            false => Err(closed()),
        }
    }

    async fn back_off(&self, pause: Duration) -> Result<()> {
        let now = self.core.now();
        let silence_ends = self.wait.silence_ends();
        if now >= silence_ends {
            return Err(self.silent());
        }
        if now >= self.gives_up {
            return Err(self.timed_out());
        }
        let again = (now + pause).min(self.gives_up).min(silence_ends);
        tokio::select! {
            biased;
            () = self.core.closing.cancelled() => Err(closed()),
            slept = self.sleep_until(again) => slept,
        }
    }

    /// An error when the clock has ended, with the runtime that connected: it lets everybody go
    /// early, perhaps before anybody else tells.
    async fn sleep_until(&self, at: Moment) -> Result<()> {
        self.core.store.clock().sleep_until(at).await;
        match self.core.now() < at {
            true => Err(closed()),
            false => Ok(()),
        }
    }

    fn grant(&self, grant: &Grant) -> Result<Guard> {
        let (core, claim) = (self.core, self.seat.claim());
        if grant.valid_until <= grant.since || grant.limit.at <= grant.since {
            return Err(Error::new(
                ErrorKind::Lost,
                "granted, but its validity had ended before the answer was read; \
                 it was given back",
            )
            .retryable(true));
        }
        self.spans.acquire.record("token", grant.token.get());
        let store = core.store.profile().store;
        let span = observe::hold_span(&self.spans.caller, claim, store, grant.token);
        let hold = Hold::new(self.seat.clone(), grant, span, core.meters.clone());
        let hold = Arc::new(hold);
        core.meters.granted(claim, grant.since.duration_since(self.started));
        // From here on the guard's drop ends the hold.
        let guard = Guard::new(core.clone(), hold.clone());
        if !core.keeper.keep(hold, grant.asked, grant.since) {
            return Err(closed());
        }
        // Only once the keeper has the hold can a ring reach it there. One that came between the
        // answer and now meant the hold, and lies in the bell.
        claim.held();
        if pin!(claim.bell.notified()).enable() {
            claim.wake();
        }
        Ok(guard)
    }

    fn busy(&self) -> Error {
        Error::new(ErrorKind::Busy, "held by somebody else, or others wait for it")
    }

    fn silent(&self) -> Error {
        let cause = match self.wait.said() {
            Said::Trouble(error) => Some(error),
            Said::Nothing | Said::Queued => self.seat.contender().unanswered(),
        };
        silent(self.request.unreachable_after, cause)
    }

    fn timed_out(&self) -> Error {
        let limit = match self.patience {
            Patience::AtMost { limit, .. } => in_words(limit),
            Patience::None | Patience::Unlimited => in_words(Duration::MAX),
        };
        let unknown = || {
            Error::new(
                ErrorKind::Unreachable,
                format!("the store gave no useful answer within the wait limit of {limit}"),
            )
        };
        match self.wait.said() {
            Said::Queued => {
                Error::new(ErrorKind::WaitTimedOut, format!("not granted within {limit}"))
            }
            Said::Trouble(error) => unknown().caused_by(error),
            Said::Nothing => match self.seat.contender().unanswered() {
                // Others were before it all the time.
                Some(error) if error.kind() == ErrorKind::Busy => {
                    let message = format!("not granted within {limit}");
                    Error::new(ErrorKind::WaitTimedOut, message).caused_by(error)
                }
                Some(error) => unknown().caused_by(error),
                None => unknown(),
            },
        }
    }
}

/// Whether `future` is ready now.
async fn poll_once<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// When a hold ends whatever the store says: a fixed lease by the drift formula from before the
/// request, `hold_at_most` from the grant.
fn hold_limit(request: &Request, asked: Moment, granted: Moment) -> Limit {
    let lease = match request.renewed {
        true => Moment::NEVER,
        false => lease_end(asked, request.ttl),
    };
    let at_most = request.hold_at_most.map_or(Moment::NEVER, |limit| granted + limit);
    match at_most < lease {
        true => Limit { at: at_most, reason: LostReason::HoldLimit },
        false => Limit { at: lease, reason: LostReason::Expired },
    }
}

/// A wait in the keeper's agenda, taken out however the waiting ends.
struct Watched<'a> {
    core: &'a Connected,
    claim: &'a Claim,
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.core.keeper.remove(self.claim.id);
        self.core.meters.waits(self.claim, -1.0);
    }
}
