//! The connected file store.
//!
//! Its locks need no renewal: a holder holds for as long as its pipe is open. What is left to do
//! from time to time is to pass over a waiter whose turn has come and that does not take it, as a
//! stopped process: every waiting claim looks once a second, without the latch.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::{
    BootClock, Claim, Clock, Contender, DistributedLock, Error, ErrorKind, FencingToken, Liveness,
    LockName, Look, Modes, Occupant, OccupantId, Order, Profile, Reach, Removal, Renewal,
    RenewalPlan, Result, Snapshot, Tokens, Ttl,
};
use tokio::sync::oneshot;

use crate::contender::FileContender;
use crate::door::Door;
use crate::error::forked;
use crate::inheritance;
use crate::latch::{Latched, Stop};
use crate::pipe;
use crate::place::{Ground, Peek, Place};
use crate::platform::centiseconds;
use crate::queue;
use crate::wake::Wake;

/// How often a waiter looks whether somebody ahead of it has stopped.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long a look or a renewal may take.
const REQUEST: Duration = Duration::from_secs(2);
/// How long a waiter may leave a lock alone that is its own to take. A little less than two
/// looks, so that the second one finds it.
const PATIENCE: Duration = Duration::from_millis(1_800);
/// From how many locks on those that nobody uses are forgotten.
const MANY_PLACES: usize = 256;

static ON_DISK: Profile = profile(Tokens::Data);
static IN_MEMORY: Profile = profile(Tokens::Boot);

const fn profile(tokens: Tokens) -> Profile {
    Profile {
        store: "file",
        reach: Reach::Machine,
        liveness: Liveness::Process,
        renewal: RenewalPlan::None,
        longest_ttl: Ttl::MAX,
        order: Order::Arrival,
        modes: Modes::ALL,
        tokens,
        exclusion_fails_when: Cow::Borrowed(&[
            "the lock's files are deleted, replaced or edited by hand while it is held",
            "a person breaks the lock, until its holder has heard of it",
        ]),
    }
}

/// What all claims of a connected store share.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) ground: Arc<Ground>,
    pub(crate) door: Door,
    process: u32,
    clock: BootClock,
    places: Mutex<Places>,
}

#[derive(Debug)]
struct Places {
    by_key: HashMap<Arc<str>, Arc<Place>>,
    tidy_at: usize,
}

impl Store {
    pub(crate) fn new(ground: Ground, door: Door, clock: BootClock) -> Store {
        let places = Places { by_key: HashMap::new(), tidy_at: MANY_PLACES };
        Store {
            ground: Arc::new(ground),
            door,
            process: std::process::id(),
            clock,
            places: Mutex::new(places),
        }
    }

