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
    Acquisition, BootClock, Claim, Clock, DistributedLock, ErrorKind, FencingToken, Liveness,
    LockName, Modes, Order, Participant, ParticipantId, Profile, Reach, ReleaseOutcome,
    RenewOutcome, RenewalPlan, Report, Result, Snapshot, TokenOrder, Ttl, WaiterCheck,
};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

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
/// How long a batch of looks or renewals may take.
const BATCH_LIMIT: Duration = Duration::from_secs(2);
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

#[async_trait]
impl DistributedLock for FileBackend {
    fn profile(&self) -> &Profile {
        match self.store.context.directory.is_in_memory() {
            true => &IN_MEMORY,
            false => &ON_DISK,
        }
    }

    fn clock(&self) -> &dyn Clock {
        &self.store.clock
    }

    fn begin(&self, claim: Arc<Claim>) -> Arc<dyn Acquisition> {
        let lock = self.store.lock(claim.name().shared_key());
        FileAcquisition::new(self.store.clone(), lock, claim)
    }

    async fn renew(&self, held: &[Arc<dyn Acquisition>], report: Report<'_, RenewOutcome>) {
        let mut confirming = JoinSet::new();
        for (index, acquisition) in held.iter().enumerate() {
            if let Some(acquisition) = own(acquisition).and_then(FileAcquisition::this) {
                confirming.spawn(async move { (index, acquisition.confirm().await) });
            }
        }
        self.each_in_time(confirming, |(index, confirmed)| report(index, confirmed)).await;
    }

    async fn check_waiters(
        &self,
        waiting: &[Arc<dyn Acquisition>],
        report: Report<'_, WaiterCheck>,
    ) {
        // One look for all that wait for a lock, which this batch keeps alive.
        let mut by_lock: HashMap<usize, Vec<(usize, &FileAcquisition)>> = HashMap::new();
        for (index, acquisition) in waiting.iter().enumerate() {
            if let Some(acquisition) = own(acquisition) {
                let lock = Arc::as_ptr(acquisition.lock()).addr();
                by_lock.entry(lock).or_default().push((index, acquisition));
            }
        }
        let mut checking = JoinSet::new();
        for (at, acquisitions) in &by_lock {
            let (at, lock, store) = (*at, acquisitions[0].1.lock().clone(), self.store.clone());
            checking.spawn(async move { (at, store.check_lock(lock).await) });
        }
        let late: Mutex<HashSet<usize>> = Mutex::new(by_lock.keys().copied().collect());
        let late = || late.lock().unwrap_or_else(PoisonError::into_inner);
        let tell = |(at, seen): (usize, Result<LockCheck>)| {
            late().remove(&at);
            for (index, acquisition) in &by_lock[&at] {
                let look = seen.as_ref().map(|seen| seen.look(acquisition.ticket()));
                report(*index, look.map_err(Clone::clone));
            }
        };
        self.each_in_time(checking, tell).await;
        let unanswered = std::mem::take(&mut *late());
        for at in unanswered {
            let acquisitions = &by_lock[&at];
            let trouble = acquisitions[0].1.unanswered();
            // The lock is in use, or its answer has just come: a waiter goes on to wait.
            let trouble = trouble.filter(|error| error.kind() != ErrorKind::Busy);
            for (index, _) in acquisitions {
                report(*index, trouble.clone().map_or(Ok(WaiterCheck::Again(CHECK_INTERVAL)), Err));
            }
        }
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

impl FileBackend {
    /// Tells of each of `requests` when it is done; those that take too long are given up, and
    /// core asks again. The lock whose latch a stopped process holds delays none of the others.
    async fn each_in_time<T: 'static>(&self, mut requests: JoinSet<T>, tell: impl Fn(T)) {
        let all = async {
            while let Some(done) = requests.join_next().await {
                done.into_iter().for_each(&tell);
            }
        };
        let bound = self.store.clock.now() + BATCH_LIMIT;
        tokio::select! {
            biased;
            () = all => {}
            () = self.store.clock.sleep_until(bound) => {}
        }
    }
}

fn own(acquisition: &Arc<dyn Acquisition>) -> Option<&FileAcquisition> {
    let any: &dyn Any = acquisition.as_ref();
    any.downcast_ref()
}

fn since(entry: &queue::Entry, now: u32) -> Duration {
    Duration::from_millis(10) * now.wrapping_sub(entry.since)
}
