//! What a user calls: a lock, and the options of one acquisition.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::claim::LockKind;
use crate::connect::Bound;
use crate::connected::Connected;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::guard::Guard;
use crate::lifecycle::{Patience, Request, acquire};
use crate::link::Link;
use crate::locks::{Locks, not_connected};
use crate::mode::{Mode, Permits};
use crate::options::{Ttl, hold_limit, unreachable_after};

/// A lock for many readers or one writer. A waiting writer stops new readers.
#[derive(Clone, Debug)]
pub struct RwLock {
    pub(crate) locks: Locks,
    pub(crate) name: String,
}

impl RwLock {
    /// To be held together with other readers.
    pub fn read(&self) -> Lock {
        self.locks.in_mode(LockKind::ReadWrite, &self.name, Ok(Mode::Shared))
    }

    /// To be held alone.
    pub fn write(&self) -> Lock {
        self.locks.in_mode(LockKind::ReadWrite, &self.name, Ok(Mode::Exclusive))
    }
}

/// A lock and how it is to be acquired. It can be acquired any number of times; each acquisition
/// is an owner of its own, also against others from this value.
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    pub(crate) link: Link,
    /// The first thing that cannot be, told when it is acquired.
    pub(crate) request: Result<Request>,
    pub(crate) wait: Option<Duration>,
    /// When the wait began, if that was before the acquisition.
    pub(crate) since: Option<Instant>,
}

impl Lock {
    fn set(mut self, change: impl FnOnce(&mut Request) -> Result<()>) -> Lock {
        self.request = self.request.and_then(|mut request| change(&mut request).map(|()| request));
        self
    }

    /// Waits no longer than `limit`; zero means not at all. Without it [`acquire`](Lock::acquire)
    /// waits for ever and [`try_acquire`](Lock::try_acquire) not at all.
    pub fn wait_at_most(mut self, limit: Duration) -> Lock {
        self.wait = Some(limit);
        self
    }

    /// Counts the wait limit from `start` rather than from the call, for a caller who has waited
    /// for something else before, such as the connection.
    pub fn waiting_since(mut self, start: Instant) -> Lock {
        self.since = Some(start);
        self
    }

    /// How long the store may stay silent during this acquisition: 10 ms to 24 h. Default: the
    /// store's `unreachable_after`, 30 s. It bounds [`try_acquire`](Lock::try_acquire) too, which
    /// does not wait for a lock that is not free, but does wait for the store's answer.
    pub fn unreachable_after(self, bound: Duration) -> Lock {
        self.set(|request| {
            request.unreachable_after = unreachable_after(bound)?;
            Ok(())
        })
    }

    /// How long a lease store keeps the lock if this process goes silent: 100 ms to 24 h. It is
    /// renewed at a third of that. Default: the store's `ttl`, 30 s. Stores that know when a
    /// process or session ends need none.
    pub fn ttl(self, ttl: Duration) -> Lock {
        self.set(|request| {
            request.ttl = Ttl::new(ttl)?.get();
            Ok(())
        })
    }

    /// Loses the lock `limit` after the grant, whatever is renewed: 1 ms to 365 days.
    pub fn hold_at_most(self, limit: Duration) -> Lock {
        self.set(|request| {
            request.hold_at_most = Some(hold_limit(limit)?);
            Ok(())
        })
    }

    /// Holds for `ttl`, 100 ms to 24 h, without any renewal.
    pub fn fixed_lease(self, ttl: Duration) -> Lock {
        self.set(|request| {
            request.ttl = Ttl::new(ttl)?.get();
            request.renewed = false;
            Ok(())
        })
    }

