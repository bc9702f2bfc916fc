//! The memory store: locks between the tasks of one process, and the reference for every other.
//!
//! It measures validity on tokio's clock, so that a user's tests can pause and advance time. A
//! lock is a lease here too: with fixed leases, holds that expire and waiters that are skipped, it
//! behaves like a store across a network.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::locks::Locks;
use crate::store::claim::{Claim, IfBusy, OwnerToken};
use crate::store::distributed_lock::{
    Acquisition, AttemptOutcome, DistributedLock, Participant, ParticipantId, ReleaseOutcome,
    RenewOutcome, Residue, Snapshot, WaiterCheck,
};
use crate::store::profile::{Liveness, Modes, Order, Profile, Reach, RenewalPlan, TokenOrder};
use crate::sync::Mutex;
use crate::time::moment::{Clock, Moment, TokioClock, lease_end};
use crate::types::error::{Result, invalid};
use crate::types::mode::Mode;
use crate::types::name::LockName;
use crate::types::options::{Label, Settings, Ttl};
use crate::types::token::FencingToken;
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

/// How long a waiter may take to confirm a hand-off before it is skipped until it attempts again: a
/// future that is not polled must not block the queue.
const CONFIRM_WITHIN: Duration = Duration::from_secs(2);

static PROFILE: Profile = Profile {
    store: "memory",
    reach: Reach::Process,
    liveness: Liveness::Lease,
    renewal: RenewalPlan::ThirdOfTtl,
    longest_ttl: Ttl::MAX,
    order: Order::Arrival,
    modes: Modes::ALL,
    tokens: TokenOrder::Process,
    exclusion_fails_when: Cow::Borrowed(&[]),
};

#[derive(Default)]
struct Store {
    clock: TokioClock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Only locks with a holder or waiter: an empty queue is removed.
    queues: HashMap<Arc<str>, Queue>,
    last_ticket: u64,
    last_token: u64,
}

impl Store {
    /// Changes the queue of `key`, grants the waiters that fit now, and wakes them after unlocking.
    fn change<T>(&self, key: &Arc<str>, change: impl FnOnce(&mut LockedQueue<'_>) -> T) -> T {
        let now = self.clock.now();
        let (result, wake) = {
            let mut state = self.state.lock();
            let State { queues, last_ticket, last_token } = &mut *state;
            let entries = queues.entry(key.clone()).or_default();
            let mut queue = LockedQueue { entries, last_ticket, last_token, now, wake: Vec::new() };
            queue.drop_expired();
            let result = change(&mut queue);
            queue.serve();
            let wake = queue.wake;
            if entries.is_empty() {
                queues.remove(key);
            }
            (result, wake)
        };
        for claim in wake {
            claim.wake();
        }
        result
    }
}

/// Entries in arrival order; holders may be anywhere, waiters are served from the front.
type Queue = VecDeque<Entry>;

struct Entry {
    ticket: u64,
    claim: Weak<Claim>,
    owner: OwnerToken,
    mode: Mode,
    label: Label,
    since: Moment,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waits,
    /// Granted by a hand-off that was not confirmed in time; keeps its place, but is skipped.
    Lapsed,
    /// Granted by a hand-off, to be confirmed before `until`.
    Granted {
        token: FencingToken,
        until: Moment,
    },
    Held {
        token: FencingToken,
        until: Moment,
    },
}

impl Stage {
    fn until(self) -> Option<Moment> {
        match self {
            Stage::Waits | Stage::Lapsed => None,
            Stage::Granted { until, .. } | Stage::Held { until, .. } => Some(until),
        }
    }
}

/// One queue under the store's mutex.
struct LockedQueue<'a> {
    entries: &'a mut Queue,
    last_ticket: &'a mut u64,
    last_token: &'a mut u64,
    now: Moment,
    /// The claims to wake once the mutex is unlocked.
    wake: Vec<Arc<Claim>>,
}

