//! Cells: small values with compare-and-swap, which outlive their writers.
//!
//! A store that has them implements [`CellStore`]: two methods, and a third that depends on whether it can end
//! data by time. Latches, barriers, counters, `once` and elections are made of them here, once for all such
//! stores. A cell is compared by the *stamp* of the
//! write that made it, never by its content: a content can come back, a stamp cannot.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::store::claim::WatchHandle;
use crate::sync::Mutex;
use crate::types::error::Result;
use crate::types::name::LockName;

/// The optional part of a store: values with compare-and-swap.
///
/// All methods are linearizable, bounded in time, and repeatable: a reply can always be lost. A cell
/// and a lock of the same name have nothing to do with each other. The methods are implemented as
/// `async fn`.
pub trait CellStore: Send + Sync + 'static {
    /// The cell's content; `None` when there is none. With a `notifier`, also has it
    /// [notified](Notifier::notify) once, at or after the next change: no change may come between the
    /// reading and the watching. A change may be notified more than once, and without a reason.
    ///
    /// # Errors
    /// Any; the core retries after a [retryable](crate::Error::is_retryable) one.
    fn read(
        &self,
        cell: &LockName,
        notifier: Option<&Arc<Notifier>>,
    ) -> impl Future<Output = Result<Option<Content>>> + Send;

    /// Writes `to`, or removes the cell, if its stamp is `from`; `None` stands for a cell that is not
    /// there. `true` when that was done, or when the content with the stamp of `to` is there already:
    /// a repeated swap is the same swap. `keep` says how long a store that can end data by time keeps it.
    ///
    /// # Errors
    /// Any; after a [retryable](crate::Error::is_retryable) one it is unknown whether the swap was
    /// made, and the core finds out.
    fn swap(
        &self,
        cell: &LockName,
        from: Option<Stamp>,
        to: Option<&Content>,
        keep: Keep,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Takes the space of a cell of any content, so that a later swap needs none: a job that runs once is not to
    /// run in vain because the disk was full before. By default nothing: where a full store grants no lock
    /// either, no job begins.
    ///
    /// # Errors
    /// Any; the core retries after a [retryable](crate::Error::is_retryable) one.
    fn reserve(&self, _cell: &LockName) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// Whether the store removes what is kept for a time, after that time, by itself. By default it does not:
    /// then the core writes the end into the content, and the clock of each client judges it.
    fn ends_by_time(&self) -> bool {
        false
    }

    /// The keys of the cells that begin with `prefix`, of a store that cannot end data by time: the core
    /// reads them for an operator who removes the expired ones. There may be keys among them
    /// of which there is no cell. `None`, the default, when there is nothing to remove.
    ///
    /// # Errors
    /// Any; the core retries after a [retryable](crate::Error::is_retryable) one.
    fn list(&self, _prefix: &str) -> impl Future<Output = Result<Option<Vec<String>>>> + Send {
        std::future::ready(Ok(None))
    }
}

/// Identifies one write of a cell: 16 random bytes, fresh for each.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp([u8; 16]);

impl Stamp {
    /// The length in bytes.
    pub const BYTES: usize = 16;

    pub(crate) fn fresh() -> Stamp {
        Stamp(Uuid::new_v4().into_bytes())
    }

    /// The stamp as it was stored.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Stamp::BYTES]) -> Stamp {
        Stamp(bytes)
    }

    /// The bytes to store.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; Stamp::BYTES] {
        &self.0
    }
}

/// As 32 hexadecimal digits.
impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Uuid::from_bytes(self.0).simple(), f)
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What is in a cell.
#[derive(Clone, PartialEq, Eq)]
pub struct Content {
    /// The write that made it.
    pub stamp: Stamp,
    /// At most [`Content::MAX_BYTES`], in a format of the core.
    pub bytes: Vec<u8>,
}