    /// Takes `n` permits at once, all or none. Only for a [`semaphore`](Locks::semaphore).
    pub fn permits(self, n: u32) -> Lock {
        self.set(|request| match request.mode {
            Mode::Permits(permits) => {
                request.mode = Mode::Permits(Permits::new(n, permits.limit())?);
                Ok(())
            }
            other => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("a lock in {other} mode has no permits; expected one of semaphore()"),
            )),
        })
    }

    /// Words for people who look who holds or waits, behind host and process. At most 120 bytes
    /// together.
    pub fn label(self, text: &str) -> Lock {
        self.set(|request| {
            request.label = request.label.with(text);
            Ok(())
        })
    }

    /// Waits for the lock and holds it.
    ///
    /// # Errors
    /// - [`ErrorKind::WaitTimedOut`]: the wait limit ended; [`ErrorKind::Busy`] when it is zero.
    /// - [`ErrorKind::Unreachable`]: the store gave no useful answer for `unreachable_after`, or
    ///   within the wait limit.
    /// - [`ErrorKind::Lost`]: granted, but too late to be believed in.
    /// - [`ErrorKind::InvalidArgument`], [`ErrorKind::Refused`], [`ErrorKind::Unsupported`],
    ///   [`ErrorKind::Foreign`], [`ErrorKind::Closed`]: at once. [`ErrorKind::Refused`] after
    ///   `unreachable_after` when the store refuses what it had accepted, such as a password.
    ///
    /// # Cancel safety
    /// Dropped at any await it leaves nothing behind: neither a place in the queue nor a lock. The
    /// clean-up runs in the background. A place in the queue is lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// let guard = locks.lock("orders/42").acquire().await?;
    /// println!("write with token {}", guard.fencing_token());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn acquire(&self) -> Result<Guard> {
        self.acquire_with(self.wait).await
    }

    /// The lock, or `None` when it is not free: at once, or after
    /// [`wait_at_most`](Lock::wait_at_most).
    ///
    /// # Errors
    /// As [`acquire`](Lock::acquire), without the first.
    ///
    /// # Cancel safety
    /// As [`acquire`](Lock::acquire).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// if let Some(guard) = locks.lock("job").try_acquire().await? {
    ///     // The guard must live as long as the work: `.is_some()` would drop it at once.
    ///     guard.run(async { println!("nobody else does it") }).await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        match self.acquire_with(self.wait.or(Some(Duration::ZERO))).await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) => match error.kind() {
                ErrorKind::Busy | ErrorKind::WaitTimedOut => Ok(None),
                _ => Err(error),
            },
        }
    }

    async fn acquire_with(&self, limit: Option<Duration>) -> Result<Guard> {
        let request = match &self.request {
            Ok(request) => request,
            Err(error) => {
                let error = error.clone().during(Operation::Acquire);
                return Err(error.with_store(self.link.redacted_url()));
            }
        };
        let (core, since) = match self.link.get() {
            Some(core) => (core, self.since),
            None => {
                let since = self.since.unwrap_or_else(Instant::now);
                (self.connected(request, limit, since).await?, Some(since))
            }
        };
        let patience = match limit {
            None => Patience::Unlimited,
            Some(Duration::ZERO) => Patience::None,
            Some(limit) => Patience::AtMost { limit, left: left(limit, since) },
        };
        acquire(core, request, patience).await
    }

    /// The store, once it is connected, within the bounds of this acquisition.
    async fn connected(
        &self,
        request: &Request,
        limit: Option<Duration>,
        since: Instant,
    ) -> Result<&Arc<Connected>> {
        let silence = Bound::silence(request.unreachable_after);
        let bound = match limit {
            // A try waits for no lock, but for the store.
            None | Some(Duration::ZERO) => silence,
            Some(limit) => silence.min(Bound::limit(limit, left(limit, Some(since)))),
        };
        let connected = self.link.wait(bound).await;
        let (doing, name, shown) = (Operation::Acquire, &request.name, self.link.redacted_url());
        connected.map_err(|error| not_connected(error, doing, name, shown))
    }
}

/// What is left of a wait limit that counts from `since`, or from now.
fn left(limit: Duration, since: Option<Instant>) -> Duration {
    since.map_or(limit, |since| limit.saturating_sub(since.elapsed()))
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("store", self.link.redacted_url())
            .field("request", &self.request)
            .field("wait", &self.wait)
            .finish()
    }
}
