//! The memory store: locks between the tasks of one process, and the reference for every other.
//!
//! It measures validity on tokio's clock, so that a user's tests can pause and advance time. A
//! lock is a lease here too: with fixed leases, holds that expire and waiters that are skipped, it
//! behaves like a store across a network.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Weak};

use crate::locks::Locks;
use crate::store::cell_store::{CellStore, Cells, Content, Keep, Notifier, Stamp};
use crate::store::claim::Claim;
use crate::store::distributed_lock::{
    Acquisition, AttemptOutcome, DistributedLock, ParticipantId, ReleaseOutcome, RenewOutcome,
    Snapshot, WaiterCheck,
};
use crate::store::profile::{
    CellDurability, Liveness, Modes, Order, Profile, Reach, RenewalPlan, TokenOrder,
};
use crate::store::queue::{LastNumbers, Now, Queue, QueueStep};
use crate::sync::Mutex;
use crate::time::moment::{Clock, TokioClock};
use crate::types::error::{Result, invalid};
use crate::types::name::LockName;
use crate::types::options::{MOST_LOCAL_HANDOFFS, Settings, Ttl};
use crate::url::{Connecting, Scheme, StoreUrl};

/// `mem://`: a new, empty memory store at each connect.
pub const SCHEME: Scheme =
    Scheme { names: &["mem", "memory"], example: "mem://", connect, unanswered: None };

fn connect(url: StoreUrl) -> Connecting {
    Box::pin(async move {
        if !url.authority().is_empty() || !url.path().trim_matches('/').is_empty() {
            return Err(invalid(
                "mem:// takes no host and no path; each connect makes a store of its own, \
                 which Memory::locks shares within a program",
            ));
        }
        Memory::new().locks(url.params(&[])?.settings()?)
    })
}

/// A memory store. Clones share the same store, as services share one server.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// use fencelock::Settings;
/// # use fencelock_core::memory::Memory;
/// let store = Memory::new();
/// let locks = store.locks(Settings::default())?;
/// drop(locks.lock("job").acquire().await?);
/// locks.close().await?; // waits for the release
/// assert!(store.is_empty(), "the service leaves nothing");
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Memory {
    store: Arc<Store>,
}

impl Memory {
    /// An empty store.
    #[must_use]
    pub fn new() -> Memory {
        Memory::default()
    }

    /// A new client of this store, with its own settings.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) outside a tokio runtime.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # use fencelock_core as fencelock;
    /// # use fencelock_core::memory::Memory;
    /// use fencelock::Settings;
    /// let store = Memory::new();
    /// let (one, two) = (store.locks(Settings::default())?, store.locks(Settings::default())?);
    /// let held = one.lock("job").acquire().await?;
    /// assert!(two.lock("job").try_acquire().await?.is_none());
    /// # drop(held); Ok(()) }
    /// ```
    pub fn locks(&self, settings: Settings) -> Result<Locks> {
        Locks::new(self.store.clone(), "mem://", settings)
    }

    /// The number of locks that have a holder or a waiter, for tests that nothing is left.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store.state.lock().queues.len()
    }

    /// Whether no lock has a holder or a waiter.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("locks", &self.len()).finish()
    }
}

static PROFILE: Profile = Profile {
    store: "memory",
    reach: Reach::Process,
    liveness: Liveness::Lease,
    renewal: RenewalPlan::ThirdOfTtl,
    longest_ttl: Ttl::MAX,
    order: Order::Arrival,
    modes: Modes::ALL,
    downgrade: true,
    tokens: TokenOrder::Process,
    max_local_handoffs: MOST_LOCAL_HANDOFFS,
    cells: Some(CellDurability::Process),
    exclusion_fails_when: Cow::Borrowed(&[]),
};

#[derive(Default)]
struct Store {
    clock: TokioClock,
    state: Mutex<State>,
    cells: Mutex<HashMap<Arc<str>, MemoryCell>>,
}

#[derive(Default)]
struct State {
    /// Only locks with a holder or waiter: an empty queue is removed.
    queues: HashMap<Arc<str>, Queue<Weak<Claim>>>,
    last: LastNumbers,
}

