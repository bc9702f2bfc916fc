//! A held lock, as its holder sees it.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tracing::Instrument;

use crate::connected::Connected;
use crate::error::{Error, ErrorKind, LostReason, Operation, Result};
use crate::hold::{Ending, Hold};
use crate::mode::Mode;
use crate::name::LockName;
use crate::observe;
use crate::token::FencingToken;
use crate::validity::Moment;

/// A held lock.
///
/// Dropping it releases the lock in the background, on the runtime that connected the store, also
/// from a thread without one; [`Locks::close`](crate::Locks::close) waits for such releases. A
/// forgotten guard is renewed for as long as the process lives, unless
/// [`hold_at_most`](crate::Lock::hold_at_most) or a fixed lease ends it.
///
/// Ownership is the guard's, not a task's or thread's: it may be sent and shared.
#[must_use = "dropping a guard releases the lock"]
pub struct Guard {
    core: Arc<Connected>,
    hold: Arc<Hold>,
}

impl Guard {
    pub(crate) fn new(core: Arc<Connected>, hold: Arc<Hold>) -> Guard {
        Guard { core, hold }
    }

    /// The number for the protected resource to check. Pass it with every write.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.token()
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.hold.claim().name()
    }

    /// How it is held.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.hold.claim().mode()
    }

    /// Until when the holder may believe it holds, as far as is known now; renewals move it.
    /// On the store's clock, which [`Locks::now`](crate::Locks::now) reads. After a loss it is
    /// in the past.
    #[must_use]
    pub fn valid_until(&self) -> Moment {
        self.hold.valid_until().unwrap_or(Moment::from_nanos(0))
    }

    /// How much validity is left: zero after a loss, [`Duration::MAX`] where it has no end.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self.is_held() {
            true => self.valid_until().duration_since(self.core.now()),
            false => Duration::ZERO,
        }
    }

    /// Whether the lock is provably held at this moment. Exact: no timer has to fire first, and
    /// once `false` it stays so.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold.is_held(self.core.now())
    }

    /// Completes when no more than `margin` of the validity is left, or the lock is lost. With
    /// renewals succeeding and `margin` at most half of the TTL that is never.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn expiring(&self, margin: Duration) {
        loop {
            let changed = self.hold.changed();
            let Some(until) = self.hold.valid_until() else { return };
            let at = until - margin;
            if self.core.now() >= at {
                return;
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = self.core.store.clock().sleep_until(at) => {}
            }
        }
    }

    /// Completes when the lock is lost, no later than its validity ends, with no help from the
    /// store.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn lost(&self) -> LostReason {
        loop {
            let changed = self.hold.changed();
            if let Some(Ending::Lost(reason)) = self.hold.ending() {
                return reason;
            }
            changed.await;
        }
    }

    /// Does `work` while the lock is held, and drops it half-way when the lock is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the lock was lost before `work` was complete, even if only just;
    /// its result is dropped then.
    ///
    /// # Cancel safety
    /// As cancel safe as `work`; the guard stays as it is.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// let guard = locks.lock("report").acquire().await?;
    /// let sum = guard.run(async { 1 + 1 }).await?;
    /// assert_eq!(sum, 2);
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let mut work = pin!(work.instrument(self.hold.span().clone()));
        let mut lost = pin!(self.lost());
        // Asked before each step, since after a pause of the process the work may be polled before
        // the keeper is; and after the last.
        let done = poll_fn(|cx| {
            if !self.is_held() || lost.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            work.as_mut().poll(cx).map(Some)
        });
        match done.await {
            Some(result) if self.is_held() => Ok(result),
            _ => Err(self.lost_error(self.lost().await)),
        }
    }

    fn lost_error(&self, reason: LostReason) -> Error {
        self.error(ErrorKind::Lost, reason.to_string(), Operation::Hold)
    }

    fn error(&self, kind: ErrorKind, message: String, doing: Operation) -> Error {
        self.core.explain(Error::new(kind, message), doing, self.name())
    }

    /// Gives the lock back and waits until the store has confirmed it.
    ///
    /// # Errors
    /// - [`ErrorKind::NotHeld`]: it was no longer this guard's, so somebody else may have worked
    ///   beside it.
    /// - [`ErrorKind::Unreachable`]: the store has not confirmed within `unreachable_after`. The
    ///   release goes on in the background.
    /// - [`ErrorKind::Refused`] and others that the store answers for good.
    ///
    /// # Cancel safety
    /// Dropped half-way, the release continues in the background.
    pub async fn release(self) -> Result<()> {
        let name = self.name().clone();
        let store = self.core.store.profile().store;
        let span = observe::release_span(self.hold.claim(), store, self.fencing_token());
        let released = self.give_back().instrument(span).await;
        released.map_err(|error| self.core.explain(error, Operation::Release, &name))
    }

    async fn give_back(&self) -> Result<()> {
        // End the hold first: `is_held` must be false before the store can give the lock on.
        let now = self.core.now();
        let held = self.hold.is_held(now) && self.hold.end(Ending::Released, now);
        self.core.keeper.remove(self.hold.claim().id);
        if !held {
            let why = match self.hold.ending() {
                Some(Ending::Lost(reason)) => reason.to_string(),
                _ => "it was released".to_owned(),
            };
            return Err(Error::new(ErrorKind::NotHeld, why));
        }
        match self.hold.seat().release().await? {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::NotHeld, "the store did not have it as ours")),
        }
    }

    /// A descriptor that keeps the lock held for as long as any process has a copy of it, as a
    /// child that inherits it. Only stores that know when a process ends have one.
    #[cfg(unix)]
    #[must_use]
    pub fn keep_alive(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.hold.seat().contender().keep_alive()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let ended = self.hold.valid_until().is_none();
        if !ended && self.hold.end(Ending::Released, self.core.now()) {
            self.core.keeper.remove(self.hold.claim().id);
        }
        self.hold.seat().leave();
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.hold).finish()
    }
}
