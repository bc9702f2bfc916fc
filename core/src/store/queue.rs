//! The queue of one lock, for a store that changes a record in one step: a table in memory, a row of
//! a database, a value with compare-and-swap.
//!
//! Everything here is pure. The store reads the queue of a lock, [changes](Queue::change) it, writes
//! it back in the same step, and then wakes whom the change returns.

use std::collections::{HashSet, VecDeque};
use std::ops::Add;
use std::time::Duration;

use crate::store::claim::{Claim, IfBusy, OwnerToken};
use crate::store::distributed_lock::{
    AttemptOutcome, Participant, ParticipantId, ReleaseOutcome, RenewOutcome, Residue, Snapshot,
    WaiterCheck,
};
use crate::time::moment::{Clock, Moment, TokioClock, lease_end};
use crate::types::mode::Mode;
use crate::types::options::Label;
use crate::types::token::FencingToken;

/// How long a waiter may take to confirm a hand-off before it is skipped until it attempts again: a
/// future that is not polled must not block the queue.
const CONFIRM_WITHIN: Duration = Duration::from_secs(2);

/// A time in a store's records, by the one clock that all its clients share: the server's, in nanoseconds
/// since an origin that never changes.
///
/// It is not a [`Moment`], which is of one client's clock. That of another machine differs by the
/// difference of their boots: to the client of a machine that booted earlier each lease that it wrote
/// would have ended, and two clients would hold the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreTime(Moment);

impl StoreTime {
    /// The time `nanos` nanoseconds after the origin of the store's clock.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> StoreTime {
        StoreTime(Moment::from_nanos(nanos))
    }

    /// Nanoseconds since the origin of the store's clock.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0.as_nanos()
    }

    /// As [`Moment::duration_since`].
    #[must_use]
    pub fn duration_since(self, earlier: StoreTime) -> Duration {
        self.0.duration_since(earlier.0)
    }
}

/// Saturates.
impl Add<Duration> for StoreTime {
    type Output = StoreTime;

    fn add(self, duration: Duration) -> StoreTime {
        StoreTime(self.0 + duration)
    }
}

/// The present of one step, on both clocks that it has to do with.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    store: StoreTime,
    sent: Moment,
}

impl Now {
    /// The time `store` that the store itself answers in this step, or in the reading that a
    /// compare-and-set begins with; and when that was `sent`, on the client's
    /// [clock](crate::DistributedLock::clock), by which the client judges its own validity.
    ///
    /// ```compile_fail,E0308
    /// # use fencelock_core::{Clock, TokioClock, backend::Now};
    /// let own = TokioClock::new();
    /// Now::new(own.now(), own.now()); // the client's time is not the store's
    /// ```
    #[must_use]
    pub const fn new(store: StoreTime, sent: Moment) -> Now {
        Now { store, sent }
    }

    /// Of a store that ends with its process, with one clock for all its clients.
    #[must_use]
    pub fn in_process(clock: &TokioClock) -> Now {
        let now = clock.now();
        Now { store: StoreTime(now), sent: now }
    }
}

/// The holders and waiters of one lock, in order of arrival. A queue without entries is as good as
/// none: the store can delete its record.
///
/// `W` is how the store wakes a claim, the address of its client or a weak reference to the claim, or what
/// it needs to know of a waiter besides, such as when its client was last seen.
#[derive(Debug)]
pub struct Queue<W> {
    /// Holders may be anywhere; waiters are served from the front.
    pub entries: VecDeque<Entry<W>>,
}

/// One claim in a queue.
#[derive(Debug)]
pub struct Entry<W> {
    /// Identifies it in a [`Snapshot`].
    pub ticket: u64,
    /// The proof of ownership, never shown.
    pub owner: OwnerToken,
    /// How it holds the lock, or wants to.
    pub mode: Mode,
    /// How many tokens its grant reserves; see [`Claim::local_handoffs`].
    pub tokens: u32,
    /// The label of its client.
    pub label: Label,
    /// When it came, or began to hold the lock.
    pub since: StoreTime,
    /// How far it is.
    pub stage: Stage,
    /// How its claim is woken.
    pub waker: W,
}

/// How far an entry is on its way to the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits for its turn.
    Waits,
    /// Its turn came and it did not attempt in time: it keeps its place, but is skipped until then.
    Lapsed,
    /// It was handed the lock, which it has to confirm by an attempt before `until`.
    Granted {
        /// The token of this grant.
        token: FencingToken,
        /// The end of its turn.
        until: StoreTime,
    },
    /// It holds the lock.
    Held {
        /// The token of this grant.
        token: FencingToken,
        /// The end of the lease.
        until: StoreTime,
    },
}

