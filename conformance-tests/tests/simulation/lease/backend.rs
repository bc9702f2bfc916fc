//! The backend of the server with leases: one request for each step, each bounded in time, and
//! pushes that wake claims.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, Clock, DistributedLock, Error, ErrorKind, FencingToken,
    Liveness, LockName, Modes, Moment, Order, ParticipantId, Profile, Reach, ReleaseOutcome,
    RenewOutcome, RenewalPlan, Residue, Result, Snapshot, TokenOrder, Ttl, WaiterCheck, lease_end,
};

use crate::lease::script::{Answer, Entry, Who};
use crate::lease::server::LeaseServer;
use crate::mutant::Mutant;
use crate::world::gate::GatedClock;
use crate::world::link::Link;

/// How long one request may take.
const REQUEST: Duration = Duration::from_millis(500);
/// How many waiters one check verifies.
const SAMPLE: usize = 8;

pub(crate) static PROFILE: Profile = Profile {
    store: "leases",
    reach: Reach::Network,
    liveness: Liveness::Lease,
    renewal: RenewalPlan::ThirdOfTtl,
    longest_ttl: Ttl::MAX,
    order: Order::Arrival,
    modes: Modes::ALL,
    downgrade: true,
    tokens: TokenOrder::BeyondData,
    max_local_handoffs: 1_024,
    cells: None,
    exclusion_fails_when: Cow::Borrowed(&["the server loses its data"]),
};

pub(crate) struct LeaseBackend {
    server: Arc<LeaseServer>,
    pub(crate) link: Arc<Link>,
    clock: GatedClock,
    acquisitions: Mutex<BTreeMap<u64, Weak<LeaseAcquisition>>>,
    rotation: AtomicU64,
    last_push: Mutex<Option<(Entry, u64)>>,
    me: Weak<LeaseBackend>,
}

impl LeaseBackend {
    pub(crate) fn connect(server: &Arc<LeaseServer>, link: Arc<Link>) -> Arc<LeaseBackend> {
        let clock = GatedClock { time: server.history.time.clone(), gate: link.gate.clone() };
        let backend = Arc::new_cyclic(|me| LeaseBackend {
            server: server.clone(),
            link,
            clock,
            acquisitions: Mutex::default(),
            rotation: AtomicU64::new(0),
            last_push: Mutex::default(),
            me: me.clone(),
        });
        server.subscribe(backend.link.process, Arc::downgrade(&backend));
        backend
    }

    fn acquisition(&self, claim: u64) -> Option<Arc<LeaseAcquisition>> {
        let acquisitions = self.acquisitions.lock().unwrap_or_else(PoisonError::into_inner);
        acquisitions.get(&claim).and_then(Weak::upgrade)
    }

    async fn ask<R: Send + 'static>(
        &self,
        claim: u64,
        ask: impl FnOnce(&LeaseServer) -> R + Send + 'static,
    ) -> Result<R> {
        let server = self.server.clone();
        let answer = self.link.call(claim, REQUEST, move || ask(&server)).await;
        answer.ok_or_else(|| Error::new(ErrorKind::Unreachable, "no answer"))
    }

    /// The server says that it handed a lock to one of this process's claims.
    pub(crate) fn pushed(&self, entry: Entry, token: u64) {
        *self.last_push.lock().unwrap_or_else(PoisonError::into_inner) = Some((entry, token));
        let mutant = self.server.mutant;
        let acquisition = self.acquisition(entry.who.claim);
        if mutant == Some(Mutant::PushIsTheGrant)
            && let Some(acquisition) = &acquisition
        {
            acquisition.pushed.store(token, Ordering::Relaxed);
        }
        let mut wanted = acquisition.as_ref().is_some_and(|acquisition| acquisition.claim.wake());
        if mutant == Some(Mutant::HeldIsStray)
            && let Some(acquisition) = &acquisition
        {
            wanted &= acquisition.waits.load(Ordering::Relaxed) == WAITS;
        }
        if !wanted {
            self.release_stray(entry);
        }
    }

    /// The last push arrives once more, on a test's order.
    pub(crate) fn pushed_again(&self) {
        let last = *self.last_push.lock().unwrap_or_else(PoisonError::into_inner);
        let (entry, token) = last.expect("there has been a push");
        self.pushed(entry, token);
    }

    /// Sends away what the server gave to a claim that has ended.
    fn release_stray(&self, entry: Entry) {
        if self.server.mutant == Some(Mutant::StrayIgnored) {
            return;
        }
        let Some(me) = self.me.upgrade() else { return };
        tokio::spawn(async move {
            // Once: if this is lost too, the next check or the claim TTL finds it.
            let _ = me.ask(entry.who.claim, move |server| server.release(entry)).await;
        });
    }

    fn granted(&self, claim: &Claim, sent: Moment, token: u64) -> AttemptOutcome {
        let from = match self.server.mutant {
            Some(Mutant::DeadlineFromReply) => self.clock.now(),
            _ => sent,
        };
        let valid_until = lease_end(from, claim.ttl());
        AttemptOutcome::Granted { token: FencingToken::new(token), valid_until }
    }
}

