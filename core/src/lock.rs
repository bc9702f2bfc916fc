//! Locks, and the options of an acquisition.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::acquire::{Request, WaitPolicy, acquire};
use crate::engine::client::ClientInner;
use crate::engine::connection::{Bound, Connection, not_connected};
use crate::guard::Guard;
use crate::store::claim::LockKind;
use crate::types::error::{Error, ErrorKind, Operation, Result};
use crate::types::mode::{Mode, Permits};
use crate::types::name::LockName;
use crate::types::options::{Ttl, hold_limit, unreachable_after};

/// A lock for many readers or one writer. A waiting writer stops new readers.
#[derive(Clone)]
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
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    pub(crate) connection: Connection,
    /// The first invalid option is reported when the lock is acquired.
    pub(crate) request: Result<Request>,
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
            Ok(Request {
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

    fn set(mut self, change: impl FnOnce(&mut Request) -> Result<()>) -> Lock {
        self.request = self.request.and_then(|mut request| change(&mut request).map(|()| request));
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
        self.set(|request| {
            request.unreachable_after = unreachable_after(bound)?;
            Ok(())
        })
    }

    /// How long a lease store keeps the lock if this process is silent: 100 ms to 24 h. The lock is
    /// renewed at a third of it. Default: the store's `ttl`, 30 s. Stores that know when a process
    /// or session ends need none.
    pub fn ttl(self, ttl: Duration) -> Lock {
        self.set(|request| {
            request.ttl = Ttl::new(ttl)?.get();
            Ok(())
        })
    }

    /// Caps the hold at `limit` after the grant, regardless of renewals: 1 ms to 365 days.
    pub fn hold_at_most(self, limit: Duration) -> Lock {
        self.set(|request| {
            request.hold_at_most = Some(hold_limit(limit)?);
            Ok(())
        })
    }

    /// Holds the lock for `ttl`, 100 ms to 24 h, without renewals.
    pub fn fixed_lease(self, ttl: Duration) -> Lock {
        self.set(|request| {
            request.ttl = Ttl::new(ttl)?.get();
            request.renewed = false;
            Ok(())
        })
    }

    /// Takes `n` permits at once, all or none. Only for a [`semaphore`](crate::Locks::semaphore).
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

    /// A human-readable label shown by `inspect`, appended to host and pid. At most 120 bytes
    /// together.
    pub fn label(self, text: &str) -> Lock {
        self.set(|request| {
            request.label = request.label.with(text);
            Ok(())
        })
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
        self.acquire_with(self.wait).await
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
                return Err(error.with_store(self.connection.redacted_url()));
            }
        };
        let (client, since) = match self.connection.get() {
            Some(client) => (client, self.since),
            None => {
                let since = self.since.unwrap_or_else(Instant::now);
                (self.connected(request, limit, since).await?, Some(since))
            }
        };
        let policy = match limit {
            None => WaitPolicy::Unlimited,
            Some(Duration::ZERO) => WaitPolicy::None,
            Some(limit) => WaitPolicy::AtMost { limit, left: left(limit, since) },
        };
        acquire(client, request, policy).await.map(Guard::new)
    }

    /// The store, once it is connected, within the bounds of this acquisition.
    async fn connected(
        &self,
        request: &Request,
        limit: Option<Duration>,
        since: Instant,
    ) -> Result<&Arc<ClientInner>> {
        let silence = Bound::silence(request.unreachable_after);
        let bound = match limit {
            // A try does not wait for the lock, but it waits for the store.
            None | Some(Duration::ZERO) => silence,
            Some(limit) => silence.min(Bound::wait_limit(limit, left(limit, Some(since)))),
        };
        let connected = self.connection.wait(bound).await;
        let (doing, name, redacted_url) =
            (Operation::Acquire, &request.name, self.connection.redacted_url());
        connected.map_err(|error| not_connected(error, doing, name, redacted_url))
    }
}

/// The rest of a wait limit that counts from `since`, or from now.
fn left(limit: Duration, since: Option<Instant>) -> Duration {
    since.map_or(limit, |since| limit.saturating_sub(since.elapsed()))
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock")
            .field("store", self.connection.redacted_url())
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("store", self.connection.redacted_url())
            .field("request", &self.request)
            .field("wait", &self.wait)
            .finish()
    }
}