impl Store {
    /// Changes the queue of `lock`, and wakes whom the change says after unlocking.
    fn change<T>(
        &self,
        lock: &LockName,
        change: impl FnOnce(&mut QueueStep<'_, Weak<Claim>>) -> T,
    ) -> T {
        let now = Now::in_process(&self.clock);
        let (result, woken) = {
            let mut state = self.state.lock();
            let State { queues, last } = &mut *state;
            // Looked up once: hashing the name is a good part of what a change costs.
            let mut entry = match queues.entry(lock.shared_key().clone()) {
                Entry::Occupied(entry) => entry,
                Entry::Vacant(entry) => entry.insert_entry(Queue::default()),
            };
            let changed = entry.get_mut().change(now, last, |queue| {
                // A claim can end without its release, on a runtime that was shut down.
                queue.entries.retain(|it| it.is_granted() || it.waker.strong_count() > 0);
                change(queue)
            });
            if entry.get().entries.is_empty() {
                entry.remove();
            }
            changed
        };
        for claim in woken.iter().filter_map(Weak::upgrade) {
            claim.wake();
        }
        result
    }
}

impl DistributedLock for Store {
    type Acquisition = MemoryAcquisition;

    fn profile(&self) -> &Profile {
        &PROFILE
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn begin(self: &Arc<Self>, claim: Arc<Claim>) -> MemoryAcquisition {
        MemoryAcquisition { store: self.clone(), claim }
    }

    async fn renew(&self, held: &MemoryAcquisition) -> Result<RenewOutcome> {
        Ok(self.change(held.claim.name(), |queue| queue.renew(&held.claim)))
    }

    async fn check_waiters(
        &self,
        lock: &LockName,
        waiting: &[&MemoryAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        let claims = waiting.iter().map(|waiter| &*waiter.claim);
        Ok(self.change(lock, |queue| queue.check(claims)))
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        Ok(self.change(name, |queue| queue.snapshot()))
    }

    async fn evict(&self, name: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
        Ok(self.change(name, |queue| queue.evict(who)))
    }

    fn cells(self: &Arc<Self>) -> Option<Cells> {
        Some(Cells::of(self.clone()))
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// A cell, and whom to notify of its next change.
#[derive(Default)]
struct MemoryCell {
    content: Option<Content>,
    notifiers: Vec<Weak<Notifier>>,
}

impl MemoryCell {
    /// It has no content, and no client watches it.
    fn is_over(&self) -> bool {
        self.content.is_none() && self.notifiers.iter().all(|it| it.strong_count() == 0)
    }
}

impl CellStore for Store {
    async fn read(
        &self,
        cell: &LockName,
        notifier: Option<&Arc<Notifier>>,
    ) -> Result<Option<Content>> {
        let mut cells = self.cells.lock();
        if cells.len() == cells.capacity() {
            cells.retain(|_, cell| !cell.is_over());
        }
        let Some(notifier) = notifier else {
            return Ok(cells.get(cell.key()).and_then(|cell| cell.content.clone()));
        };
        let cell = cells.entry(cell.shared_key().clone()).or_default();
        let wanted = Arc::downgrade(notifier);
        cell.notifiers.retain(|it| it.strong_count() > 0 && !it.ptr_eq(&wanted));
        cell.notifiers.push(wanted);
        Ok(cell.content.clone())
    }

    async fn swap(
        &self,
        cell: &LockName,
        from: Option<Stamp>,
        to: Option<&Content>,
        _: Keep,
    ) -> Result<bool> {
        let mut cells = self.cells.lock();
        let there = cells.get(cell.key()).and_then(|cell| cell.content.as_ref());
        let there = there.map(|content| content.stamp);
        if there != from {
            return Ok(to.is_some_and(|to| there == Some(to.stamp)));
        }
        let entry = cells.entry(cell.shared_key().clone()).or_default();
        entry.content = to.cloned();
        let notifiers = std::mem::take(&mut entry.notifiers);
        if to.is_none() {
            cells.remove(cell.key());
        }
        drop(cells);
        for notifier in notifiers.iter().filter_map(Weak::upgrade) {
            notifier.notify();
        }
        Ok(true)
    }
}

struct MemoryAcquisition {
    store: Arc<Store>,
    claim: Arc<Claim>,
}

impl Acquisition for MemoryAcquisition {
    fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    async fn attempt(&self) -> Result<AttemptOutcome> {
        let claim = &self.claim;
        let attempt = |queue: &mut QueueStep<'_, _>| queue.attempt(claim, Arc::downgrade(claim));
        Ok(self.store.change(claim.name(), attempt))
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        Ok(self.store.change(self.claim.name(), |queue| queue.release(&self.claim)))
    }

    async fn downgrade(&self) -> Result<RenewOutcome> {
        Ok(self.store.change(self.claim.name(), |queue| queue.downgrade(&self.claim)))
    }
}
