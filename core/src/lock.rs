//! Locks, and the options of an acquisition.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::acquire::{WaitLimit, acquire};
use crate::engine::client::ClientInner;
use crate::engine::connection::{Bound, Connection};
use crate::guard::Guard;
use crate::store::claim::{AcquireRequest, LockKind};
use crate::types::error::{ErrorKind, Operation, Result, invalid};
use crate::types::mode::{Mode, Permits};
use crate::types::name::LockName;
use crate::types::options::{Ttl, hold_limit, unreachable_after};

/// A lock for many readers or one writer. A waiting writer stops new readers.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// let prices = locks.rw_lock("prices");
/// let (one, two) = (prices.read().acquire().await?, prices.read().acquire().await?);
/// assert!(prices.write().try_acquire().await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    pub(crate) connection: Connection,
    pub(crate) name: String,
}

impl RwLock {
    /// The lock for a reader, held together with other readers.
    pub fn read(&self) -> Lock {
        Lock::new(&self.connection, LockKind::ReadWrite, &self.name, Ok(Mode::Shared))
    }

    /// The lock for a writer, held alone.
    pub fn write(&self) -> Lock {
        Lock::new(&self.connection, LockKind::ReadWrite, &self.name, Ok(Mode::Exclusive))
    }
}

/// A lock and the options of its acquisition. It can be acquired any number of times; each
/// acquisition is an owner of its own and excludes the others, also those from this value.
///
/// It is not re-entrant: a task that acquires again what it holds waits for itself, for ever without
/// [`wait_at_most`](Lock::wait_at_most).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// # use fencelock_core as fencelock;
/// use std::time::{Duration, Instant};
/// let lock = locks.lock("orders/42");
/// let _guard = lock.clone().ttl(Duration::from_secs(10)).label("the importer").acquire().await?;
/// let other = lock.unreachable_after(Duration::from_secs(5)).hold_at_most(Duration::from_secs(60));
/// let other = other.wait_at_most(Duration::from_millis(10)).waiting_since(Instant::now().into());
/// assert_eq!(other.acquire().await.unwrap_err().kind(), fencelock::ErrorKind::WaitTimedOut);
/// let lease = locks.lock("reports").fixed_lease(Duration::from_secs(5)).acquire().await?;
/// assert!(lease.remaining() < Duration::from_secs(5));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    pub(crate) connection: Connection,
    /// The first invalid option is reported when the lock is acquired.
    pub(crate) request: Result<AcquireRequest>,
    pub(crate) wait: Option<Duration>,
    /// The start of the wait, if before the acquisition.
    pub(crate) since: Option<Instant>,
}

impl Lock {
    pub(crate) fn new(
        connection: &Connection,
        kind: LockKind,
        name: &str,
        mode: Result<Mode>,
    ) -> Lock {
        let settings = connection.settings();
        let request = LockName::with_prefix(&settings.prefix, name).and_then(|name| {
            Ok(AcquireRequest {
                name,
                kind,
                mode: mode?,
                ttl: settings.ttl.get(),
                renewed: true,
                hold_at_most: None,
                unreachable_after: settings.unreachable_after,
                label: settings.label.clone(),
            })
        });
        Lock { connection: connection.clone(), request, wait: None, since: None }
    }

    fn with<T>(mut self, value: Result<T>, set: impl FnOnce(&mut AcquireRequest, T)) -> Lock {
        self.request = self.request.and_then(|mut request| {
            set(&mut request, value?);
            Ok(request)
        });
        self
    }

    /// Waits at most `limit`; zero means not at all. By default [`acquire`](Lock::acquire) waits for
    /// ever and [`try_acquire`](Lock::try_acquire) not at all.
    pub fn wait_at_most(mut self, limit: Duration) -> Lock {
        self.wait = Some(limit);
        self
    }

    /// Counts the wait limit from `start` rather than from the call, for a caller that has waited for
    /// something else before, such as the connection.
    pub fn waiting_since(mut self, start: Instant) -> Lock {
        self.since = Some(start);
        self
    }

    /// How long the store may stay silent during this acquisition: 10 ms to 24 h. Default: the
    /// store's `unreachable_after`, 30 s. It bounds [`try_acquire`](Lock::try_acquire) too, which
    /// does not wait for a lock that is not free, but does wait for the store's answer.
    pub fn unreachable_after(self, bound: Duration) -> Lock {
        self.with(unreachable_after(bound), |request, bound| request.unreachable_after = bound)
    }

    /// How long a lease store keeps the lock if this process is silent: 100 ms to 24 h. The lock is
    /// renewed at a third of it. Default: the store's `ttl`, 30 s. Stores that know when a process
    /// or session ends need none.
    pub fn ttl(self, ttl: Duration) -> Lock {
        self.with(Ttl::new(ttl), |request, ttl| request.ttl = ttl.get())
    }