/// The last numbers of a store: one record for all its queues, which changes in the same step as they do.
///
/// A store whose step changes one key has them in the record of each lock. Then that record stays when
/// its queue is empty, or the tokens of the lock begin again.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastNumbers {
    /// The last ticket.
    pub ticket: u64,
    /// The last fencing token.
    pub token: u64,
}

impl Stage {
    fn grant(self) -> Option<(FencingToken, StoreTime)> {
        match self {
            Stage::Waits | Stage::Lapsed => None,
            Stage::Granted { token, until } | Stage::Held { token, until } => Some((token, until)),
        }
    }
}

impl<W> Entry<W> {
    /// Whether it has the lock, confirmed or not.
    pub fn is_granted(&self) -> bool {
        self.stage.grant().is_some()
    }
}

impl<W> Default for Queue<W> {
    fn default() -> Queue<W> {
        Queue { entries: VecDeque::new() }
    }
}

impl<W: Clone> Queue<W> {
    /// Changes the queue at `now`: what has expired goes, `change` is made, and the waiters that fit
    /// then are granted the lock. Returns the result of `change` and whom to wake afterwards.
    ///
    /// ```
    /// # use fencelock_core::{BootClock, Clock, Snapshot};
    /// # use fencelock_core::backend::{LastNumbers, Now, Queue, StoreTime, start_clock};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// let (mut queue, mut last) = (Queue::<()>::default(), LastNumbers::default());
    /// let clock: BootClock = start_clock()?; // the client's
    /// let sent = clock.now();
    /// let now = Now::new(StoreTime::from_nanos(4_711), sent); // what the server answers
    /// let (seen, woken) = queue.change(now, &mut last, |queue| queue.snapshot());
    /// assert!(seen == Snapshot::default() && woken.is_empty());
    /// # Ok(()) }
    /// ```
    pub fn change<T>(
        &mut self,
        now: Now,
        last: &mut LastNumbers,
        change: impl FnOnce(&mut QueueStep<'_, W>) -> T,
    ) -> (T, Vec<W>) {
        let mut step = QueueStep { entries: &mut self.entries, now, last, woken: Vec::new() };
        step.drop_expired();
        let result = change(&mut step);
        step.serve(None);
        (result, step.woken)
    }
}

/// A queue during a [change](Queue::change).
#[derive(Debug)]
pub struct QueueStep<'a, W> {
    /// As in [`Queue`].
    pub entries: &'a mut VecDeque<Entry<W>>,
    now: Now,
    last: &'a mut LastNumbers,
    woken: Vec<W>,
}

