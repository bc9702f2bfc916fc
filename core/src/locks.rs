//! The client: a connected store, from which the locks come.

mod operator;

pub use operator::Health;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backend::current_runtime;
use crate::cells::{Cell, Handle, Kind};
use crate::claim::cleanup::Reaper;
use crate::client::connection::Connection;
use crate::client::{ClientInner, silent};
use crate::lock::{Lock, RwLock};
use crate::recipes::barrier::Barrier;
use crate::recipes::counter::Counter;
use crate::recipes::election::Election;
use crate::recipes::ids::Ids;
use crate::recipes::latch::Latch;
use crate::recipes::once::Once;
use crate::renewal::worker::RenewalWorker;
use crate::store::cell_store::{Content, Keep, Stamp};
use crate::store::claim::LockKind;
use crate::store::distributed_lock::DistributedLock;
use crate::store::erased;
use crate::store::profile::{Liveness, Modes, Order, Profile, Reach, RenewalPlan, TokenOrder};
use crate::telemetry::metrics::Metrics;
use crate::time::moment::Moment;
use crate::types::error::{Error, ErrorKind, Operation, Result};
use crate::types::mode::{Mode, Permits};
use crate::types::options::{Settings, Ttl, format_duration};

/// A client of a store. Clones share its connection and its background tasks.
///
/// Dropping the last clone and the last guard stops the background tasks without waiting for
/// releases; [`close`](Locks::close) waits.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// locks.until_connected().await?; // only a client of `connect_lazy` has to wait
/// println!("a dead holder's lock is freed {}", locks.profile().liveness);
/// let guard = locks.lock("orders/42").acquire().await?;
/// for holder in locks.inspect("orders/42").await?.holders {
///     println!("{} holds it, {:?}", holder.id, holder.label);
///     locks.evict("orders/42", &holder.id).await?; // an operator's last resort
/// }
/// guard.lost().await;
/// locks.close().await?; // waits for the releases of dropped guards
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Locks {
    pub(crate) connection: Connection,
}

/// The profile of a store before its first connection: it guarantees nothing.
static NOT_CONNECTED: Profile = Profile {
    store: "unknown",
    reach: Reach::Process,
    liveness: Liveness::Lease,
    renewal: RenewalPlan::ThirdOfTtl,
    longest_ttl: Ttl::MAX,
    order: Order::Any,
    modes: Modes { shared: false, permits: false },
    downgrade: false,
    tokens: TokenOrder::Process,
    max_local_handoffs: 1,
    cells: None,
    exclusion_fails_when: Cow::Borrowed(&["the store is not connected yet"]),
};

/// How long a latch or a barrier is kept after its last change.
const KEPT: Duration = Duration::from_secs(7 * 86_400);

/// How long the words of the last leader are kept.
const ELECTION_KEPT: Duration = Duration::from_secs(90 * 86_400);

/// The time for futures to end by themselves, and for closing the connection if the releases took the
/// whole bound.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

impl Locks {
    /// A client of `store` on the current tokio runtime; `redacted_url` is the store's name in errors
    /// and must not contain a secret. The runtime needs its I/O and time drivers (`enable_all`) and
    /// must run for as long as locks are held: it renews them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] outside a tokio runtime.
    pub fn new<S: DistributedLock>(
        store: Arc<S>,
        redacted_url: &str,
        settings: Settings,
    ) -> Result<Locks> {
        let cells = store.cells();
        let store = erased::erase(store);
        let runtime = current_runtime()?;
        let worker = Arc::new(RenewalWorker::default());
        let (woken, wake_ups) = tokio::sync::mpsc::unbounded_channel();
        let closing = CancellationToken::new();
        let running = worker.clone().run(store.clone(), wake_ups, closing.clone());
        let worker_task = runtime.spawn(running).abort_handle();
        let reaper = Reaper {
            store: store.clone(),
            runtime,
            tasks: TaskTracker::new(),
            unreachable_after: settings.unreachable_after,
            closing: closing.clone(),
            in_flight: Default::default(),
        };
        let metrics = Arc::new(Metrics::new(store.profile().store, settings.metrics_by_lock));
        let client = ClientInner {
            store,
            redacted_url: redacted_url.into(),
            settings,
            worker,
            woken,
            reaper: Arc::new(reaper),
            closing,
            was_closed: AtomicBool::new(false),
            metrics,
            worker_task,
            cells,
            registries: Default::default(),
        };
        Ok(Locks::of(Arc::new(client)))
    }

    pub(crate) fn of(client: Arc<ClientInner>) -> Locks {
        Locks { connection: Connection::Ready(client) }
    }

