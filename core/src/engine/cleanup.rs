//! The clean-up of a claim, from before its first request until the store has confirmed that nothing
//! of it is left.
//!
//! A future can be dropped at any await and any code can panic, so the duty to release is a value
//! with a `Drop`, not a line of code at the end of a function.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::engine::telemetry;
use crate::store::claim::Claim;
use crate::store::distributed_lock::ReleaseOutcome;
use crate::store::erased::{ErasedAcquisition, ErasedStore};
use crate::store::panics::caught;
use crate::store::profile::Liveness;
use crate::sync::Mutex;
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
}

/// A claim's acquisition, and the duty to release it.
pub(crate) struct CleanupGuard {
    acquisition: Arc<dyn ErasedAcquisition>,
    reaper: Arc<Reaper>,
    /// Present while a release is owed: it keeps `close` waiting.
    owed: Mutex<Option<TaskTrackerToken>>,
}

impl CleanupGuard {
    pub(crate) fn new(
        acquisition: Arc<dyn ErasedAcquisition>,
        reaper: Arc<Reaper>,
    ) -> CleanupGuard {
        let owed = Mutex::new(Some(reaper.tasks.token()));
        CleanupGuard { acquisition, reaper, owed }
    }

    /// Takes the release obligation; the caller must now release.
    fn take_owed(&self) -> Option<TaskTrackerToken> {
        self.owed.lock().take()
    }

    pub(crate) fn claim(&self) -> &Arc<Claim> {
        self.acquisition.claim()
    }

    pub(crate) fn acquisition(&self) -> &Arc<dyn ErasedAcquisition> {
        &self.acquisition
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
    pub(crate) async fn release(&self) -> Result<bool> {
        self.claim().over();
        let Some(owed) = self.take_owed() else { return Ok(false) };
        let mut release = ReleaseInFlight { cleanup: self, owed: Some(owed) };
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
                () = clock.sleep_until(bound) => return Err(self.silent(last_error)),
            };
            last_error = match answer {
                Ok(ReleaseOutcome::Removed) => {
                    release.owed = None;
                    return Ok(true);
                }
                Ok(ReleaseOutcome::Absent) => {
                    release.owed = None;
                    return Ok(repeated);
                }
                Ok(ReleaseOutcome::Partly { was_held }) => return Ok(was_held || repeated),
                Err(error) if !error.is_retryable() => return Err(error),
                Err(error) => Some(error),
            };
            repeated = true;
            let again = clock.now() + backoff.next(self.claim().seed());
            clock.sleep_until(again.min(bound)).await;
            // The bound has passed, or the clock has ended with the runtime that connected and no
            // longer sleeps.
            if clock.now() < again {
                return Err(self.silent(last_error));
            }
        }
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

/// A release in flight: if it is dropped while still owed, it continues in the background.
struct ReleaseInFlight<'a> {
    cleanup: &'a CleanupGuard,
    owed: Option<TaskTrackerToken>,
}

impl Drop for ReleaseInFlight<'_> {
    fn drop(&mut self) {
        if let Some(owed) = self.owed.take() {
            self.cleanup.release_in_background(owed);
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