    /// Refuses to work in a forked child: it shares its parent's descriptors, and with them the
    /// latch and the signs of life.
    pub(crate) fn same_process(&self) -> Result<()> {
        match std::process::id() == self.process {
            true => Ok(()),
            false => Err(forked()),
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, key: &Arc<str>) -> Arc<Place> {
        let mut places = self.places();
        if let Some(place) = places.by_key.get(key) {
            return place.clone();
        }
        if places.by_key.len() >= places.tidy_at {
            let unused = places.by_key.extract_if(|_, place| Arc::strong_count(place) == 1);
            unused.for_each(|(_, place)| drop(place.leave()));
            places.tidy_at = MANY_PLACES.max(places.by_key.len() * 2);
        }
        let place = Arc::new(Place::new(self.ground.clone(), key.clone()));
        places.by_key.insert(key.clone(), place.clone());
        place
    }

    /// Closes the files of all locks.
    fn leave(&self) -> Vec<oneshot::Receiver<()>> {
        let places = std::mem::take(&mut self.places().by_key);
        places.values().map(Place::leave).collect()
    }

    /// What one look at `place` says to all that wait there.
    async fn look_at(self: &Arc<Self>, place: Arc<Place>) -> Result<Seen> {
        self.same_process()?;
        let queue = match place.peek().await? {
            Peek::Queue(queue) => queue,
            Peek::Busy => return Ok(Seen::Nothing),
            Peek::Gone => return Ok(Seen::Gone),
        };
        let next = queue.next_to_hold();
        let stalled = next.filter(|next| next + 1 < queue.entries.len());
        let stalled = stalled.map(|next| queue.entries[next].ticket);
        if let Some(ticket) = place.stalled_for(stalled, self.clock.now(), PATIENCE) {
            let (store, at) = (self.clone(), place.clone());
            let pass_over = move |latched: Latched<'_>| store.pass_over(&at, latched, ticket);
            place.latched_if_there(pass_over).await?;
            return Ok(Seen::Gone);
        }
        let tickets = queue.entries.iter().map(|entry| entry.ticket).collect();
        Ok(Seen::Queue { tickets, next: next.map(|next| queue.entries[next].ticket) })
    }

    /// Takes the place of a waiter that leaves a free lock alone. When it goes on, it finds its
    /// place gone and queues again.
    fn pass_over(&self, place: &Place, mut latched: Latched<'_>, ticket: u64) -> Result<(), Stop> {
        let queue = latched.queue();
        let at = queue.next_to_hold().filter(|at| queue.entries[*at].ticket == ticket);
        let Some(at) = at else { return Ok(()) };
        let gone = queue.entries.remove(at);
        let mut wake = Wake::default();
        wake.after_removal(queue, &gone, place);
        wake.without_closing();
        latched.commit()?;
        drop(latched);
        self.door.ring(gone.door, place.caller(gone.ticket));
        wake.send(&self.door);
        Ok(())
    }

    /// The answer to a request, unless it takes too long.
    async fn in_time<T>(&self, request: impl Future<Output = T>) -> Option<T> {
        let bound = self.clock.now().after(REQUEST);
        tokio::select! {
            biased;
            answer = request => Some(answer),
            () = self.clock.sleep_until(bound) => None,
        }
    }

    fn inspect(&self, mut latched: Latched<'_>) -> Result<Snapshot, Stop> {
        // Labels are in files.
        latched.needs_disk()?;
        let entries = latched.queue().entries.clone();
        let files = latched.files()?;
        let state = files.state()?;
        let own_labels: Vec<_> = entries
            .iter()
            .map(|entry| if entry.labelled { state.read_label(entry.slot) } else { None })
            .collect();
        drop(latched);
        let now = centiseconds();
        let (mut holders, mut waiters) = (Vec::new(), Vec::new());
        for (entry, label) in entries.iter().zip(own_labels) {
            // Whoever waits next removes it.
            if matches!(pipe::watch(files.dir(), entry.slot), Ok(None)) {
                continue;
            }
            let label = label.or_else(|| match entry.labelled {
                true => None,
                false => self.door.label_at(entry.door, entry.since),
            });
            let mut occupant = Occupant::new(OccupantId::new(entry.ticket.to_string()), entry.mode)
                .since(since(entry, now));
            if let Some(label) = label {
                occupant = occupant.labelled(label);
            }
            match entry.held {
                // Of a holder of a queue that was lost it is not known.
                true if entry.token == 0 => holders.push(occupant),
                true => holders.push(occupant.token(FencingToken::new(entry.token))),
                false => waiters.push(occupant),
            }
        }
        Ok(Snapshot::new(holders, waiters))
    }

    fn evict(&self, place: &Place, mut latched: Latched<'_>, ticket: u64) -> Result<Removal, Stop> {
        let queue = latched.queue();
        let Some(at) = queue.position(ticket) else { return Ok(Removal::Absent) };
        let gone = queue.entries.remove(at);
        let mut wake = Wake::default();
        wake.after_removal(queue, &gone, place);
        wake.without_closing();
        // Before the commit: if this process dies now, its owner finds itself still there; after
        // it, a holder could go on for ever that nobody told. It waits for the latch to see.
        self.door.ring(gone.door, place.caller(gone.ticket));
        inheritance::revoke(latched.files()?.dir(), &gone);
        latched.commit()?;
        drop(latched);
        wake.send(&self.door);
        Ok(Removal::Removed)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // A forked child shares the latch with its parent.
        if self.same_process().is_ok() {
            drop(self.leave());
        }
    }
}

/// What a look at a lock found.
#[derive(Debug)]
enum Seen {
    Queue {
        tickets: Vec<u64>,
        next: Option<u64>,
    },
    Nothing,
    /// Everybody who waited has to find out.
    Gone,
}

impl Seen {
    fn look(&self, ticket: Option<u64>) -> Look {
        let attempt = match self {
            Seen::Nothing => false,
            Seen::Gone => true,
            // Whose place is gone, or whose turn has come: it was not rung, or is about to be.
            Seen::Queue { tickets, next } => ticket.is_none_or(|ticket| {
                *next == Some(ticket) || tickets.binary_search(&ticket).is_err()
            }),
        };
        if attempt { Look::Attempt } else { Look::Again(LOOK_AGAIN) }
    }
}

/// The store as core drives it.
pub(crate) struct Driver {
    pub(crate) store: Arc<Store>,
}

impl DistributedLock for Driver {
    type Contender = FileContender;

