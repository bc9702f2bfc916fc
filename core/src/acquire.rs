//! Acquiring a lock, once for every store.
//!
//! A request becomes a claim, and [`CleanupGuard`] guarantees its release before the first request
//! is sent. The claim attempts; while the store answers that it is queued, it waits for a wake-up and
//! attempts again; after a retryable error it backs off. A grant becomes a hold that the renewal
//! worker keeps. An error, a limit or a dropped future ends the loop, and the guard's `Drop` then
//! releases what the store may have.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use tracing::{Instrument, Span};

use crate::claim::cleanup::CleanupGuard;
use crate::claim::hold::{Grant, Hold, Limit};
use crate::claim::own_hold;
use crate::claim::wait::{LimitEnd, PATIENCE, Wait};
use crate::client::owned_hold::OwnedHold;
use crate::client::{ClientInner, silent};
use crate::renewal::timing::period;
use crate::store::claim::{AcquireRequest, Claim, IfBusy};
use crate::store::distributed_lock::{AttemptOutcome, Residue};
use crate::store::profile::Liveness;
use crate::telemetry;
use crate::telemetry::metrics::{GrantedBy, Metrics, Outcome};
use crate::time::backoff::Backoff;
use crate::time::moment::{Moment, lease_end};
use crate::types::error::{Error, ErrorKind, LostReason, Operation, Result, closed};
use crate::types::options::format_duration;

/// How long a caller waits for a lock that is not free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitLimit {
    /// Zero means not at all, [`Duration::MAX`] for ever.
    pub(crate) limit: Duration,
    /// What is left of it.
    pub(crate) left: Duration,
}

/// The wait of an acquisition, for those who wait for its outcome.
pub(crate) type Observed = OnceLock<Arc<Wait>>;

pub(crate) async fn acquire(
    client: &Arc<ClientInner>,
    request: &AcquireRequest,
    wait_limit: WaitLimit,
    observed: Option<&Observed>,
) -> Result<OwnedHold> {
    let profile = client.store.profile();
    let spans = Spans {
        caller: Span::current(),
        acquire: telemetry::acquire_span(&request.name, profile.store, request.mode),
    };
    let span = spans.acquire.clone();
    // Pinned, since `instrument` would move all of it.
    let acquiring = pin!(acquire_loop(client, request, wait_limit, observed, &spans));
    acquiring
        .instrument(span)
        .await
        .map_err(|error| client.explain(error, Operation::Acquire, &request.name))
}

struct Spans {
    caller: Span,
    acquire: Span,
}

async fn acquire_loop(
    client: &Arc<ClientInner>,
    request: &AcquireRequest,
    wait_limit: WaitLimit,
    observed: Option<&Observed>,
    spans: &Spans,
) -> Result<OwnedHold> {
    // With a store that answers at once, a task must still yield its worker thread.
    tokio::task::coop::consume_budget().await;
    client.store.profile().require(request.mode, request.ttl)?;
    let WaitLimit { limit, left } = wait_limit;
    let if_busy = if limit.is_zero() { IfBusy::Refuse } else { IfBusy::Queue };
    let claim = Arc::new(Claim::new(
        client.worker.next_id(),
        request.clone(),
        if_busy,
        client.reaper.runtime.clone(),
        client.woken.clone(),
    ));
    let mut outcome =
        Counted { metrics: &client.metrics, claim: &claim, outcome: Outcome::Cancelled };
    let cleanup =
        Arc::new(CleanupGuard::new(client.store.begin(claim.clone()), client.reaper.clone()));
    // Checked only now: `close` waits for every clean-up guard that was made before.
    let result = if client.closing.is_cancelled() || client.worker.has_stopped() {
        cleanup.nothing_left();
        Err(closed())
    } else {
        let started = client.now();
        let long_at = match observed {
            None if limit == Duration::MAX => started + own_hold::LONG,
            // Those who wait for its outcome know their limits.
            _ => Moment::NEVER,
        };
        let wait = Arc::new(Wait::new(cleanup.clone(), long_at));
        if let Some(observed) = observed {
            let _ = observed.set(wait.clone());
        }
        // A try waits for no lock, but for the store's answer.
        let gives_up = if limit.is_zero() { Moment::NEVER } else { started + left };
        let acquiring =
            AcquireLoop { client, cleanup: &cleanup, wait, started, gives_up, limit, spans };
        acquiring.run().await
    };
    outcome.outcome = Outcome::of(&result);
    result
}

/// Counts an acquisition that does not end in a grant; a grant is counted on its own.
struct Counted<'a> {
    metrics: &'a Metrics,
    claim: &'a Claim,
    outcome: Outcome,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if self.outcome != Outcome::Granted
            && let Some(request) = self.claim.counted()
        {
            self.metrics.finished(request, self.outcome);
        }
    }
}

/// The state of one acquisition.
struct AcquireLoop<'a> {
    client: &'a Arc<ClientInner>,
    cleanup: &'a Arc<CleanupGuard>,
    wait: Arc<Wait>,
    started: Moment,
    gives_up: Moment,
    limit: Duration,
    spans: &'a Spans,
}

