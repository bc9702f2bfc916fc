//! Who owns the clean-up of a claim: from before its first request until the store has confirmed
//! that nothing of it is left.
//!
//! A future can be dropped at any await and a process can panic anywhere, so the duty to release
//! is a value with a `Drop`, not a line of code at the end of a function.

use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::backend::ReleaseOutcome;
use crate::claim::Claim;
use crate::erased::{AnyContender, Store};
use crate::error::{Error, ErrorKind, Result};
use crate::observe;
use crate::pace::Pace;
use crate::profile::Liveness;
use crate::validity::Moment;

/// Where releases that nobody waits for are carried out.
pub(crate) struct Yard {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: Handle,
    /// What `close` waits for: debts that are not paid yet, and the clean-ups that pay them.
    pub(crate) tasks: TaskTracker,
    pub(crate) unreachable_after: Duration,
}

/// A claim's seat in the store, and the debt to release it.
pub(crate) struct Seat {
    contender: Arc<dyn AnyContender>,
    yard: Arc<Yard>,
    /// While a release is owed: what keeps `close` waiting for it.
    owed: Mutex<Option<TaskTrackerToken>>,
}

impl Seat {
    pub(crate) fn take(contender: Arc<dyn AnyContender>, yard: Arc<Yard>) -> Seat {
        let owed = Mutex::new(Some(yard.tasks.token()));
        Seat { contender, yard, owed }
    }

    /// Takes over the debt: whoever gets it must pay it.
    fn debt(&self) -> Option<TaskTrackerToken> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn claim(&self) -> &Arc<Claim> {
        self.contender.claim()
    }

    pub(crate) fn contender(&self) -> &Arc<dyn AnyContender> {
        &self.contender
    }

    /// The store is certain to have nothing of this claim.
    pub(crate) fn nothing_left(&self) {
        self.claim().over();
        drop(self.debt());
    }

    /// Releases in the background, once, unless nothing is left.
    ///
    /// Works on any thread. On a runtime that has ended nothing is sent: the lease or session
    /// frees the lock.
    pub(crate) fn leave(&self) {
        self.claim().over();
        if let Some(debt) = self.debt() {
            self.pay_in_background(debt);
        }
    }

    fn pay_in_background(&self, debt: TaskTrackerToken) {
        let (yard, contender) = (self.yard.clone(), self.contender.clone());
        self.yard.runtime.spawn(async move {
            let _debt = debt;
            clean_up(yard, contender).await;
        });
    }

    /// Releases now. `Ok(true)` when the lock was still this claim's, given that it was valid when
    /// this was called. Dropped half-way, the rest is done in the background.
    pub(crate) async fn release(&self) -> Result<bool> {
        self.claim().over();
        let Some(debt) = self.debt() else { return Ok(false) };
        let mut debt = Debt { seat: self, unpaid: Some(debt) };
        let clock = self.yard.store.clock();
        let bound = clock.now() + self.yard.unreachable_after;
        let mut pace = Pace::start();
        // A repeat that finds nothing removed it the first time, or the reply was lost: the
        // validity had not ended when it was first sent.
        let mut repeated = false;
        let mut trouble = None;
        loop {
            let answer = tokio::select! {
                biased;
                answer = self.contender.release() => answer,
                () = clock.sleep_until(bound) => return Err(self.silent(trouble)),
            };
            trouble = match answer {
                Ok(ReleaseOutcome::Removed) => {
                    debt.unpaid = None;
                    return Ok(true);
                }
                Ok(ReleaseOutcome::Absent) => {
                    debt.unpaid = None;
                    return Ok(repeated);
                }
                Ok(ReleaseOutcome::Partly { was_held }) => return Ok(was_held || repeated),
                Err(error) if !error.is_retryable() => return Err(error),
                Err(error) => Some(error),
            };
            repeated = true;
            let again = clock.now() + pace.next(self.claim().label(), self.claim().id());
            clock.sleep_until(again.min(bound)).await;
            // Past the bound, or the clock has ended with the runtime that connected, and paces
            // nothing any more.
            if clock.now() < again {
                return Err(self.silent(trouble));
            }
        }
    }

    fn silent(&self, cause: Option<Error>) -> Error {
        Error::new(
            ErrorKind::given_up_after(cause.as_ref()),
            format!(
                "no useful answer within unreachable_after={}; the release continues in the background",
                crate::options::in_words(self.yard.unreachable_after)
            ),
        )
        .caused_by(cause.or_else(|| self.contender.unanswered()).unwrap_or_else(unanswered))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("claim", self.claim()).finish_non_exhaustive()
    }
}

fn unanswered() -> Error {
    Error::new(ErrorKind::Unreachable, "the last request is still unanswered")
}

/// A release under way: dropped unpaid, the seat leaves again, in the background.
struct Debt<'a> {
    seat: &'a Seat,
    unpaid: Option<TaskTrackerToken>,
}

impl Drop for Debt<'_> {
    fn drop(&mut self) {
        if let Some(debt) = self.unpaid.take() {
            self.seat.pay_in_background(debt);
        }
    }
}

/// Repeats the release until the store confirms it, or until the store's own promise has ended.
async fn clean_up(yard: Arc<Yard>, contender: Arc<dyn AnyContender>) {
    let clock = yard.store.clock();
    let claim = contender.claim();
    let give_up = match yard.store.profile().liveness {
        // The store forgets a lease by itself.
        Liveness::Lease => clock.now() + claim.ttl() + yard.unreachable_after,
        // A session keeps what it has for as long as it lives, so its driver answers Absent only
        // when the node or the session is gone; giving up earlier leaked nodes.
        Liveness::Session(_) | Liveness::Process => Moment::NEVER,
    };
    let mut pace = Pace::start();
    loop {
        // Each request has an end of its own: one that a driver lost would keep the next for ever.
        let bound = give_up.min(clock.now() + yard.unreachable_after);
        let answer = tokio::select! {
            biased;
            answer = caught(contender.release()) => answer,
            () = clock.sleep_until(bound) => Err(unanswered()),
        };
        let rest = match answer {
            Ok(ReleaseOutcome::Removed | ReleaseOutcome::Absent) => return,
            Ok(ReleaseOutcome::Partly { .. }) => None,
            Err(error) if error.is_retryable() => Some(error),
            Err(error) => return observe::left_behind(claim, &error),
        };
        if clock.now() >= give_up {
            // What a silent minority of a quorum still has ends with its lease too.
            return rest.iter().for_each(|error| observe::left_behind(claim, error));
        }
        clock.sleep_until(clock.now() + pace.next(claim.label(), claim.id())).await;
    }
}

/// `request`, or an error when the driver panics in it.
pub(crate) async fn caught<T>(request: impl Future<Output = Result<T>>) -> Result<T> {
    let mut request = pin!(request);
    let panicked = || Error::new(ErrorKind::Unreachable, "the store's driver panicked");
    poll_fn(move |cx| {
        catch_unwind(AssertUnwindSafe(|| request.as_mut().poll(cx)))
            .unwrap_or_else(|_| Poll::Ready(Err(panicked())))
    })
    .await
}
