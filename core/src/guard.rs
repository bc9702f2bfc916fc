//! The guard of a held lock: whether it is held and until when, how its loss is heard of, work that ends with it, and
//! its release.

pub(crate) mod base;
mod downgrade;
pub(crate) mod share;

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tracing::{Instrument, Span};

use crate::claim::hold::{Ending, Hold};
use crate::client::ClientInner;
use crate::guard::base::Base;
use crate::guard::share::{Share, Shared};
use crate::store::check::Check;
use crate::telemetry;
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
    part: Part,
}

/// What a guard has of what was granted.
enum Part {
    /// All of it.
    All(Base),
    /// A share, beside those of other guards.
    Share(Box<Share>),
}

impl Guard {
    /// Of all that was granted, until `limit` at the latest.
    pub(crate) fn new((base, limit): (Base, Moment)) -> Guard {
        if limit == Moment::NEVER {
            return Guard { part: Part::All(base) };
        }
        Guard::of_share(Share::new(Arc::new(Shared { base, limit, _registered: None })))
    }

    pub(crate) fn of_share(share: Share) -> Guard {
        Guard { part: Part::Share(Box::new(share)) }
    }

    /// The same guard, which ends no later than at `limit`.
    pub(crate) fn end_at(self, limit: Moment) -> Guard {
        match self.part {
            Part::All(base) => Guard::new((base, limit)),
            Part::Share(share) => Guard::of_share(share.end_at(limit)),
        }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        match &self.part {
            Part::All(base) => base.hold(),
            Part::Share(share) => &share.hold,
        }
    }

    pub(crate) fn client(&self) -> &Arc<ClientInner> {
        match &self.part {
            Part::All(base) => base.client(),
            Part::Share(share) => &share.client,
        }
    }

    pub(crate) fn span(&self) -> &Span {
        match &self.part {
            Part::All(base) => base.span(),
            Part::Share(share) => &share.hold.span,
        }
    }

    pub(crate) fn explain(&self, error: Error, doing: Operation) -> Error {
        self.client().explain(error, doing, self.name())
    }

    /// The end of the validity, or `None` after the end of the guard.
    fn validity(&self) -> Option<Moment> {
        match &self.part {
            Part::Share(share) => share.valid_until(share.client.now()),
            Part::All(base) => base.hold().valid_until(),
        }
    }

    fn lost_reason(&self) -> Option<LostReason> {
        match &self.part {
            Part::Share(share) => share.lost(share.client.now()),
            Part::All(base) => match base.hold().ending() {
                Some(Ending::Lost(reason)) => Some(reason),
                _ => None,
            },
        }
    }

