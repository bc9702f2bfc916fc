//! The guard of a held lock.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tracing::Instrument;

use crate::engine::hold::Ending;
use crate::engine::owned_hold::OwnedHold;
use crate::engine::telemetry;
use crate::time::moment::Moment;
use crate::types::error::{Error, ErrorKind, LostReason, Operation, Result};
use crate::types::mode::Mode;
use crate::types::name::LockName;
use crate::types::token::FencingToken;

/// A held lock.
///
/// Dropping it releases the lock in the background, on the runtime that connected the store, also
/// from a thread without one; [`Locks::close`](crate::Locks::close) waits for such releases. A
/// forgotten guard is renewed for as long as the process lives, unless
/// [`hold_at_most`](crate::Lock::hold_at_most) or a fixed lease ends it.
///
/// Ownership is the guard's, not a task's or thread's: it may be sent and shared.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// use std::time::Duration;
/// let guard = locks.lock("orders/42").acquire().await?;
/// println!("{} is held in {} mode, with token {}", guard.name(), guard.mode(), guard.fencing_token());
/// tokio::select! {
///     reason = guard.lost() => println!("stop at once: {reason}"),
///     () = guard.expiring(Duration::from_secs(1)) => println!("renewals fail"),
///     () = tokio::task::yield_now() => assert!(guard.is_held() && guard.valid_until() > locks.now()),
/// }
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "dropping a guard releases the lock"]
pub struct Guard {
    owned: OwnedHold,
}

impl Guard {
    pub(crate) fn new(owned: OwnedHold) -> Guard {
        Guard { owned }
    }

    /// The fencing token. Pass it with every write, for the protected resource to check.
    ///
    /// A database rejects a late write by a condition of the statement; no row changed means that a later
    /// holder has written already. `examples/sql-fencing` of the repository has it for SQLite and PostgreSQL.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # use fencelock_core as fencelock;
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// let guard = locks.lock("stock/lamp").acquire().await?;
    /// // UPDATE stock SET remaining = $2, token = $3 WHERE item = $1 AND token <= $3
    /// let token = i64::from(guard.fencing_token());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.owned.hold.grant.token
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.owned.hold.claim().name()
    }

    /// The mode in which it is held.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.owned.hold.claim().mode()
    }

    /// The end of the validity as known now, on the store's clock, which
    /// [`Locks::now`](crate::Locks::now) reads. Renewals move it; after a loss it is in the past.
    #[must_use]
    pub fn valid_until(&self) -> Moment {
        self.owned.hold.valid_until().unwrap_or(Moment::from_nanos(0))
    }

    /// The remaining validity: zero after a loss, [`Duration::MAX`] where it has no end.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self.is_held() {
            true => self.valid_until().duration_since(self.owned.client.now()),
            false => Duration::ZERO,
        }
    }

    /// Whether the lock is provably held at this moment. Exact without a timer, and once `false` it
    /// stays `false`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # use fencelock_core as fencelock;
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// let guard = locks.lock("report").acquire().await?;
    /// for part in 0..3 {
    ///     // Code that is not async asks before each step.
    ///     assert!(guard.is_held(), "stop");
    ///     println!("write part {part}, with token {}", guard.fencing_token());
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.owned.hold.is_held(self.owned.client.now())
    }

    /// Completes when at most `margin` of the validity is left, or the lock is lost. While renewals
    /// succeed and `margin` is at most half of the TTL, it never completes.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # use fencelock_core as fencelock;
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// use std::time::Duration;
    /// let guard = locks.lock("report").acquire().await?;
    /// # let work = async { 42 };
    /// tokio::select! {
    ///     result = work => println!("done: {result}"),
    ///     () = guard.expiring(Duration::from_secs(5)) => println!("save the state: five seconds are left"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn expiring(&self, margin: Duration) {
        loop {
            let changed = self.owned.hold.changed();
            let Some(until) = self.owned.hold.valid_until() else { return };
            let at = until - margin;
            if self.owned.client.now() >= at {
                return;
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = self.owned.client.store.clock().sleep_until(at) => {}
            }
        }
    }

    /// Completes when the lock is lost, at the latest when its validity ends, without help from the
    /// store.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # use fencelock_core as fencelock;
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// let guard = locks.lock("leader").acquire().await?;
    /// # let work = async { 42 };
    /// tokio::select! {
    ///     reason = guard.lost() => println!("stop leading: {reason}"),
    ///     result = work => println!("done: {result}"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn lost(&self) -> LostReason {
        loop {
            let changed = self.owned.hold.changed();
            if let Some(Ending::Lost(reason)) = self.owned.hold.ending() {
                return reason;
            }
            changed.await;
        }
    }

    /// Runs `work` while the lock is held, and drops it when the lock is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the lock was lost before `work` completed, even by an instant; its
    /// result is then dropped.
    ///
    /// # Cancel safety
    /// As cancel safe as `work`; the guard is not affected.
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
        let mut work = pin!(work.instrument(self.owned.hold.span.clone()));
        let mut lost = pin!(self.lost());
        // Checked before each poll, since after a pause of the process the work may be polled before
        // the renewal worker is, and once more after the last.
        let done = poll_fn(|cx| {
            if !self.is_held() || lost.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            work.as_mut().poll(cx).map(Some)
        });
        match done.await {
            Some(result) if self.is_held() => Ok(result),
            _ => {
                let lost = Error::new(ErrorKind::Lost, self.lost().await.to_string());
                Err(self.owned.client.explain(lost, Operation::Hold, self.name()))
            }
        }
    }

    /// Releases the lock and waits until the store has confirmed it.
    ///
    /// # Errors
    /// - [`ErrorKind::NotHeld`]: this guard no longer held it, so another holder may have worked at
    ///   the same time.
    /// - [`ErrorKind::Unreachable`]: the store did not confirm within `unreachable_after`. The release
    ///   continues in the background.
    /// - [`ErrorKind::Refused`] and other final errors of the store.
    ///
    /// # Cancel safety
    /// If the future is dropped, the release continues in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # use fencelock_core as fencelock;
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// # use fencelock::ErrorKind;
    /// let guard = locks.lock("orders/42").acquire().await?;
    /// if let Err(error) = guard.release().await {
    ///     match error.kind() {
    ///         ErrorKind::NotHeld => eprintln!("another client may have worked at the same time: {error}"),
    ///         _ => eprintln!("the lock ends with its TTL: {error}"), // the work itself is done
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn release(self) -> Result<()> {
        let name = self.name().clone();
        let store = self.owned.client.store.profile().store;
        let span = telemetry::release_span(self.owned.hold.claim(), store, self.fencing_token());
        let released = self.owned.release().instrument(span).await;
        released.map_err(|error| self.owned.client.explain(error, Operation::Release, &name))
    }

    /// A descriptor that keeps the lock held for as long as any process has a copy of it, such as a
    /// child that inherits it. Only stores that know when a process ends have one.
    #[cfg(unix)]
    #[must_use]
    pub fn keep_alive(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.owned.hold.cleanup.acquisition.keep_alive()
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.owned.hold).finish()
    }
}