impl Content {
    /// The largest content, in bytes, that a store has to take.
    pub const MAX_BYTES: usize = 16 * 1024;
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Content({}, {} bytes)", self.stamp, self.bytes.len())
    }
}

/// How long a cell is kept after its last change. A store that cannot end data by time keeps it for
/// ever: the core ignores what is too old, if that matters, and replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keep {
    /// At least this long; a store may lose it in a power failure.
    For(Duration),
    /// Until it is removed.
    Forever,
}

/// How a store reports that a cell has changed.
pub struct Notifier {
    notify: Notify,
    runtime: Handle,
    watch: Mutex<Option<WatchHandle>>,
}

impl Notifier {
    pub(crate) fn new(runtime: Handle) -> Arc<Notifier> {
        Arc::new(Notifier { notify: Notify::new(), runtime, watch: Mutex::default() })
    }

    /// Reports a change, or that one may have been missed, such as after a reconnect. Never blocks;
    /// any thread may call it.
    pub fn notify(&self) {
        self.notify.notify_one();
    }

    /// Reports a change when `event` completes, such as a watch that fires. The task has only a weak
    /// reference to the notifier; it ends with it, and with the next call of this method.
    pub fn notify_when(self: &Arc<Self>, event: impl Future<Output = ()> + Send + 'static) {
        let notifier = Arc::downgrade(self);
        let task = self.runtime.spawn(async move {
            event.await;
            if let Some(notifier) = notifier.upgrade() {
                notifier.notify();
            }
        });
        // Dropped outside of the mutex: the end of a watch may send requests.
        let _before = self.watch.lock().replace(WatchHandle::of(&task));
    }

    /// Completes after the next report, or at once if there was one since the last time.
    pub(crate) async fn notified(&self) {
        self.notify.notified().await;
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier").finish_non_exhaustive()
    }
}

/// A [`CellStore`] without its type: what [`DistributedLock::cells`](crate::DistributedLock::cells) returns.
#[derive(Clone)]
pub struct Cells(pub(crate) Arc<dyn ErasedCells>);

impl Cells {
    /// The cells of `store`.
    pub fn of<S: CellStore>(store: Arc<S>) -> Cells {
        Cells(store)
    }
}

impl fmt::Debug for Cells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cells").finish_non_exhaustive()
    }
}

pub(crate) trait ErasedCells: Send + Sync {
    fn read<'a>(
        &'a self,
        cell: &'a LockName,
        notifier: Option<&'a Arc<Notifier>>,
    ) -> BoxFuture<'a, Result<Option<Content>>>;
    fn swap<'a>(
        &'a self,
        cell: &'a LockName,
        from: Option<Stamp>,
        to: Option<&'a Content>,
        keep: Keep,
    ) -> BoxFuture<'a, Result<bool>>;
    fn reserve<'a>(&'a self, cell: &'a LockName) -> BoxFuture<'a, Result<()>>;
    fn ends_by_time(&self) -> bool;
    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Option<Vec<String>>>>;
}

impl<S: CellStore> ErasedCells for S {
    fn read<'a>(
        &'a self,
        cell: &'a LockName,
        notifier: Option<&'a Arc<Notifier>>,
    ) -> BoxFuture<'a, Result<Option<Content>>> {
        Box::pin(CellStore::read(self, cell, notifier))
    }

    fn swap<'a>(
        &'a self,
        cell: &'a LockName,
        from: Option<Stamp>,
        to: Option<&'a Content>,
        keep: Keep,
    ) -> BoxFuture<'a, Result<bool>> {
        Box::pin(CellStore::swap(self, cell, from, to, keep))
    }

    fn reserve<'a>(&'a self, cell: &'a LockName) -> BoxFuture<'a, Result<()>> {
        Box::pin(CellStore::reserve(self, cell))
    }

    fn ends_by_time(&self) -> bool {
        CellStore::ends_by_time(self)
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Option<Vec<String>>>> {
        Box::pin(CellStore::list(self, prefix))
    }
}