impl<W: Clone> QueueStep<'_, W> {
    /// Acquires, queues, or confirms a grant, whichever comes next. Repeated, it finds its own entry.
    pub fn attempt(&mut self, claim: &Claim, waker: W) -> AttemptOutcome {
        let now = self.now;
        let ticket = match self.find(claim) {
            Some(entry) => {
                if entry.stage == Stage::Lapsed {
                    entry.stage = Stage::Waits;
                }
                entry.ticket
            }
            None => self.join(claim, waker),
        };
        // This answer carries its own grant; waking it would renew the new grant at once.
        self.serve(Some(ticket));
        if let Some(entry) = self.find(claim)
            && let Some((token, _)) = entry.stage.grant()
        {
            if let Stage::Granted { .. } = entry.stage {
                entry.since = now.store;
            }
            // A grant that is found again is reported with a whole lease, so it gets one.
            entry.stage = Stage::Held { token, until: now.store + claim.ttl() };
            return AttemptOutcome::Granted {
                token,
                valid_until: lease_end(now.sent, claim.ttl()),
            };
        }
        match claim.if_busy() {
            IfBusy::Queue => AttemptOutcome::Waiting { check_after: self.check_after() },
            IfBusy::Refuse => {
                self.entries.retain(|entry| entry.ticket != ticket);
                AttemptOutcome::Busy { rest: Residue::Nothing }
            }
        }
    }

    fn join(&mut self, claim: &Claim, waker: W) -> u64 {
        self.last.ticket += 1;
        self.entries.push_back(Entry {
            ticket: self.last.ticket,
            owner: *claim.owner(),
            mode: claim.mode(),
            tokens: claim.local_handoffs(),
            label: claim.label().clone(),
            since: self.now.store,
            stage: Stage::Waits,
            waker,
        });
        self.last.ticket
    }

    /// Extends the lease of a hold, or confirms a fixed one.
    pub fn renew(&mut self, claim: &Claim) -> RenewOutcome {
        let now = self.now;
        match self.find(claim).map(|entry| &mut entry.stage) {
            // Only confirms the hold: an end before the known one changes nothing.
            Some(Stage::Held { .. }) if claim.is_fixed_lease() => {
                RenewOutcome::Renewed { valid_until: now.sent }
            }
            Some(Stage::Held { until, .. }) => {
                *until = now.store + claim.ttl();
                RenewOutcome::Renewed { valid_until: lease_end(now.sent, claim.ttl()) }
            }
            _ => RenewOutcome::Lost,
        }
    }

    /// Makes an exclusive hold a shared one, and extends its lease; the readers that are next in the
    /// queue are granted the lock in the same change. Repeated, it extends the shared hold.
    pub fn downgrade(&mut self, claim: &Claim) -> RenewOutcome {
        if let Some(entry @ Entry { stage: Stage::Held { .. }, .. }) = self.find(claim) {
            entry.mode = Mode::Shared;
        }
        self.renew(claim)
    }

    /// The safety check of these waiters, in one pass: one whose turn has come, or whose entry is
    /// gone, must attempt.
    pub fn check<'c>(&self, waiters: impl Iterator<Item = &'c Claim>) -> Vec<WaiterCheck> {
        let waits = self.entries.iter().filter(|entry| entry.stage == Stage::Waits);
        let waits: HashSet<_> = waits.map(|entry| entry.owner).collect();
        let check_after = self.check_after();
        let check = |waiter: &Claim| {
            let is_known = waits.contains(waiter.owner());
            if is_known { WaiterCheck::Again(check_after) } else { WaiterCheck::Attempt }
        };
        waiters.map(check).collect()
    }

    /// Releases the lock, or leaves the queue.
    pub fn release(&mut self, claim: &Claim) -> ReleaseOutcome {
        let released = self.remove(|entry| entry.owner == *claim.owner());
        if released.is_some() { ReleaseOutcome::Removed } else { ReleaseOutcome::Absent }
    }

    /// Takes the lock, or the place in the queue, from `who` of a snapshot, and wakes its claim.
    pub fn evict(&mut self, who: &ParticipantId) -> ReleaseOutcome {
        let evicted = self.remove(|entry| entry.ticket.to_string() == who.as_str());
        let Some(entry) = evicted else { return ReleaseOutcome::Absent };
        self.woken.push(entry.waker);
        ReleaseOutcome::Removed
    }

    fn remove(&mut self, which: impl Fn(&Entry<W>) -> bool) -> Option<Entry<W>> {
        let at = self.entries.iter().position(which)?;
        self.entries.remove(at)
    }

    /// The holders and waiters.
    pub fn snapshot(&self) -> Snapshot {
        let mut seen = Snapshot::default();
        for entry in self.entries.iter() {
            let id = ParticipantId::new(entry.ticket.to_string());
            let participant = Participant::new(id, entry.mode)
                .labelled(entry.label.clone())
                .since(self.now.store.duration_since(entry.since));
            match entry.stage.grant() {
                Some((token, _)) => seen.holders.push(participant.token(token)),
                None => seen.waiters.push(participant),
            }
        }
        seen
    }

    fn drop_expired(&mut self) {
        let now = self.now.store;
        self.entries.retain_mut(|entry| match entry.stage {
            Stage::Held { until, .. } => until > now,
            Stage::Granted { until, .. } if until <= now => {
                entry.stage = Stage::Lapsed;
                true
            }
            _ => true,
        });
    }

    fn find(&mut self, claim: &Claim) -> Option<&mut Entry<W>> {
        self.entries.iter_mut().find(|entry| entry.owner == *claim.owner())
    }

    /// Grants waiters in order until one does not fit, and wakes them, except the one that is
    /// answered in this step.
    fn serve(&mut self, answered: Option<u64>) {
        while let Some(next) = self.entries.iter().position(|entry| entry.stage == Stage::Waits) {
            let mode = self.entries[next].mode;
            let held = self.entries.iter().filter(|entry| entry.is_granted());
            if !mode.is_compatible_with(held.map(|entry| entry.mode)) {
                break;
            }
            let entry = &mut self.entries[next];
            let token = FencingToken::new(self.last.token + 1);
            self.last.token += u64::from(entry.tokens);
            entry.stage = Stage::Granted { token, until: self.now.store + CONFIRM_WITHIN };
            if answered != Some(entry.ticket) {
                self.woken.push(entry.waker.clone());
            }
        }
    }

    /// When to check again: as soon as a holder could expire, and soon enough to skip a waiter that
    /// does not confirm a later hand-off.
    fn check_after(&self) -> Duration {
        let ends = self.entries.iter().filter_map(|entry| entry.stage.grant());
        let soonest = ends.map(|(_, until)| until.duration_since(self.now.store)).min();
        soonest.unwrap_or(CONFIRM_WITHIN).min(CONFIRM_WITHIN)
    }
}
