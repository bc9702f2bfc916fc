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
    Acquisition, BootClock, Claim, Clock, DistributedLock, Error, ErrorKind, FencingToken,
    Liveness, LockName, Modes, Order, Participant, ParticipantId, Profile, Reach, ReleaseOutcome,
    RenewOutcome, RenewalPlan, Result, Snapshot, TokenOrder, Ttl, WaiterCheck,
};
use tokio::sync::oneshot;

use crate::contender::FileAcquisition;
use crate::door::WakePipe;
use crate::error::forked;
use crate::inheritance;
use crate::latch::{QueueGuard, StepError};
use crate::pipe;
use crate::place::{FileLock, Peek, StoreContext};
use crate::platform::centiseconds;
use crate::queue;
use crate::wake::Notifications;

/// How often a waiter looks whether somebody ahead of it has stopped.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a look or a renewal may take.
const REQUEST: Duration = Duration::from_secs(2);
/// How long a waiter may leave a lock alone that is its own to take. A little less than two
/// looks, so that the second one finds it.
const STALL_LIMIT: Duration = Duration::from_millis(1_800);
/// From how many locks on those that nobody uses are forgotten.
const PRUNE_AT: usize = 256;

static ON_DISK: Profile = profile(TokenOrder::Data);
static IN_MEMORY: Profile = profile(TokenOrder::Boot);

const fn profile(tokens: TokenOrder) -> Profile {
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
    pub(crate) context: Arc<StoreContext>,
    pub(crate) wake_pipe: WakePipe,
    process: u32,
    clock: BootClock,
    locks: Mutex<LockTable>,
}

#[derive(Debug)]
struct LockTable {
    by_key: HashMap<Arc<str>, Arc<FileLock>>,
    prune_at: usize,
}