impl LockedQueue<'_> {
    fn drop_expired(&mut self) {
        let now = self.now;
        for entry in self.entries.iter_mut() {
            if let Stage::Granted { until, .. } = entry.stage
                && until <= now
            {
                entry.stage = Stage::Lapsed;
            }
        }
        self.entries.retain(|entry| match entry.stage {
            Stage::Held { until, .. } => until > now,
            // A claim that ended without its release, for example on a runtime that was shut down.
            Stage::Waits | Stage::Lapsed => entry.claim.strong_count() > 0,
            Stage::Granted { .. } => true,
        });
    }

    fn find(&mut self, claim: &Claim) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.owner == *claim.owner())
    }

    /// Grants waiters in order until one does not fit.
    fn serve(&mut self) {
        while let Some(next) = self.entries.iter().position(|entry| entry.stage == Stage::Waits) {
            let mode = self.entries[next].mode;
            let held = self.entries.iter().filter(|entry| entry.stage.until().is_some());
            if !mode.is_compatible_with(held.map(|entry| entry.mode)) {
                break;
            }
            *self.last_token += 1;
            let token = FencingToken::new(*self.last_token);
            let until = self.now + CONFIRM_WITHIN;
            let entry = &mut self.entries[next];
            entry.stage = Stage::Granted { token, until };
            self.wake.extend(entry.claim.upgrade());
        }
    }

    fn attempt(&mut self, claim: &Arc<Claim>) -> AttemptOutcome {
        match self.find(claim) {
            Some(entry) if entry.stage == Stage::Lapsed => entry.stage = Stage::Waits,
            Some(_) => {}
            None => {
                *self.last_ticket += 1;
                self.entries.push_back(Entry {
                    ticket: *self.last_ticket,
                    claim: Arc::downgrade(claim),
                    owner: *claim.owner(),
                    mode: claim.mode(),
                    label: claim.label().clone(),
                    since: self.now,
                    stage: Stage::Waits,
                });
            }
        }
        self.serve();
        // This answer carries its own grant; waking it would renew the new grant at once.
        self.wake.retain(|other| other.id() != claim.id());
        let now = self.now;
        let check_after = self.check_after();
        let Some(entry) = self.find(claim) else {
            return AttemptOutcome::Busy { rest: Residue::Nothing };
        };
        match entry.stage {
            Stage::Granted { token, .. } | Stage::Held { token, .. } => {
                if let Stage::Granted { .. } = entry.stage {
                    entry.since = now;
                }
                entry.stage = Stage::Held { token, until: now + claim.ttl() };
                AttemptOutcome::Granted { token, valid_until: lease_end(now, claim.ttl()) }
            }
            Stage::Waits | Stage::Lapsed => match claim.if_busy() {
                IfBusy::Queue => AttemptOutcome::Waiting { check_after },
                IfBusy::Refuse => {
                    self.entries.retain(|entry| entry.owner != *claim.owner());
                    AttemptOutcome::Busy { rest: Residue::Nothing }
                }
            },
        }
    }

    /// When to check again: as soon as a holder could expire, and soon enough to skip a waiter that
    /// does not confirm a later hand-off.
    fn check_after(&self) -> Duration {
        let ends = self.entries.iter().filter_map(|entry| entry.stage.until());
        ends.map(|end| end.duration_since(self.now))
            .min()
            .unwrap_or(CONFIRM_WITHIN)
            .min(CONFIRM_WITHIN)
    }

    fn remove(&mut self, which: impl Fn(&Entry) -> bool) -> Option<Entry> {
        let at = self.entries.iter().position(which)?;
        self.entries.remove(at)
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
        let claim = &held.claim;
        Ok(self.change(claim.name().shared_key(), |queue| {
            let now = queue.now;
            match queue.find(claim).map(|entry| &mut entry.stage) {
                // Only confirms the hold: an end before the known one changes nothing.
                Some(Stage::Held { .. }) if claim.is_fixed_lease() => {
                    RenewOutcome::Renewed { valid_until: now }
                }
                Some(Stage::Held { until, .. }) => {
                    *until = now + claim.ttl();
                    RenewOutcome::Renewed { valid_until: lease_end(now, claim.ttl()) }
                }
                _ => RenewOutcome::Lost,
            }
        }))
    }

    async fn check_waiters(
        &self,
        lock: &LockName,
        waiting: &[&MemoryAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        let (waiting_owners, again) = self.change(lock.shared_key(), |queue| {
            let waits = queue.entries.iter().filter(|entry| entry.stage == Stage::Waits);
            (waits.map(|entry| entry.owner).collect::<HashSet<_>>(), queue.check_after())
        });
        let check =
            |waiter: &&MemoryAcquisition| match waiting_owners.contains(waiter.claim.owner()) {
                true => WaiterCheck::Again(again),
                false => WaiterCheck::Attempt,
            };
        Ok(waiting.iter().map(check).collect())
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        Ok(self.change(name.shared_key(), |queue| {
            let now = queue.now;
            let participant = |entry: &Entry| {
                let id = ParticipantId::new(entry.ticket.to_string());
                let known = Participant::new(id, entry.mode)
                    .labelled(entry.label.clone())
                    .since(now.duration_since(entry.since));
                match entry.stage {
                    Stage::Held { token, .. } | Stage::Granted { token, .. } => known.token(token),
                    Stage::Waits | Stage::Lapsed => known,
                }
            };
            let (holders, waiters): (Vec<&Entry>, Vec<&Entry>) =
                queue.entries.iter().partition(|entry| entry.stage.until().is_some());
            Snapshot::new(
                holders.into_iter().map(participant).collect(),
                waiters.into_iter().map(participant).collect(),
            )
        }))
    }

    async fn evict(&self, name: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
        let evicted = self.change(name.shared_key(), |queue| {
            queue.remove(|entry| entry.ticket.to_string() == who.as_str())
        });
        let Some(entry) = evicted else { return Ok(ReleaseOutcome::Absent) };
        if let Some(claim) = entry.claim.upgrade() {
            claim.wake();
        }
        Ok(ReleaseOutcome::Removed)
    }

    async fn close(&self) -> Result<()> {
        Ok(())
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
        let key = self.claim.name().shared_key();
        Ok(self.store.change(key, |queue| queue.attempt(&self.claim)))
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        let key = self.claim.name().shared_key();
        let removed = self
            .store
            .change(key, |queue| queue.remove(|entry| entry.owner == *self.claim.owner()));
        Ok(if removed.is_some() { ReleaseOutcome::Removed } else { ReleaseOutcome::Absent })
    }
}
