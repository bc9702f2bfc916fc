//! The connected file store.
//!
//! Its locks need no renewal: a holder holds for as long as its pipe is open. What is left to do
//! from time to time is to pass over a waiter whose turn has come and that does not take it, as a
//! stopped process: every waiting claim looks once a second, without the latch.

use std::any::Any;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::{
    BootClock, Claim, Clock, Contender, DistributedLock, ErrorKind, FencingToken, Liveness,
    LockName, Look, Modes, Occupant, OccupantId, Order, Profile, Reach, Removal, Renewal,
    RenewalPlan, Report, Result, Snapshot, Tokens, Ttl,
};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

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
/// How long a batch of looks or renewals may take.
const BATCH: Duration = Duration::from_secs(2);
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
            "someone force-releases the lock, until its holder has been notified",
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

#[async_trait]
impl DistributedLock for Driver {
    fn profile(&self) -> &Profile {
        match self.store.ground.directory.is_in_memory() {
            true => &IN_MEMORY,
            false => &ON_DISK,
        }
    }

    fn clock(&self) -> &dyn Clock {
        &self.store.clock
    }

    fn enter(&self, claim: Arc<Claim>) -> Arc<dyn Contender> {
        let place = self.store.place(claim.name().shared_key());
        FileContender::new(self.store.clone(), place, claim)
    }

    async fn renew(&self, held: &[Arc<dyn Contender>], report: Report<'_, Renewal>) {
        let mut confirming = JoinSet::new();
        for (index, contender) in held.iter().enumerate() {
            if let Some(contender) = own(contender).and_then(FileContender::this) {
                confirming.spawn(async move { (index, contender.confirm().await) });
            }
        }
        self.each_in_time(confirming, |(index, confirmed)| report(index, confirmed)).await;
    }

    async fn look(&self, waiting: &[Arc<dyn Contender>], report: Report<'_, Look>) {
        // One look for all that wait for a lock, which this batch keeps alive.
        let mut by_place: HashMap<usize, Vec<(usize, &FileContender)>> = HashMap::new();
        for (index, contender) in waiting.iter().enumerate() {
            if let Some(contender) = own(contender) {
                let place = Arc::as_ptr(contender.place()).addr();
                by_place.entry(place).or_default().push((index, contender));
            }
        }
        let mut looking = JoinSet::new();
        for (at, contenders) in &by_place {
            let (at, place, store) = (*at, contenders[0].1.place().clone(), self.store.clone());
            looking.spawn(async move { (at, store.look_at(place).await) });
        }
        let late: Mutex<HashSet<usize>> = Mutex::new(by_place.keys().copied().collect());
        let late = || late.lock().unwrap_or_else(PoisonError::into_inner);
        let tell = |(at, seen): (usize, Result<Seen>)| {
            late().remove(&at);
            for (index, contender) in &by_place[&at] {
                let look = seen.as_ref().map(|seen| seen.look(contender.ticket()));
                report(*index, look.map_err(Clone::clone));
            }
        };
        self.each_in_time(looking, tell).await;
        let unanswered = std::mem::take(&mut *late());
        for at in unanswered {
            let contenders = &by_place[&at];
            let trouble = contenders[0].1.unanswered();
            // The lock is in use, or its answer has just come: a waiter goes on to wait.
            let trouble = trouble.filter(|error| error.kind() != ErrorKind::Busy);
            for (index, _) in contenders {
                report(*index, trouble.clone().map_or(Ok(Look::Again(LOOK_AGAIN)), Err));
            }
        }
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

impl Driver {
    /// Tells of each of `requests` when it is done; those that take too long are given up, and
    /// core asks again. The lock whose latch a stopped process holds delays none of the others.
    async fn each_in_time<T: 'static>(&self, mut requests: JoinSet<T>, tell: impl Fn(T)) {
        let all = async {
            while let Some(done) = requests.join_next().await {
                done.into_iter().for_each(&tell);
            }
        };
        let bound = self.store.clock.now().after(BATCH);
        tokio::select! {
            biased;
            () = all => {}
            () = self.store.clock.sleep_until(bound) => {}
        }
    }
}

fn own(contender: &Arc<dyn Contender>) -> Option<&FileContender> {
    let any: &dyn Any = contender.as_ref();
    any.downcast_ref()
}

fn since(entry: &queue::Entry, now: u32) -> Duration {
    Duration::from_millis(10) * now.wrapping_sub(entry.since)
}