impl Store {
    pub(crate) fn new(context: StoreContext, wake_pipe: WakePipe, clock: BootClock) -> Store {
        let locks = LockTable { by_key: HashMap::new(), prune_at: PRUNE_AT };
        Store {
            context: Arc::new(context),
            wake_pipe,
            process: std::process::id(),
            clock,
            locks: Mutex::new(locks),
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

    fn locks(&self) -> MutexGuard<'_, LockTable> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self, key: &Arc<str>) -> Arc<FileLock> {
        let mut locks = self.locks();
        if let Some(lock) = locks.by_key.get(key) {
            return lock.clone();
        }
        if locks.by_key.len() >= locks.prune_at {
            let unused = locks.by_key.extract_if(|_, lock| Arc::strong_count(lock) == 1);
            unused.for_each(|(_, lock)| drop(lock.leave()));
            locks.prune_at = PRUNE_AT.max(locks.by_key.len() * 2);
        }
        let lock = Arc::new(FileLock::new(self.context.clone(), key.clone()));
        locks.by_key.insert(key.clone(), lock.clone());
        lock
    }

    /// Closes the files of all locks.
    fn leave(&self) -> Vec<oneshot::Receiver<()>> {
        let locks = std::mem::take(&mut self.locks().by_key);
        locks.values().map(FileLock::leave).collect()
    }

    /// What one look at `place` says to all that wait there.
    async fn check_lock(self: &Arc<Self>, lock: Arc<FileLock>) -> Result<LockCheck> {
        self.same_process()?;
        let queue = match lock.peek().await? {
            Peek::Queue(queue) => queue,
            Peek::Busy => return Ok(LockCheck::Nothing),
            Peek::Gone => return Ok(LockCheck::Gone),
        };
        let next = queue.next_to_hold();
        let stalled = next.filter(|next| next + 1 < queue.entries.len());
        let stalled = stalled.map(|next| queue.entries[next].ticket);
        if let Some(ticket) = lock.stalled_for(stalled, self.clock.now(), STALL_LIMIT) {
            let (store, at) = (self.clone(), lock.clone());
            let pass_over = move |guard: QueueGuard<'_>| store.pass_over(&at, guard, ticket);
            lock.with_queue_if_present(pass_over).await?;
            return Ok(LockCheck::Gone);
        }
        let tickets = queue.entries.iter().map(|entry| entry.ticket).collect();
        Ok(LockCheck::Queue { tickets, next: next.map(|next| queue.entries[next].ticket) })
    }

    /// Takes the place of a waiter that leaves a free lock alone. When it goes on, it finds its
    /// place gone and queues again.
    fn pass_over(
        &self,
        lock: &FileLock,
        mut guard: QueueGuard<'_>,
        ticket: u64,
    ) -> Result<(), StepError> {
        let queue = guard.queue();
        let at = queue.next_to_hold().filter(|at| queue.entries[*at].ticket == ticket);
        let Some(at) = at else { return Ok(()) };
        let gone = queue.entries.remove(at);
        let mut notifications = Notifications::default();
        notifications.after_removal(queue, &gone, lock);
        notifications.without_closing();
        guard.commit()?;
        drop(guard);
        self.wake_pipe.ring(gone.wake_pipe, lock.claim_key(gone.ticket));
        notifications.send(&self.wake_pipe);
        Ok(())
    }

    /// The answer to a request, unless it takes too long.
    async fn in_time<T>(&self, request: impl Future<Output = T>) -> Option<T> {
        let bound = self.clock.now() + REQUEST;
        tokio::select! {
            biased;
            answer = request => Some(answer),
            () = self.clock.sleep_until(bound) => None,
        }
    }

    fn inspect(&self, mut guard: QueueGuard<'_>) -> Result<Snapshot, StepError> {
        // Labels are in files.
        guard.needs_disk()?;
        let entries = guard.queue().entries.clone();
        let files = guard.files()?;
        let state = files.state()?;
        let own_labels: Vec<_> = entries
            .iter()
            .map(|entry| if entry.labelled { state.read_label(entry.slot) } else { None })
            .collect();
        drop(guard);
        let now = centiseconds();
        let (mut holders, mut waiters) = (Vec::new(), Vec::new());
        for (entry, label) in entries.iter().zip(own_labels) {
            // Whoever waits next removes it.
            if matches!(pipe::watch(files.dir(), entry.slot), Ok(None)) {
                continue;
            }
            let label = label.or_else(|| match entry.labelled {
                true => None,
                false => self.wake_pipe.label_at(entry.wake_pipe, entry.since),
            });
            let mut participant =
                Participant::new(ParticipantId::new(entry.ticket.to_string()), entry.mode)
                    .since(since(entry, now));
            if let Some(label) = label {
                participant = participant.labelled(label);
            }
            match entry.held {
                // Of a holder of a queue that was lost it is not known.
                true if entry.token == 0 => holders.push(participant),
                true => holders.push(participant.token(FencingToken::new(entry.token))),
                false => waiters.push(participant),
            }
        }
        Ok(Snapshot::new(holders, waiters))
    }

    fn evict(
        &self,
        lock: &FileLock,
        mut guard: QueueGuard<'_>,
        ticket: u64,
    ) -> Result<ReleaseOutcome, StepError> {
        let queue = guard.queue();
        let Some(at) = queue.position(ticket) else { return Ok(ReleaseOutcome::Absent) };
        let gone = queue.entries.remove(at);
        let mut notifications = Notifications::default();
        notifications.after_removal(queue, &gone, lock);
        notifications.without_closing();
        // Before the commit: if this process dies now, its owner finds itself still there; after
        // it, a holder could go on for ever that nobody told. It waits for the latch to see.
        self.wake_pipe.ring(gone.wake_pipe, lock.claim_key(gone.ticket));
        inheritance::revoke(guard.files()?.dir(), &gone);
        guard.commit()?;
        drop(guard);
        notifications.send(&self.wake_pipe);
        Ok(ReleaseOutcome::Removed)
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
enum LockCheck {
    Queue {
        tickets: Vec<u64>,
        next: Option<u64>,
    },
    Nothing,
    /// Everybody who waited has to find out.
    Gone,
}

impl LockCheck {
    fn look(&self, ticket: Option<u64>) -> WaiterCheck {
        let attempt = match self {
            LockCheck::Nothing => false,
            LockCheck::Gone => true,
            // Whose place is gone, or whose turn has come: it was not rung, or is about to be.
            LockCheck::Queue { tickets, next } => ticket.is_none_or(|ticket| {
                *next == Some(ticket) || tickets.binary_search(&ticket).is_err()
            }),
        };
        if attempt { WaiterCheck::Attempt } else { WaiterCheck::Again(CHECK_INTERVAL) }
    }
}

/// The store as core drives it.
pub(crate) struct FileBackend {
    pub(crate) store: Arc<Store>,
}

impl DistributedLock for FileBackend {
    type Acquisition = FileAcquisition;

    fn profile(&self) -> &Profile {
        match self.store.context.directory.is_in_memory() {
            true => &IN_MEMORY,
            false => &ON_DISK,
        }
    }

    fn clock(&self) -> &dyn Clock {
        &self.store.clock
    }

    fn enter(self: &Arc<Self>, claim: Arc<Claim>) -> FileAcquisition {
        let lock = self.store.lock(claim.name().shared_key());
        FileAcquisition::new(self.store.clone(), lock, claim)
    }

    /// Its lock: one whose latch a stopped process holds delays none of the others.
    fn shard(&self, acquisition: &FileAcquisition) -> impl Eq + Hash + Send {
        acquisition.claim().name().key()
    }

    async fn renew(&self, held: &FileAcquisition) -> Result<RenewOutcome> {
        let silent = || Error::new(ErrorKind::Unreachable, "the lock's queue could not be read");
        let confirmed = self.store.in_time(held.confirm()).await;
        confirmed.unwrap_or_else(|| Err(held.unanswered().unwrap_or_else(silent)))
    }

    async fn look(&self, _: &LockName, waiting: &[&FileAcquisition]) -> Result<Vec<WaiterCheck>> {
        // One look for all of them, which this request keeps alive.
        let Some(first) = waiting.first() else { return Ok(Vec::new()) };
        let Some(seen) = self.store.in_time(self.store.check_lock(first.lock().clone())).await
        else {
            // The lock is in use, or its answer has just come: a waiter goes on to wait.
            return match first.unanswered().filter(|error| error.kind() != ErrorKind::Busy) {
                Some(trouble) => Err(trouble),
                None => Ok(vec![WaiterCheck::Again(CHECK_INTERVAL); waiting.len()]),
            };
        };
        let seen = seen?;
        Ok(waiting.iter().map(|waiter| seen.look(waiter.ticket())).collect())
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.store.same_process()?;
        let lock = self.store.lock(name.shared_key());
        let store = self.store.clone();
        let seen = lock.with_queue_if_present(move |guard| store.inspect(guard)).await?;
        Ok(seen.unwrap_or_default())
    }

    async fn evict(&self, name: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
        self.store.same_process()?;
        let lock = self.store.lock(name.shared_key());
        let Ok(ticket) = who.as_str().parse() else { return Ok(ReleaseOutcome::Absent) };
        let (store, at) = (self.store.clone(), lock.clone());
        let removal = lock.with_queue_if_present(move |guard| store.evict(&at, guard, ticket));
        Ok(removal.await?.unwrap_or(ReleaseOutcome::Absent))
    }

    async fn close(&self) -> Result<()> {
        self.store.wake_pipe.close();
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
