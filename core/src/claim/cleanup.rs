//! The clean-up of a claim, from before its first request until the store has confirmed that nothing
//! of it is left.
//!
//! A future can be dropped at any await and any code can panic, so the duty to release is a value
//! with a `Drop`, not a line of code at the end of a function.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::store::claim::Claim;
use crate::store::distributed_lock::ReleaseOutcome;
use crate::store::erased::{ErasedAcquisition, ErasedStore};
use crate::store::panics::caught;
use crate::store::profile::Liveness;
use crate::sync::Mutex;
use crate::telemetry;
use crate::time::backoff::Backoff;
use crate::time::moment::Moment;
use crate::types::error::{Error, ErrorKind, Result};

/// Runs releases in the background.
pub(crate) struct Reaper {
    pub(crate) store: Arc<dyn ErasedStore>,
    pub(crate) runtime: Handle,
    /// What `close` waits for: releases that are owed, and those that run in the background.
    pub(crate) tasks: TaskTracker,
    pub(crate) unreachable_after: Duration,
    pub(crate) closing: CancellationToken,
    /// Claims with a request in a future of the program, by their ids.
    pub(crate) in_flight: Mutex<HashMap<u64, Weak<CleanupGuard>>>,
}

impl Reaper {
    /// Releases in the background what is left to futures of the program: they may not be polled for
    /// long.
    pub(crate) fn release_in_flight(&self) {
        let in_flight = std::mem::take(&mut *self.in_flight.lock());
        for cleanup in in_flight.values().filter_map(Weak::upgrade) {
            cleanup.claim().over();
            let release = std::mem::replace(&mut *cleanup.release.lock(), Release::Left);
            if let Release::Owed(token) | Release::InFlight(token) = release {
                cleanup.release_in_background(token);
            }
        }
    }
}

/// A claim's acquisition, and the duty to release it.
pub(crate) struct CleanupGuard {
    pub(crate) acquisition: Arc<dyn ErasedAcquisition>,
    reaper: Arc<Reaper>,
    release: Mutex<Release>,
}

/// By whom the release is made. The token keeps `close` waiting.
enum Release {
    /// By the guard's drop.
    Owed(TaskTrackerToken),
    /// By a future of the program.
    InFlight(TaskTrackerToken),
    /// It was made, is made in the background, or is not needed.
    Left,
}

impl CleanupGuard {
    pub(crate) fn new(
        acquisition: Arc<dyn ErasedAcquisition>,
        reaper: Arc<Reaper>,
    ) -> CleanupGuard {
        let release = Mutex::new(Release::Owed(reaper.tasks.token()));
        CleanupGuard { acquisition, reaper, release }
    }

    /// Takes the release obligation; the caller must now release.
    fn take_owed(&self) -> Option<TaskTrackerToken> {
        let mut release = self.release.lock();
        match std::mem::replace(&mut *release, Release::Left) {
            Release::Owed(token) => Some(token),
            other => {
                *release = other;
                None
            }
        }
    }

    /// Lets `close` release the claim while the caller's future is not polled, until this is dropped.
    pub(crate) fn in_flight(self: &Arc<Self>) -> InFlight {
        self.reaper.in_flight.lock().insert(self.claim().id, Arc::downgrade(self));
        InFlight(self.clone())
    }

    pub(crate) fn claim(&self) -> &Arc<Claim> {
        self.acquisition.claim()
    }

    /// Ends the claim without a release: the store certainly has nothing of it.
    pub(crate) fn nothing_left(&self) {
        self.claim().over();
        drop(self.take_owed());
    }

    /// Releases in the background, once, unless nothing is left.
    ///
    /// Works on any thread. On a runtime that has ended nothing is sent: the end of the lease or
    /// session frees the lock.
    pub(crate) fn leave(&self) {
        self.claim().over();
        if let Some(owed) = self.take_owed() {
            self.release_in_background(owed);
        }
    }

    fn release_in_background(&self, owed: TaskTrackerToken) {
        let (reaper, acquisition) = (self.reaper.clone(), self.acquisition.clone());
        self.reaper.runtime.spawn(async move {
            let _owed = owed;
            clean_up(reaper, acquisition).await;
        });
    }

