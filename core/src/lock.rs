//! Locks, and the options of an acquisition.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::acquire::{WaitLimit, acquire};
use crate::claim::own_hold;
use crate::client::ClientInner;
use crate::client::connection::{Bound, Connection};
use crate::guard::Guard;
use crate::guard::base::{Base, acquire_base};
use crate::owner::Owner;
use crate::store::claim::{AcquireRequest, LockKind};
use crate::time::moment::Moment;
use crate::types::error::{Error, ErrorKind, Operation, Result, invalid};
use crate::types::mode::{Mode, Permits};
use crate::types::name::LockName;
use crate::types::options::{Ttl, hold_limit, local_handoffs, unreachable_after};

/// A lock for many readers or one writer. A waiting writer stops new readers.
///
/// A writer becomes a reader by [`Guard::downgrade`]. A reader does not become a writer: two of them
/// would wait for each other for ever. Where that is needed, *every* writer acquires a second lock
/// first, such as `lock("prices/writer")`: a reader that holds it releases its read guard and
/// acquires `write()`, and no other writer comes between.
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
/// [`wait_at_most`](Lock::wait_at_most); after ten seconds of that, a warning is logged. Code that
/// needs it acquires the lock for an [`Owner`].
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
    pub(crate) owner: Option<Owner>,
}