impl AcquireLoop<'_> {
    async fn run(&self) -> Result<OwnedHold> {
        let mut backoff = Backoff::start();
        let mut asked = self.started;
        loop {
            match self.attempt(asked).await? {
                Ok(AttemptOutcome::Granted { token, valid_until }) => {
                    let token = token.in_epoch(self.client.settings.token_epoch);
                    let since = self.client.now();
                    let limit = hold_limit(&self.claim().request, asked, since);
                    let period = self.renewal_period();
                    return self.grant(Grant {
                        token,
                        asked,
                        since,
                        first_valid_until: valid_until,
                        limit,
                        period,
                    });
                }
                Ok(AttemptOutcome::Busy { rest }) => {
                    if rest == Residue::Nothing {
                        self.cleanup.nothing_left();
                    }
                    return Err(self.busy());
                }
                // The backend queued a claim that asked not to wait: the guard's drop undoes that.
                Ok(AttemptOutcome::Waiting { .. }) if self.limit.is_zero() => {
                    return Err(self.busy());
                }
                Ok(AttemptOutcome::Waiting { check_after }) => {
                    self.client.worker.answered(&self.wait, self.client.now());
                    backoff = Backoff::start();
                    self.wait_for_wake_up(check_after).await?;
                }
                Err(error) if error.is_retryable() => {
                    self.wait.failed(error);
                    self.back_off(backoff.next(self.claim().seed())).await?;
                }
                Err(error) => return Err(error),
            }
            asked = self.client.now();
        }
    }

    /// The time between two renewals. A fixed lease is not renewed, but a session that carries one
    /// is.
    fn renewal_period(&self) -> Option<Duration> {
        let (profile, request) = (self.client.store.profile(), &self.claim().request);
        let is_renewed = request.renewed || profile.liveness != Liveness::Lease;
        is_renewed.then(|| period(profile.renewal, request.ttl)).flatten()
    }

    /// Makes one attempt, unless the wait limit or the store's silence ends it.
    async fn attempt(&self, asked: Moment) -> Result<Result<AttemptOutcome>> {
        self.wait.asked_for_caller(asked);
        let mut attempt = self.cleanup.acquisition.attempt();
        // The store may answer at once; then no timer is needed.
        if let Poll::Ready(answer) = poll_once(attempt.as_mut()).await {
            return Ok(answer);
        }
        let _in_flight = self.cleanup.in_flight();
        let ended = tokio::select! {
            biased;
            // First: what `close` has released must not be asked for again.
            () = self.client.closing.cancelled() => return Err(closed()),
            answer = &mut attempt => return Ok(answer),
            ended = self.limit_ended(self.wait.silence_ends()) => ended,
        };
        let error = ended?;
        // On a busy machine the answer may have arrived while this task was not running; then the
        // backend's explanation of an unanswered request is outdated.
        match poll_once(attempt.as_mut()).await {
            Poll::Ready(answer) => Ok(answer),
            Poll::Pending => Err(error),
        }
    }

    /// Waits for a wake-up by the backend or by the worker's check.
    async fn wait_for_wake_up(&self, check_after: Duration) -> Result<()> {
        let (client, claim) = (self.client, self.claim());
        self.wait.park();
        if !client.worker.watch(self.wait.clone(), check_after, client.now()) {
            return Err(closed());
        }
        let _watched = Watched { client, claim };
        if let Some(request) = claim.counted() {
            client.metrics.waits(request, 1.0);
        }
        // The wake-up last: a backend that always wakes must not defeat a limit.
        let woken = tokio::select! {
            biased;
            () = client.closing.cancelled() => Err(closed()),
            ended = self.limit_ended(Moment::NEVER) => ended.and_then(Err),
            () = claim.notify.notified() => Ok(()),
        };
        if self.wait.unpark() { woken } else { Err(closed()) }
    }

    /// Waits until the limit has ended, and it is known what that means, or the store has been silent for too long.
    async fn limit_ended(&self, silence_ends: Moment) -> Result<Error> {
        let mut until = self.gives_up;
        self.client.sleep_until(until.min(silence_ends)).await?;
        loop {
            let answer = self.wait.answer.notified();
            if silence_ends < until {
                return Ok(self.silent());
            }
            let now = self.client.now();
            let is_late = now >= until + LATE && now < self.gives_up + PATIENCE[1];
            match at_limit(self.client, &self.wait, None, self.limit) {
                // The machine is too busy: the answer may have come, and nobody has read it yet.
                Ok(error) if is_late && error.kind() == ErrorKind::Unreachable => {
                    until = now + PATIENCE[0];
                }
                Ok(error) => return Ok(error),
                Err(again) => until = again,
            }
            tokio::select! {
                () = answer => {}
                slept = self.client.sleep_until(until.min(silence_ends)) => slept?,
            }
        }
    }

    async fn back_off(&self, pause: Duration) -> Result<()> {
        let now = self.client.now();
        let silence_ends = self.wait.silence_ends();
        if now >= silence_ends {
            return Err(self.silent());
        }
        if now >= self.gives_up
            && let Ok(error) = at_limit(self.client, &self.wait, None, self.limit)
        {
            return Err(error);
        }
        let again = (now + pause).min(self.gives_up).min(silence_ends);
        let _in_flight = self.cleanup.in_flight();
        tokio::select! {
            biased;
            () = self.client.closing.cancelled() => Err(closed()),
            slept = self.client.sleep_until(again) => slept,
        }
    }

    fn claim(&self) -> &Claim {
        self.cleanup.claim()
    }

    fn grant(&self, grant: Grant) -> Result<OwnedHold> {
        let (client, claim) = (self.client, self.claim());
        if grant.first_valid_until <= grant.since || grant.limit.at <= grant.since {
            return Err(Error::new(
                ErrorKind::Lost,
                "granted, but its validity had ended before the answer was read; \
                 it was released",
            )
            .retryable(true));
        }
        self.spans.acquire.record("token", grant.token.get());
        let store = client.store.profile().store;
        let span = telemetry::hold_span(&self.spans.caller, claim, store, grant.token);
        let hold = Hold::new(self.cleanup.clone(), grant, span, client.metrics.clone());
        let hold = Arc::new(hold);
        if let Some(request) = claim.counted() {
            let waited = grant.since.duration_since(self.started);
            client.metrics.granted(request, waited, GrantedBy::Store);
        }
        // From here on its drop ends the hold.
        let owned = OwnedHold { client: client.clone(), hold: hold.clone() };
        if !client.worker.keep(hold, grant.asked, grant.since) {
            return Err(closed());
        }
        // A wake-up reaches the worker only once it has the hold. One that came between the answer
        // and now was meant for the hold, and is stored in the notifier.
        claim.held();
        if pin!(claim.notify.notified()).enable() {
            claim.wake();
        }
        Ok(owned)
    }

    fn busy(&self) -> Error {
        Error::new(ErrorKind::Busy, "it is held, or others wait for it")
    }

    fn silent(&self) -> Error {
        silent(self.claim().request.unreachable_after, self.wait.cause())
    }
}