    /// Caps the hold at `limit` after the grant, regardless of renewals: 1 ms to 365 days.
    pub fn hold_at_most(self, limit: Duration) -> Lock {
        self.with(hold_limit(limit), |request, limit| request.hold_at_most = Some(limit))
    }

    /// Holds the lock for `ttl`, 100 ms to 24 h, without renewals.
    pub fn fixed_lease(self, ttl: Duration) -> Lock {
        self.with(Ttl::new(ttl), |request, ttl| (request.ttl, request.renewed) = (ttl.get(), false))
    }

    /// Takes `n` permits at once, all or none. Only for a [`semaphore`](crate::Locks::semaphore).
    pub fn permits(self, n: u32) -> Lock {
        let mode = self.request.as_ref().map(|request| request.mode);
        let mode = match mode {
            Ok(Mode::Permits(permits)) => Permits::new(n, permits.limit()).map(Mode::Permits),
            Ok(other) => Err(invalid(format!(
                "a lock in {other} mode has no permits; expected one of semaphore()"
            ))),
            Err(_) => return self,
        };
        self.with(mode, |request, mode| request.mode = mode)
    }

    /// A human-readable label shown by `inspect`, appended to host and pid. At most 120 bytes
    /// together.
    pub fn label(self, text: &str) -> Lock {
        self.with(Ok(text), |request, text| request.label = request.label.with(text))
    }

    /// Acquires the lock, and waits for it if necessary.
    ///
    /// # Errors
    /// - [`ErrorKind::WaitTimedOut`]: the wait limit ended; [`ErrorKind::Busy`] when it is zero.
    /// - [`ErrorKind::Unreachable`]: the store gave no useful answer for `unreachable_after`, or
    ///   within the wait limit.
    /// - [`ErrorKind::Lost`]: granted, but the validity had ended before the answer was read.
    /// - [`ErrorKind::InvalidArgument`], [`ErrorKind::Refused`], [`ErrorKind::Unsupported`],
    ///   [`ErrorKind::Foreign`], [`ErrorKind::Closed`]: at once. [`ErrorKind::Refused`] after
    ///   `unreachable_after` when the store refuses what it had accepted, such as a password.
    ///
    /// # Cancel safety
    /// Dropped at any await, it leaves neither a place in the queue nor a lock: the clean-up runs in
    /// the background. The place in the queue is lost.
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
        self.acquire_with(self.wait.unwrap_or(Duration::MAX)).await
    }

    /// The lock, or `None` when it is not free: at once, or after
    /// [`wait_at_most`](Lock::wait_at_most).
    ///
    /// # Errors
    /// As [`acquire`](Lock::acquire), except for the first.
    ///
    /// # Cancel safety
    /// As [`acquire`](Lock::acquire).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// if let Some(guard) = locks.lock("job").try_acquire().await? {
    ///     // The guard must live as long as the work: `.is_some()` would drop it at once.
    ///     guard.run(async { println!("no other process does it") }).await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        match self.acquire_with(self.wait.unwrap_or(Duration::ZERO)).await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) => match error.kind() {
                ErrorKind::Busy | ErrorKind::WaitTimedOut => Ok(None),
                _ => Err(error),
            },
        }
    }

    async fn acquire_with(&self, limit: Duration) -> Result<Guard> {
        let request = self.request.as_ref();
        let request =
            request.map_err(|error| self.connection.explain(error.clone(), Operation::Acquire))?;
        let (client, since) = match self.connection.get() {
            Some(client) => (client, self.since),
            None => {
                let since = self.since.unwrap_or_else(Instant::now);
                (self.connected(request, limit, since).await?, Some(since))
            }
        };
        let wait_limit = WaitLimit { limit, left: left(limit, since) };
        acquire(client, request, wait_limit).await.map(Guard::new)
    }

    /// The store, once it is connected, within the bounds of this acquisition.
    async fn connected(
        &self,
        request: &AcquireRequest,
        limit: Duration,
        since: Instant,
    ) -> Result<&Arc<ClientInner>> {
        let mut bound = Bound::silence(request.unreachable_after);
        // A try does not wait for the lock, but it waits for the store.
        if !limit.is_zero() {
            bound = bound.min(Bound::wait_limit(limit, left(limit, Some(since))));
        }
        let connected = self.connection.wait(bound).await;
        connected.map_err(|error| {
            self.connection.not_connected(error, Operation::Acquire, &request.name)
        })
    }
}

/// The rest of a wait limit that counts from `since`, or from now.
fn left(limit: Duration, since: Option<Instant>) -> Duration {
    since.map_or(limit, |since| limit.saturating_sub(since.elapsed()))
}