/// [`acquire`](Lock::acquire) by value: a future of its own, for `tokio::join!` or a field.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// let (from, to) = (locks.lock("account/1"), locks.lock("account/2"));
/// let (_from, _to) = tokio::try_join!(from.into_future(), to.into_future())?;
/// let _report = locks.lock("report").await?;
/// # Ok(()) }
/// ```
impl IntoFuture for Lock {
    type Output = Result<Guard>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Guard>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.acquire().await })
    }
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
            let mode = mode.map_err(|error| error.on(name.as_str()))?;
            Ok(AcquireRequest {
                name,
                kind,
                mode,
                ttl: settings.ttl.get(),
                renewed: true,
                hold_at_most: None,
                unreachable_after: settings.unreachable_after,
                label: settings.label.clone(),
                local_handoffs: match kind {
                    LockKind::Lock => settings.local_handoffs,
                    LockKind::ReadWrite | LockKind::Semaphore => 1,
                },
                handoffs_by_default: true,
                is_owned: false,
            })
        });
        Lock { connection: connection.clone(), request, wait: None, since: None, owner: None }
    }

    fn set<T>(mut self, value: Result<T>, set: impl FnOnce(&mut AcquireRequest, T)) -> Lock {
        self.request = self.request.and_then(|mut request| {
            match value {
                Ok(value) => set(&mut request, value),
                Err(error) => return Err(error.on(request.name.as_str())),
            }
            Ok(request)
        });
        self
    }

    /// Acquires it for `owner`, which is granted again at once what it holds already. For a
    /// [`lock`](crate::Locks::lock) and an [`rw_lock`](crate::Locks::rw_lock); see [`Owner`].
    pub fn owned_by(mut self, owner: &Owner) -> Lock {
        self.owner = Some(owner.clone());
        self.set(Ok(()), |request, ()| request.is_owned = true)
    }

    /// Waits at most `limit`; zero means not at all. By default [`acquire`](Lock::acquire) waits for
    /// ever and [`try_acquire`](Lock::try_acquire) not at all.
    ///
    /// It ends up to half a second later, or two with a slow store, if the store has yet to say whether the lock is
    /// busy: an answer from long before the limit does not tell that.
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
        self.set(unreachable_after(bound), |request, bound| request.unreachable_after = bound)
    }

    /// How long a lease store keeps the lock if this process is silent: 100 ms to 24 h. The lock is
    /// renewed at a third of it. Default: the store's `ttl`, 30 s. Stores that know when a process
    /// or session ends need none.
    pub fn ttl(self, ttl: Duration) -> Lock {
        self.set(Ttl::new(ttl), |request, ttl| request.ttl = ttl.get())
    }

    /// Caps the hold at `limit` after the grant, regardless of renewals: 1 ms to 365 days.
    pub fn hold_at_most(self, limit: Duration) -> Lock {
        self.set(hold_limit(limit), |request, limit| request.hold_at_most = Some(limit))
    }

    /// Holds the lock for `ttl`, 100 ms to 24 h, without renewals.
    pub fn fixed_lease(self, ttl: Duration) -> Lock {
        self.set(Ttl::new(ttl), |request, ttl| {
            (request.ttl, request.renewed) = (ttl.get(), false);
            if request.handoffs_by_default {
                request.local_handoffs = 1;
            }
        })
    }

    /// For a lock that many tasks of this process want: up to `most` acquisitions, 1 to 1,024, share one
    /// grant of the store, and hand the lock on within the process, without a request. 16 is a good start;
    /// with 64, one hot lock of Redis was acquired 70 to 80 times as often as without. By default what
    /// [`Settings::local_handoffs`](crate::Settings::local_handoffs) or the URL's `local_handoffs=` says,
    /// else 1: every acquisition is granted by the store.
    ///
    /// The tasks wait in a queue of this client, in order of arrival, which has one place in the
    /// store's queue. Each acquisition has a guard and a larger fencing token of its own. The price: a
    /// waiter of another process waits for up to `most` acquisitions instead of one, as far as they begin
    /// within 10 ms of the grant (the first, in a process that is slow to poll it, within 2 s). A process
    /// with many waiters gets no more of these than others do. They wait for one request: when the store has been
    /// silent for `unreachable_after`, each of them is told so, also one that has just come.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// let stock = locks.lock("stock/lamp").local_handoffs(16);
    /// let tasks = (0..100).map(|_| {
    ///     let stock = stock.clone();
    ///     tokio::spawn(async move { stock.with(async |guard| guard.fencing_token()).await })
    /// });
    /// for task in tasks.collect::<Vec<_>>() {
    ///     println!("written with token {}", task.await.expect("no panic")?);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// - A release that hands on sends nothing: if the store forgot the lock, only the release at the
    ///   end of the tenure can say so. The guard's loss is noticed as ever.
    /// - Larger than what the store reserves ([`Profile::max_local_handoffs`](crate::Profile::max_local_handoffs)),
    ///   it is lowered to that.
    /// - Only for an exclusive [`lock`](crate::Locks::lock) that is renewed: with a fixed lease, an
    ///   [`rw_lock`](crate::Locks::rw_lock) or permits the acquisition is an
    ///   [`ErrorKind::InvalidArgument`].
    pub fn local_handoffs(self, most: u32) -> Lock {
        self.set(local_handoffs(most), |request, most| {
            (request.local_handoffs, request.handoffs_by_default) = (most, false);
        })
    }

    /// Each acquisition is a grant of the store, whatever the client's default is.
    pub(crate) fn without_handoffs(self) -> Lock {
        self.set(Ok(()), |request, ()| request.local_handoffs = 1)
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
        self.set(mode, |request, mode| request.mode = mode)
    }

    /// A human-readable label shown by `inspect`, appended to host and pid. At most 120 bytes
    /// together.
    pub fn label(self, text: &str) -> Lock {
        self.set(Ok(text), |request, text| request.label = request.label.with(text))
    }

    /// Acquires the lock, and waits for it if necessary. The future borrows the `Lock`; that of
    /// [`into_future`](Lock::into_future) owns it.
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
        let acquired = self.acquire_with(self.wait.unwrap_or(Duration::MAX)).await;
        acquired.map_err(|error| self.tell_own_hold(error))
    }

    /// Acquires the lock, runs `work` while it is held, and releases the lock: what
    /// [`acquire`](Lock::acquire), [`Guard::run`] and [`Guard::release`] do one after the other.
    ///
    /// # Errors
    /// - Those of [`acquire`](Lock::acquire).
    /// - [`ErrorKind::Lost`]: the lock was lost before `work` completed, which was dropped.
    /// - [`ErrorKind::NotHeld`]: `work` completed, but the store says that another client may have
    ///   held the lock meanwhile; the result is dropped.
    ///
    /// Another error of the release, such as a store that is silent, is logged and hides no result:
    /// the work ended while the lock was held, and the release continues in the background.
    ///
    /// # Cancel safety
    /// Dropped at any await, it drops `work`, and leaves neither a place in the queue nor a lock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// let lamps = locks.lock("stock/lamp");
    /// let left = lamps
    ///     .with(async |guard| {
    ///         println!("write with token {}", guard.fencing_token());
    ///         41
    ///     })
    ///     .await?;
    /// assert_eq!(left, 41);
    /// # Ok(()) }
    /// ```
    pub async fn with<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T> {
        let guard = self.acquire().await?;
        guard.release_after(work).await
    }

    /// As [`with`](Lock::with), but `None`, without any work, when the lock is not free: at once, or
    /// after [`wait_at_most`](Lock::wait_at_most).
    ///
    /// # Errors
    /// As [`with`](Lock::with), except for a lock that is not free.
    ///
    /// # Cancel safety
    /// As [`with`](Lock::with).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// let report = locks.lock("report");
    /// match report.try_with(async |_| println!("no other process makes it")).await? {
    ///     Some(()) => println!("done"),
    ///     None => println!("another process makes it"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn try_with<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<Option<T>> {
        match self.try_acquire().await? {
            Some(guard) => guard.release_after(work).await.map(Some),
            None => Ok(None),
        }
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

    /// Adds to the error of a lock that is not free that this client holds it itself.
    pub(crate) fn tell_own_hold(&self, error: Error) -> Error {
        let own = match (error.kind(), &self.request, self.connection.get()) {
            (ErrorKind::Busy | ErrorKind::WaitTimedOut, Ok(request), Some(client)) => {
                own_hold::words(request.mode, &client.worker.holds_of(&request.name, client.now()))
            }
            _ => None,
        };
        match own {
            Some(why) => error.adding(&format!("; {why}")),
            None => error,
        }
    }

    async fn acquire_with(&self, limit: Duration) -> Result<Guard> {
        let request = self.valid_request()?;
        let (client, since) = match self.connection.get() {
            Some(client) => (client, self.since),
            None => {
                let since = self.since.unwrap_or_else(Instant::now);
                (self.connected(request, limit, since).await?, Some(since))
            }
        };
        let wait_limit = WaitLimit { limit, left: left(limit, since) };
        self.acquire_resolved(client, request, wait_limit).await
    }

    fn valid_request(&self) -> Result<&AcquireRequest> {
        let request = self.request.as_ref();
        request.map_err(|error| self.connection.explain(error.clone(), Operation::Acquire))
    }

    /// The connected client and the valid options of an acquisition that began at `since`.
    pub(crate) async fn resolved(
        &self,
        limit: Duration,
        since: Instant,
    ) -> Result<(&Arc<ClientInner>, &AcquireRequest)> {
        let request = self.valid_request()?;
        let client = match self.connection.get() {
            Some(client) => client,
            None => self.connected(request, limit, since).await?,
        };
        Ok((client, request))
    }

    /// The connected client and the valid options of an acquisition that begins now.
    pub(crate) async fn resolved_now(&self) -> Result<(&Arc<ClientInner>, &AcquireRequest)> {
        self.resolved(Duration::MAX, Instant::now()).await
    }

    pub(crate) async fn acquire_resolved(
        &self,
        client: &Arc<ClientInner>,
        request: &AcquireRequest,
        wait_limit: WaitLimit,
    ) -> Result<Guard> {
        match &self.owner {
            Some(owner) => owner.acquire(client, request, wait_limit).await,
            None if request.local_handoffs == 1 => {
                let owned = acquire(client, request, wait_limit, None).await?;
                Ok(Guard::new((Base::Whole(owned), Moment::NEVER)))
            }
            // Boxed, so that an ordinary acquisition is no larger for it.
            None => Box::pin(acquire_base(client, request, wait_limit)).await.map(Guard::new),
        }
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
pub(crate) fn left(limit: Duration, since: Option<Instant>) -> Duration {
    since.map_or(limit, |since| limit.saturating_sub(since.elapsed()))
}