/// A timer that fires so much too late shows that this process has waited for a processor.
const LATE: Duration = Duration::from_millis(100);

/// How soon a caller whose limit has ended looks again whether the store has answered to another one's wait.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The error at the end of a wait limit, or when to ask again what the end means. `turn`: when this process held the
/// lock last, and how long the store took to grant it.
pub(crate) fn at_limit(
    client: &ClientInner,
    wait: &Arc<Wait>,
    turn: Option<(Moment, Duration)>,
    limit: Duration,
) -> std::result::Result<Error, Moment> {
    let (now, answers) = (client.now(), wait.answers().or_turn(turn));
    let others = client.worker.last_answer();
    match answers.at_limit(now, false, others) {
        LimitEnd::NotGranted => Ok(not_granted(limit)),
        LimitEnd::Await(until) => Err(until),
        LimitEnd::Ask => {
            client.worker.check_now(wait, now);
            Err(now + PATIENCE[0])
        }
        // The cause costs a store some calls of the system.
        LimitEnd::Unreachable => {
            let cause = wait.cause();
            let is_ours = cause.as_ref().is_some_and(|cause| cause.kind() == ErrorKind::Busy);
            let error = match answers.at_limit(now, is_ours, others) {
                LimitEnd::NotGranted => not_granted(limit),
                _ => unanswered(limit),
            };
            Ok(error.with_cause(cause))
        }
    }
}

/// The store has not answered within a wait limit.
pub(crate) fn unanswered(limit: Duration) -> Error {
    let limit = format_duration(limit);
    let message = format!("the store gave no useful answer within the wait limit of {limit}");
    Error::new(ErrorKind::Unreachable, message)
}

pub(crate) fn not_granted(limit: Duration) -> Error {
    Error::new(ErrorKind::WaitTimedOut, format!("not granted within {}", format_duration(limit)))
}

/// Polls `future` once.
async fn poll_once<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// The end of a hold, whatever the store answers: a fixed lease counts from before the request, less
/// the drift margin, `hold_at_most` from the grant.
fn hold_limit(request: &AcquireRequest, asked: Moment, granted: Moment) -> Limit {
    let lease = if request.renewed { Moment::NEVER } else { lease_end(asked, request.ttl) };
    let at_most = request.hold_at_most.map_or(Moment::NEVER, |limit| granted + limit);
    let is_sooner = at_most < lease;
    let reason = if is_sooner { LostReason::HoldLimit } else { LostReason::Expired };
    Limit { at: at_most.min(lease), reason }
}

/// A wait in the worker's schedule; dropping it removes it.
struct Watched<'a> {
    client: &'a ClientInner,
    claim: &'a Claim,
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.client.worker.remove(self.claim.id);
        if let Some(request) = self.claim.counted() {
            self.client.metrics.waits(request, -1.0);
        }
    }
}
