//! The memory store: locks between the tasks of one process, and the reference for every other.
//!
//! It keeps its promises on tokio's clock, so that a user's tests can pause and advance time. A
//! lock is a lease here too: with fixed leases, holds that end and waiters that are passed over
//! it behaves as a store across a network does.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::backend::{
    Acquisition, AttemptOutcome, DistributedLock, Participant, ParticipantId, ReleaseOutcome,
    RenewOutcome, Residue, Snapshot, WaiterCheck,
};
use crate::claim::{Claim, IfBusy, OwnerToken};
use crate::error::{Error, ErrorKind, Result};
use crate::locks::Locks;
use crate::mode::Mode;
use crate::name::LockName;
use crate::options::{Label, Settings};
use crate::profile::{Liveness, Modes, Order, Profile, Reach, RenewalPlan, TokenOrder};
use crate::token::FencingToken;
use crate::url::{Connecting, Scheme, StoreUrl};
use crate::validity::{Clock, Moment, TokioClock, lease_end};

/// `mem://`: a new, empty memory store at each connect.
pub const SCHEME: Scheme =
    Scheme { names: &["mem", "memory"], example: "mem://", connect, unanswered: None };

fn connect(url: StoreUrl) -> Connecting {
    Box::pin(async move {
        if !url.authority().is_empty() || !url.path().trim_matches('/').is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "mem:// takes no host and no path; each connect makes a store of its own, \
                 which Memory::locks shares within a program",
            ));
        }
        Memory::new().locks(url.params(&[])?.settings()?)
    })
}

/// A memory store. Clones are the same store, as if several services shared one server.
#[derive(Clone, Default)]
pub struct Memory {
    shelf: Arc<Shelf>,
}

impl Memory {
    /// An empty store.
    #[must_use]
    pub fn new() -> Memory {
        Memory::default()
    }

    /// Connects to this store: one "service" with its own settings.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] outside a tokio runtime.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// use fencelock_core::{Settings, memory::Memory};
    /// let store = Memory::new();
    /// let (one, two) = (store.locks(Settings::default())?, store.locks(Settings::default())?);
    /// let held = one.lock("job").acquire().await?;
    /// assert!(two.lock("job").try_acquire().await?.is_none());
    /// # drop(held); Ok(()) }
    /// ```
    pub fn locks(&self, settings: Settings) -> Result<Locks> {
        Locks::new(self.shelf.clone(), "mem://", settings)
    }

    /// How many locks have a holder or a waiter: for tests that nothing is left.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shelf.state().queues.len()
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

/// How long a waiter may take to confirm what a hand-off gave it, before it is passed over until
/// it asks again: a future that nobody polls must not hold up the queue.
const CONFIRM_WITHIN: Duration = Duration::from_secs(2);

static PROFILE: Profile = Profile {
    store: "memory",
    reach: Reach::Process,
    liveness: Liveness::Lease,
    renewal: RenewalPlan::ThirdOfTtl,
    longest_ttl: crate::options::Ttl::MAX,
    order: Order::Arrival,
    modes: Modes::ALL,
    tokens: TokenOrder::Process,
    exclusion_fails_when: Cow::Borrowed(&[]),
};

#[derive(Default)]
struct Shelf {
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

impl Shelf {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the queue of `key`, grants whoever fits now, and rings them after unlocking.
    fn change<T>(&self, key: &Arc<str>, change: impl FnOnce(&mut Turn<'_>) -> T) -> T {
        let now = self.clock.now();
        let (result, ring) = {
            let mut state = self.state();
            let State { queues, last_ticket, last_token } = &mut *state;
            let queue = queues.entry(key.clone()).or_default();
            let mut turn = Turn { queue, last_ticket, last_token, now, ring: Vec::new() };
            turn.drop_expired();
            let result = change(&mut turn);
            turn.serve();
            let ring = turn.ring;
            if queue.0.is_empty() {
                queues.remove(key);
            }
            (result, ring)
        };
        for claim in ring {
            claim.wake();
        }
        result
    }
}

/// Entries in arrival order; holders may stand anywhere, waiters are served from the front.
#[derive(Default)]
struct Queue(VecDeque<Entry>);

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
    /// Granted by a hand-off that was not confirmed in time; keeps its place, but is passed over.
    Lapsed,
    /// Granted until then, unless it confirms.
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
struct Turn<'a> {
    queue: &'a mut Queue,
    last_ticket: &'a mut u64,
    last_token: &'a mut u64,
    now: Moment,
    /// Whom to ring once the mutex is free.
    ring: Vec<Arc<Claim>>,
}

impl Turn<'_> {
    fn drop_expired(&mut self) {
        let now = self.now;
        for entry in &mut self.queue.0 {
            if let Stage::Granted { until, .. } = entry.stage
                && until <= now
            {
                entry.stage = Stage::Lapsed;
            }
        }
        self.queue.0.retain(|entry| match entry.stage {
            Stage::Held { until, .. } => until > now,
            // A claim that ended without its release, as on a runtime that was shut down.
            Stage::Waits | Stage::Lapsed => entry.claim.strong_count() > 0,
            Stage::Granted { .. } => true,
        });
    }