impl DistributedLock for LeaseBackend {
    type Acquisition = SharedAcquisition;

    fn profile(&self) -> &Profile {
        &PROFILE
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn begin(self: &Arc<Self>, claim: Arc<Claim>) -> SharedAcquisition {
        let entry = Entry {
            who: Who { process: self.link.process, claim: claim.id() },
            lock: lock_number(claim.name()),
            mode: claim.mode(),
            ttl: claim.ttl(),
            if_busy: claim.if_busy(),
            tokens: u64::from(claim.local_handoffs()),
        };
        let (epoch, waits, pushed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let backend = self.clone();
        let acquisition =
            Arc::new(LeaseAcquisition { backend, claim, entry, epoch, waits, pushed });
        let mut acquisitions = self.acquisitions.lock().unwrap_or_else(PoisonError::into_inner);
        acquisitions.insert(entry.who.claim, Arc::downgrade(&acquisition));
        SharedAcquisition(acquisition)
    }

    async fn renew(&self, held: &SharedAcquisition) -> Result<RenewOutcome> {
        let (entry, sent) = (held.0.entry, self.clock.now());
        let renewed = self.ask(entry.who.claim, move |server| server.renew(entry)).await?;
        let from = match self.server.mutant {
            Some(Mutant::DeadlineFromReply) => self.clock.now(),
            _ => sent,
        };
        Ok(match renewed {
            true => RenewOutcome::Renewed { valid_until: lease_end(from, entry.ttl) },
            false => RenewOutcome::Lost,
        })
    }

    async fn check_waiters(
        &self,
        lock: &LockName,
        waiting: &[&SharedAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        let lock = lock_number(lock);
        let turn = self.rotation.fetch_add(1, Ordering::Relaxed);
        let skip = usize::try_from(turn).unwrap_or(0) % waiting.len();
        let sample = waiting.iter().cycle().skip(skip).take(SAMPLE.min(waiting.len()));
        let sample: Vec<u64> = sample.map(|waiter| waiter.0.entry.who.claim).collect();
        let process = self.link.process;
        // The checks of one lock share the fate of one request.
        let number = (1 << 32) + lock as u64;
        let checked = self.ask(number, move |it| it.check_waiters(process, lock, &sample)).await?;
        self.wake_the_others(lock, &checked.attempt, waiting);
        let check = |waiter: &&SharedAcquisition| {
            let must_attempt = checked.attempt.contains(&waiter.0.entry.who.claim);
            let fresh = waiter.0.epoch.load(Ordering::Relaxed) != checked.epoch;
            let forgotten = fresh && self.server.mutant != Some(Mutant::GrantNotReported);
            match must_attempt || forgotten {
                true => WaiterCheck::Attempt,
                false => WaiterCheck::Again(self.server.check_every),
            }
        };
        Ok(waiting.iter().map(check).collect())
    }

    async fn inspect(&self, _: &LockName) -> Result<Snapshot> {
        Ok(Snapshot::default())
    }

    async fn evict(&self, _: &LockName, _: &ParticipantId) -> Result<ReleaseOutcome> {
        Ok(ReleaseOutcome::Absent)
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl LeaseBackend {
    /// A check also reports claims that were not in it: those are woken, or released if stray.
    fn wake_the_others(&self, lock: usize, reported: &[u64], asked: &[&SharedAcquisition]) {
        let asked = |claim: u64| asked.iter().any(|waiter| waiter.0.entry.who.claim == claim);
        for claim in reported.iter().copied().filter(|claim| !asked(*claim)) {
            match self.acquisition(claim) {
                Some(acquisition) if acquisition.claim.wake() => {}
                Some(acquisition) => self.release_stray(acquisition.entry),
                None => self.release_stray(Entry {
                    who: Who { process: self.link.process, claim },
                    lock,
                    mode: fencelock_core::Mode::Exclusive,
                    ttl: Duration::ZERO,
                    if_busy: fencelock_core::IfBusy::Refuse,
                    tokens: 1,
                }),
            }
        }
    }
}

const WAITS: u64 = 1;

struct LeaseAcquisition {
    backend: Arc<LeaseBackend>,
    claim: Arc<Claim>,
    entry: Entry,
    /// Of this process's record when the claim was queued: another one means that the server has
    /// forgotten the process meanwhile.
    epoch: AtomicU64,
    waits: AtomicU64,
    pushed: AtomicU64,
}

/// The core's reference to an acquisition; pushes find it by a weak one.
pub(crate) struct SharedAcquisition(Arc<LeaseAcquisition>);

impl Acquisition for SharedAcquisition {
    fn claim(&self) -> &Arc<Claim> {
        &self.0.claim
    }

    async fn attempt(&self) -> Result<AttemptOutcome> {
        self.0.attempt().await
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        self.0.release().await
    }

    async fn downgrade(&self) -> Result<RenewOutcome> {
        let (backend, entry) = (&self.0.backend, self.0.entry);
        let sent = backend.clock.now();
        let asked = backend.ask(entry.who.claim, move |server| server.downgrade(entry));
        Ok(match asked.await? {
            true => RenewOutcome::Renewed { valid_until: lease_end(sent, entry.ttl) },
            false => RenewOutcome::Lost,
        })
    }
}

impl LeaseAcquisition {
    async fn attempt(&self) -> Result<AttemptOutcome> {
        let (entry, sent) = (self.entry, self.backend.clock.now());
        let pushed = self.pushed.swap(0, Ordering::Relaxed);
        if pushed != 0 {
            return Ok(self.backend.granted(&self.claim, sent, pushed));
        }
        let asked = self.backend.ask(entry.who.claim, move |server| server.attempt(entry));
        let answer = asked.await?;
        self.waits.store(0, Ordering::Relaxed);
        Ok(match answer {
            Answer::Granted { token } => self.backend.granted(&self.claim, sent, token),
            Answer::Busy => AttemptOutcome::Busy { rest: Residue::Nothing },
            Answer::Waiting { check_after, epoch } => {
                self.waits.store(WAITS, Ordering::Relaxed);
                self.epoch.store(epoch, Ordering::Relaxed);
                AttemptOutcome::Waiting { check_after }
            }
        })
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        let entry = self.entry;
        let removed =
            self.backend.ask(entry.who.claim, move |server| server.release(entry)).await?;
        Ok(if removed { ReleaseOutcome::Removed } else { ReleaseOutcome::Absent })
    }
}

impl Drop for LeaseAcquisition {
    fn drop(&mut self) {
        let mut acquisitions =
            self.backend.acquisitions.lock().unwrap_or_else(PoisonError::into_inner);
        acquisitions.remove(&self.entry.who.claim);
    }
}

/// Locks of the simulation are called `l0`, `l1` and so on.
pub(crate) fn lock_number(name: &LockName) -> usize {
    name.as_str().trim_start_matches('l').parse().unwrap_or(0)
}