    /// Releases now. `Ok(true)` when the lock was still this claim's, given that it was valid at the
    /// call. If the future is dropped, the release continues in the background.
    pub(crate) async fn release(self: &Arc<Self>) -> Result<bool> {
        self.claim().over();
        let Some(owed) = self.take_owed() else { return Ok(false) };
        *self.release.lock() = Release::InFlight(owed);
        let release = ReleaseInFlight(self);
        let clock = self.reaper.store.clock();
        let bound = clock.now() + self.reaper.unreachable_after;
        let mut backoff = Backoff::start();
        // If a repeat finds nothing, an earlier request removed it and its reply was lost: the
        // validity had not ended when the first one was sent.
        let mut repeated = false;
        let mut last_error = None;
        loop {
            let answer = tokio::select! {
                biased;
                answer = self.acquisition.release() => answer,
                () = self.sleep_in_flight(bound) => return Err(self.silent(last_error)),
            };
            last_error = match answer {
                Ok(ReleaseOutcome::Removed) => {
                    release.take();
                    return Ok(true);
                }
                // `close` may have repeated it.
                Ok(ReleaseOutcome::Absent) => return Ok(release.take().is_none() || repeated),
                Ok(ReleaseOutcome::Partly { was_held }) => return Ok(was_held || repeated),
                Err(error) if !error.is_retryable() => return Err(error),
                Err(error) => Some(error),
            };
            repeated = true;
            let again = clock.now() + backoff.next(self.claim().seed());
            self.sleep_in_flight(again.min(bound)).await;
            // The bound has passed, or the clock has ended with the runtime that connected and no
            // longer sleeps.
            if clock.now() < again {
                return Err(self.silent(last_error));
            }
        }
    }

    /// Sleeps while a request is in flight. If this is polled when the client closes, its future makes the
    /// release itself, and `close` waits for it.
    async fn sleep_in_flight(self: &Arc<Self>, until: Moment) {
        let in_flight = self.in_flight();
        let clock = self.reaper.store.clock();
        tokio::select! {
            biased;
            () = clock.sleep_until(until) => return,
            () = self.reaper.closing.cancelled() => drop(in_flight),
        }
        clock.sleep_until(until).await;
    }

    fn silent(&self, cause: Option<Error>) -> Error {
        Error::new(
            ErrorKind::given_up_after(cause.as_ref()),
            format!(
                "no useful answer within unreachable_after={}; the release continues in the background",
                crate::types::options::format_duration(self.reaper.unreachable_after)
            ),
        )
        .caused_by(cause.or_else(|| self.acquisition.unanswered()).unwrap_or_else(unanswered))
    }
}

impl Drop for CleanupGuard {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for CleanupGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CleanupGuard").field("claim", self.claim()).finish_non_exhaustive()
    }
}

fn unanswered() -> Error {
    Error::new(ErrorKind::Unreachable, "the last request is still unanswered")
}

/// A request in a future of the program.
pub(crate) struct InFlight(Arc<CleanupGuard>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.reaper.in_flight.lock().remove(&self.0.claim().id);
    }
}

/// A release in flight: if it is dropped while still owed, it continues in the background.
struct ReleaseInFlight<'a>(&'a CleanupGuard);

impl ReleaseInFlight<'_> {
    /// Ends the obligation; `None` when `close` has taken it over.
    fn take(&self) -> Option<TaskTrackerToken> {
        match std::mem::replace(&mut *self.0.release.lock(), Release::Left) {
            Release::InFlight(token) => Some(token),
            Release::Owed(_) | Release::Left => None,
        }
    }
}

impl Drop for ReleaseInFlight<'_> {
    fn drop(&mut self) {
        if let Some(owed) = self.take() {
            self.0.release_in_background(owed);
        }
    }
}

/// Repeats the release until the store confirms it, or until the store has freed the lock by
/// itself.
async fn clean_up(reaper: Arc<Reaper>, acquisition: Arc<dyn ErasedAcquisition>) {
    let clock = reaper.store.clock();
    let claim = acquisition.claim();
    let give_up = match reaper.store.profile().liveness {
        // The store forgets a lease by itself.
        Liveness::Lease => clock.now() + claim.ttl() + reaper.unreachable_after,
        // A session keeps its nodes for as long as it lives, so its backend answers Absent only when
        // the node or the session is gone; giving up earlier leaked nodes.
        Liveness::Session(_) | Liveness::Process => Moment::NEVER,
    };
    let mut backoff = Backoff::start();
    loop {
        // Each request has its own time limit: one that a backend lost would block the next for ever.
        let bound = give_up.min(clock.now() + reaper.unreachable_after);
        // No other task would release the lock if a panic ended this one.
        let answer = tokio::select! {
            biased;
            answer = caught(acquisition.release()) => answer,
            () = clock.sleep_until(bound) => Err(unanswered()),
        };
        let error = match answer {
            Ok(ReleaseOutcome::Removed | ReleaseOutcome::Absent) => return,
            Ok(ReleaseOutcome::Partly { .. }) => None,
            Err(error) if error.is_retryable() => Some(error),
            Err(error) => return telemetry::left_behind(claim, &error),
        };
        if clock.now() >= give_up {
            // What an unreachable minority of a quorum still holds ends with its lease too.
            return error.iter().for_each(|error| telemetry::left_behind(claim, error));
        }
        clock.sleep_until(clock.now() + backoff.next(claim.seed())).await;
    }
}