    /// Waits until the store is connected for the first time, for at most `unreachable_after`. Only a client from
    /// `connect_lazy` is not connected from the beginning. Whether the store answers now says
    /// [`health`](Locks::health).
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when no attempt succeeded in time, with the last one's error as
    /// its cause; the attempts continue. An error that a retry cannot fix, such as
    /// [`ErrorKind::Refused`], is returned at once; the next call then makes another attempt.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn until_connected(&self) -> Result<()> {
        let connected = self.connection.connected().await;
        connected.map(drop).map_err(|error| self.connection.explain(error, Operation::Connect))
    }

    /// The lock `name`, for one holder at a time. An invalid name is reported when the lock is
    /// acquired.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(&self.connection, LockKind::Lock, name.as_ref(), Ok(Mode::Exclusive))
    }

    /// The lock `name`, for many readers or one writer.
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock { connection: self.connection.clone(), name: name.as_ref().to_owned() }
    }

    /// The lock `name`, with `limit` permits in total. An acquisition takes one, unless
    /// [`permits`](Lock::permits) sets another number.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// let uploads = locks.semaphore("uploads", 3);
    /// let (small, large) = (uploads.acquire().await?, uploads.clone().permits(2).acquire().await?);
    /// assert!(uploads.try_acquire().await?.is_none());
    /// # Ok(()) }
    /// ```
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Lock {
        let mode = Permits::new(1, limit).map(Mode::Permits);
        Lock::new(&self.connection, LockKind::Semaphore, name.as_ref(), mode)
    }

    /// The cell `name`: a small value with compare-and-set.
    #[must_use]
    pub fn cell(&self, name: impl AsRef<str>) -> Cell {
        Cell::new(Handle::new(&self.connection, name.as_ref(), Kind::Cell, Keep::Forever))
    }

    /// The latch `name`, which opens when `count` participants, 1 to 1,024, have counted down. An
    /// invalid argument is reported by its first call.
    #[must_use]
    pub fn latch(&self, name: impl AsRef<str>, count: u32) -> Latch {
        let keep = Keep::For(KEPT);
        Latch::new(Handle::new(&self.connection, name.as_ref(), Kind::Latch, keep), count)
    }

    /// The barrier `name` for so many `parties`, 1 to 512. An invalid argument is reported by its first
    /// call.
    #[must_use]
    pub fn barrier(&self, name: impl AsRef<str>, parties: u32) -> Barrier {
        let keep = Keep::For(KEPT);
        Barrier::new(Handle::new(&self.connection, name.as_ref(), Kind::Barrier, keep), parties)
    }

    /// The counter `name`.
    #[must_use]
    pub fn counter(&self, name: impl AsRef<str>) -> Counter {
        Counter::new(Handle::new(&self.connection, name.as_ref(), Kind::Counter, Keep::Forever))
    }

    /// The job `name`, which runs once for each tick of a schedule, on whichever machine comes first. It
    /// holds the lock `name` meanwhile.
    pub fn once(&self, name: impl AsRef<str>) -> Once {
        let handle = Handle::new(&self.connection, name.as_ref(), Kind::Once, Keep::Forever);
        Once::new(handle, self.lock(name).without_handoffs())
    }

    /// The election `name`, whose leader holds the lock `name`.
    #[must_use]
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        let name = name.as_ref();
        let keep = Keep::For(ELECTION_KEPT);
        let handle = Handle::new(&self.connection, name, Kind::Election, keep);
        Election::new(&self.connection, name, handle, self.lock(name).without_handoffs())
    }

    /// Unique numbers under `name`, on every store.
    #[must_use]
    pub fn ids(&self, name: impl AsRef<str>) -> Ids {
        Ids::new(&self.connection, name.as_ref())
    }

    /// What is in a cell of the store itself, for the tests of a store.
    ///
    /// # Errors
    /// The store's.
    #[doc(hidden)]
    pub async fn read_cell(&self, name: impl AsRef<str>) -> Result<Option<Content>> {
        let (name, client) = self.connection.resolved(name.as_ref(), Operation::Read).await?;
        client.required_cells()?.0.read(&name, None).await
    }

    /// A swap of the store itself, for the tests of a store.
    ///
    /// # Errors
    /// The store's.
    #[doc(hidden)]
    pub async fn swap_cell(
        &self,
        name: impl AsRef<str>,
        from: Option<Stamp>,
        to: Option<&Content>,
        keep: Keep,
    ) -> Result<bool> {
        let (name, client) = self.connection.resolved(name.as_ref(), Operation::Write).await?;
        client.required_cells()?.0.swap(&name, from, to, keep).await
    }

    /// What the store guarantees. Before the first connection of `connect_lazy` that is nothing:
    /// await [`until_connected`](Locks::until_connected) first.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        self.connection.get().map_or(&NOT_CONNECTED, |client| client.store.profile())
    }

    /// The present moment on the store's clock, to compare with
    /// [`Guard::valid_until`](crate::Guard::valid_until). Zero before the first connection of
    /// `connect_lazy`, when no guard exists.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.connection.get().map_or(Moment::from_nanos(0), |client| client.now())
    }

    /// Closes the client: new and waiting acquisitions fail with [`ErrorKind::Closed`], held locks are
    /// lost and then released, and the connection ends, or the attempts to make one. Waits for
    /// releases in flight and for the end of the connection, together at most `unreachable_after`
    /// and a second.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when releases were not confirmed in time; their leases or the
    /// session free them.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn close(&self) -> Result<()> {
        let Some(client) = self.connection.close().await else { return Ok(()) };
        client.was_closed.store(true, Ordering::Relaxed);
        client.closing.cancel();
        client.worker.stop(client.now());
        client.reaper.tasks.close();
        let unreachable_after = client.settings.unreachable_after;
        let bound = client.now() + unreachable_after;
        let grace = bound.min(client.now() + CLOSE_GRACE);
        let mut drained = client.until(grace, client.reaper.tasks.wait()).await;
        if drained.is_none() {
            // Of futures that are not polled, such as in a `select!` with a long handler.
            client.store.stop_attempts();
            client.reaper.release_in_flight();
            drained = client.until(bound, client.reaper.tasks.wait()).await;
        }
        let drained = drained.ok_or_else(|| {
            let bound = format_duration(unreachable_after);
            Error::new(
                ErrorKind::Unreachable,
                format!("releases were not confirmed within unreachable_after={bound}"),
            )
        });
        // After a silence of the whole bound, the store gets only a short grace period.
        let bound = bound.max(client.now() + CLOSE_GRACE);
        let closed = client.until(bound, client.store.close()).await;
        let closed = closed.unwrap_or_else(|| Err(silent(unreachable_after, None)));
        let result = drained.and(closed);
        result.map_err(|error| error.during(Operation::Close).with_store(&client.redacted_url))
    }
}