    fn profile(&self) -> &Profile {
        match self.store.ground.directory.is_in_memory() {
            true => &IN_MEMORY,
            false => &ON_DISK,
        }
    }

    fn clock(&self) -> &dyn Clock {
        &self.store.clock
    }

    fn enter(self: &Arc<Self>, claim: Arc<Claim>) -> FileContender {
        let place = self.store.place(claim.name().shared_key());
        FileContender::new(self.store.clone(), place, claim)
    }

    /// Its lock: one whose latch a stopped process holds delays none of the others.
    fn shard(&self, contender: &FileContender) -> impl Eq + Hash + Send {
        contender.claim().name().key()
    }

    async fn renew(&self, held: &FileContender) -> Result<Renewal> {
        let silent = || Error::new(ErrorKind::Unreachable, "the lock's queue could not be read");
        let confirmed = self.store.in_time(held.confirm()).await;
        confirmed.unwrap_or_else(|| Err(held.unanswered().unwrap_or_else(silent)))
    }

    async fn look(&self, _: &LockName, waiting: &[&FileContender]) -> Result<Vec<Look>> {
        // One look for all of them, which this request keeps alive.
        let Some(first) = waiting.first() else { return Ok(Vec::new()) };
        let Some(seen) = self.store.in_time(self.store.look_at(first.place().clone())).await else {
            // The lock is in use, or its answer has just come: a waiter goes on to wait.
            return match first.unanswered().filter(|error| error.kind() != ErrorKind::Busy) {
                Some(trouble) => Err(trouble),
                None => Ok(vec![Look::Again(LOOK_AGAIN); waiting.len()]),
            };
        };
        let seen = seen?;
        Ok(waiting.iter().map(|waiter| seen.look(waiter.ticket())).collect())
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.store.same_process()?;
        let place = self.store.place(name.shared_key());
        let store = self.store.clone();
        let seen = place.latched_if_there(move |latched| store.inspect(latched)).await?;
        Ok(seen.unwrap_or_default())
    }

    async fn evict(&self, name: &LockName, who: &OccupantId) -> Result<Removal> {
        self.store.same_process()?;
        let place = self.store.place(name.shared_key());
        let Ok(ticket) = who.as_str().parse() else { return Ok(Removal::Absent) };
        let (store, at) = (self.store.clone(), place.clone());
        let removal = place.latched_if_there(move |latched| store.evict(&at, latched, ticket));
        Ok(removal.await?.unwrap_or(Removal::Absent))
    }

    async fn close(&self) -> Result<()> {
        self.store.door.close();
        for left in self.store.leave() {
            // Without an answer when no thread could be had.
            let _ = left.await;
        }
        Ok(())
    }
}

fn since(entry: &queue::Entry, now: u32) -> Duration {
    Duration::from_millis(10) * now.wrapping_sub(entry.since)
}