    /// Completes at the next change: extended or ended. A change after this call, but before the
    /// first poll, counts.
    fn changed(&self) -> impl Future<Output = ()> + '_ {
        // Not inside the async block, which does nothing before its first poll.
        let changed = self.hold().changed();
        async move {
            match &self.part {
                Part::All(_) => changed.await,
                Part::Share(share) => share.until_limit(changed).await,
            }
        }
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
        match &self.part {
            Part::All(base) => base.token(),
            Part::Share(share) => share.token,
        }
    }

    /// The statement that a transaction on this lock's own database runs first, so that what it then
    /// writes is protected by the lock until its commit, whatever happens to the lease meanwhile: a
    /// write that is checked this way under an exclusive lock is never one of two. (Readers and permit holders
    /// keep each other out no more than their locks do.) Only `postgres://` has it; with another store
    /// the resource compares the [`fencing_token`](Guard::fencing_token).
    ///
    /// # Errors
    /// [`ErrorKind::NotHeld`] when the lock is not held any more; [`ErrorKind::Unsupported`] where the
    /// store is no database.
    pub fn check(&self) -> Result<Check> {
        let within = self.remaining();
        let error = if within.is_zero() {
            Error::new(ErrorKind::NotHeld, "the lock is not held any more")
        } else {
            let token = self.fencing_token().without_epoch();
            match self.client().store.check(self.name(), token, within) {
                Some(check) => return Ok(check),
                None => Error::new(
                    ErrorKind::Unsupported,
                    "this store is no database; a resource can compare the fencing token",
                ),
            }
        };
        Err(self.explain(error, Operation::Hold))
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.hold().claim().name()
    }

    /// The label of its client.
    pub(crate) fn label(&self) -> &str {
        self.hold().claim().label().as_str()
    }

    /// The mode in which it is held: shared from the call of [`downgrade`](Guard::downgrade) on.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.hold().mode()
    }

    /// Whether no other guard shares its hold.
    pub(crate) fn is_sole(&self) -> bool {
        match &self.part {
            Part::All(_) => true,
            Part::Share(share) => share.is_sole(),
        }
    }

    /// The end of the validity as known now, on the store's clock, which
    /// [`Locks::now`](crate::Locks::now) reads. Renewals move it; after a loss it is in the past.
    #[must_use]
    pub fn valid_until(&self) -> Moment {
        self.validity().unwrap_or(Moment::from_nanos(0))
    }

    /// The remaining validity: zero after a loss, [`Duration::MAX`] where it has no end.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let left = || self.valid_until().duration_since(self.client().now());
        self.is_held().then(left).unwrap_or_default()
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
        match &self.part {
            Part::Share(share) => share.is_held(share.client.now()),
            Part::All(base) => base.hold().is_held(base.client().now()),
        }
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
            let changed = self.changed();
            let Some(until) = self.validity() else { return };
            let at = until - margin;
            if self.client().now() >= at {
                return;
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = self.client().store.clock().sleep_until(at) => {}
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
            let changed = self.changed();
            if let Some(reason) = self.lost_reason() {
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
        let work = pin!(work.instrument(self.span().clone()));
        run_while(|| self.is_held(), pin!(self.lost()), work).await.map_err(|reason| {
            self.explain(Error::new(ErrorKind::Lost, reason.to_string()), Operation::Hold)
        })
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
        let (name, client) = (self.name().clone(), self.client().clone());
        let store = client.store.profile().store;
        let span = telemetry::release_span(self.hold().claim(), store, self.fencing_token());
        // Pinned, since `instrument` would move all of it.
        let releasing = pin!(self.release_part());
        let released = releasing.instrument(span).await;
        released.map_err(|error| client.explain(error, Operation::Release, &name))
    }

    async fn release_part(self) -> Result<()> {
        let base = match self.part {
            Part::All(base) => base,
            Part::Share(share) => match share.finish()? {
                Some(last) => last,
                None => return Ok(()),
            },
        };
        base.release().await
    }

    /// As [`run`](Guard::run), for work that a function makes: on a lost lock the function is not called. One that
    /// is not async begins the work when it is called, not when its future is polled.
    pub(crate) async fn start<T>(&self, work: impl AsyncFnOnce() -> T) -> Result<T> {
        self.run(async { work().await }).await
    }

    /// Runs `work` while the lock is held, and releases it; see [`Lock::with`](crate::Lock::with).
    pub(crate) async fn release_after<T>(self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        let done = self.start(async || work(&self).await).await?;
        result_of_work(done, [self.release().await])
    }

    /// A descriptor that keeps the lock held for as long as any process has a copy of it, such as a
    /// child that inherits it. Only stores that know when a process ends have one, and no guard with
    /// [`local_handoffs`](crate::Lock::local_handoffs): the lock is handed on while the child runs.
    #[cfg(unix)]
    #[must_use]
    pub fn keep_alive(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        if self.hold().claim().local_handoffs() > 1 {
            return None;
        }
        self.hold().cleanup.acquisition.keep_alive()
    }
}

/// Runs `work` for as long as `is_held`, or until `lost` says why not. Both are pinned by the caller:
/// each async function that takes a future by value has it in its own state twice.
pub(crate) async fn run_while<T, L>(
    is_held: impl Fn() -> bool,
    mut lost: Pin<&mut impl Future<Output = L>>,
    mut work: Pin<&mut impl Future<Output = T>>,
) -> std::result::Result<T, L> {
    // Checked before each poll, since after a pause of the process the work may be polled before the
    // renewal worker is, and once more after the last.
    poll_fn(|cx| {
        if is_held()
            && let Poll::Ready(result) = work.as_mut().poll(cx)
            && is_held()
        {
            return Poll::Ready(Ok(result));
        }
        lost.as_mut().poll(cx).map(Err)
    })
    .await
}

/// What work under locks returns that ended while they were held, after their releases: `done`, unless
/// one of them was not held any more. Other errors are logged.
pub(crate) fn result_of_work<T>(
    done: T,
    releases: impl IntoIterator<Item = Result<()>>,
) -> Result<T> {
    let mut result = Ok(done);
    for error in releases.into_iter().filter_map(Result::err) {
        if error.kind() == ErrorKind::NotHeld && result.is_ok() {
            result = Err(error);
        } else {
            tracing::warn!(target: "fencelock", %error, "the work is done, its release is not");
        }
    }
    result
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("lock", self.name())
            .field("mode", &self.mode())
            .field("token", &self.fencing_token())
            .field("valid_until", &self.validity())
            .finish_non_exhaustive()
    }
}