    fn find(&mut self, claim: &Claim) -> Option<&mut Entry> {
        self.queue.0.iter_mut().find(|entry| entry.owner == *claim.owner())
    }

    /// Grants waiters in order until one does not fit.
    fn serve(&mut self) {
        while let Some(next) = self.queue.0.iter().position(|entry| entry.stage == Stage::Waits) {
            let mode = self.queue.0[next].mode;
            let held = self.queue.0.iter().filter(|entry| entry.stage.until().is_some());
            if !mode.is_compatible_with(held.map(|entry| entry.mode)) {
                break;
            }
            *self.last_token += 1;
            let token = FencingToken::new(*self.last_token);
            let until = self.now + CONFIRM_WITHIN;
            let entry = &mut self.queue.0[next];
            entry.stage = Stage::Granted { token, until };
            self.ring.extend(entry.claim.upgrade());
        }
    }

    fn attempt(&mut self, claim: &Arc<Claim>) -> AttemptOutcome {
        if self.find(claim).is_none() {
            *self.last_ticket += 1;
            self.queue.0.push_back(Entry {
                ticket: *self.last_ticket,
                claim: Arc::downgrade(claim),
                owner: *claim.owner(),
                mode: claim.mode(),
                label: claim.label().clone(),
                since: self.now,
                stage: Stage::Waits,
            });
        }
        if let Some(entry) = self.find(claim)
            && entry.stage == Stage::Lapsed
        {
            entry.stage = Stage::Waits;
        }
        self.serve();
        // It hears of its own grant by this answer; ringing it would renew what it just got.
        self.ring.retain(|other| other.id() != claim.id());
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
                    self.queue.0.retain(|entry| entry.owner != *claim.owner());
                    AttemptOutcome::Busy { rest: Residue::Nothing }
                }
            },
        }
    }

    /// When to look again: as soon as a holder could expire, and soon enough to pass over whoever a
    /// later hand-off finds asleep.
    fn check_after(&self) -> Duration {
        let ends = self.queue.0.iter().filter_map(|entry| entry.stage.until());
        ends.map(|end| end.duration_since(self.now))
            .min()
            .unwrap_or(CONFIRM_WITHIN)
            .min(CONFIRM_WITHIN)
    }

    fn remove(&mut self, which: impl Fn(&Entry) -> bool) -> Option<Entry> {
        let at = self.queue.0.iter().position(which)?;
        self.queue.0.remove(at)
    }
}

impl DistributedLock for Shelf {
    type Acquisition = MemoryContender;

    fn profile(&self) -> &Profile {
        &PROFILE
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn enter(self: &Arc<Self>, claim: Arc<Claim>) -> MemoryContender {
        MemoryContender { shelf: self.clone(), claim }
    }

    async fn renew(&self, held: &MemoryContender) -> Result<RenewOutcome> {
        let claim = &held.claim;
        Ok(self.change(claim.name().shared_key(), |turn| {
            let now = turn.now;
            match turn.find(claim).map(|entry| &mut entry.stage) {
                // Still there, and that is all: an earlier end than is known moves nothing.
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

    async fn look(
        &self,
        lock: &LockName,
        waiting: &[&MemoryContender],
    ) -> Result<Vec<WaiterCheck>> {
        let (asleep, again) = self.change(lock.shared_key(), |turn| {
            let waits = turn.queue.0.iter().filter(|entry| entry.stage == Stage::Waits);
            (waits.map(|entry| entry.owner).collect::<HashSet<_>>(), turn.check_after())
        });
        let look = |waiter: &&MemoryContender| match asleep.contains(waiter.claim.owner()) {
            true => WaiterCheck::Again(again),
            false => WaiterCheck::Attempt,
        };
        Ok(waiting.iter().map(look).collect())
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        Ok(self.change(name.shared_key(), |turn| {
            let now = turn.now;
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
                turn.queue.0.iter().partition(|entry| entry.stage.until().is_some());
            Snapshot::new(
                holders.into_iter().map(participant).collect(),
                waiters.into_iter().map(participant).collect(),
            )
        }))
    }

    async fn evict(&self, name: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
        let evicted = self.change(name.shared_key(), |turn| {
            turn.remove(|entry| entry.ticket.to_string() == who.as_str())
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

struct MemoryContender {
    shelf: Arc<Shelf>,
    claim: Arc<Claim>,
}

impl Acquisition for MemoryContender {
    fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    async fn attempt(&self) -> Result<AttemptOutcome> {
        let key = self.claim.name().shared_key();
        Ok(self.shelf.change(key, |turn| turn.attempt(&self.claim)))
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        let key = self.claim.name().shared_key();
        let removed =
            self.shelf.change(key, |turn| turn.remove(|entry| entry.owner == *self.claim.owner()));
        Ok(if removed.is_some() { ReleaseOutcome::Removed } else { ReleaseOutcome::Absent })
    }
}
