//! A backend that fails by itself now and then, whatever its store does: it panics, it stays away
//! for long or for ever, it keeps its whole process from running, or it forgets the answer.

use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, Clock, DistributedLock, Error, ErrorKind, LockName,
    ParticipantId, Profile, ReleaseOutcome, RenewOutcome, Result, Snapshot, WaiterCheck,
};
use tokio::time::sleep;

use crate::world::conditions::Conditions;
use crate::world::dice::Dice;
use crate::world::gate::Gate;
use crate::world::history::History;

/// A backend with faults.
pub(crate) struct Faulty<S> {
    inner: Arc<S>,
    faults: Arc<Faults>,
}

impl<S> Faulty<S> {
    pub(crate) fn new(inner: Arc<S>, faults: Arc<Faults>) -> Faulty<S> {
        Faulty { inner, faults }
    }
}

/// When a backend fails, and how.
pub(crate) struct Faults {
    process: u32,
    gate: Arc<Gate>,
    history: Arc<History>,
    /// In per cent: how often a call fails, before its work or after it.
    chance: u64,
    dice: Mutex<Dice>,
    works: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Panics,
    /// Comes back late.
    Hangs(Duration),
    NeverReturns,
    /// Blocks the thread on which all of its process runs.
    Blocks(Duration),
    /// Only of a renewal or a check of waiters: does the work and gives no answer.
    Forgets,
}

impl Faults {
    pub(crate) fn new(
        process: u32,
        gate: Arc<Gate>,
        history: Arc<History>,
        conditions: &Conditions,
        dice: Dice,
    ) -> Arc<Faults> {
        let (chance, dice, works) =
            (conditions.backend_faults, dice.into(), AtomicBool::new(false));
        Arc::new(Faults { process, gate, history, chance, dice, works })
    }

    /// From now on it only does what it should.
    pub(crate) fn works(&self) {
        self.works.store(true, Ordering::Relaxed);
    }

    fn fault(&self) -> Option<Fault> {
        let mut dice = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
        if self.works.load(Ordering::Relaxed) || !dice.percent(self.chance) {
            return None;
        }
        let longest = dice.pick(&[50, 1_000, 10_000]);
        let length = dice.millis(1..=longest);
        let fault = match dice.below(5) {
            0 => Fault::Panics,
            1 => Fault::Hangs(length),
            2 => Fault::NeverReturns,
            3 => Fault::Blocks(length),
            _ => Fault::Forgets,
        };
        self.history.count(|tally| tally.faults += 1);
        self.history.note(self.process, "backend fails", longest, dice.below(1 << 16));
        Some(fault)
    }

    /// `false` when the call must give no answer.
    async fn stumble(&self) -> bool {
        match self.fault() {
            None => return true,
            Some(Fault::Panics) => panic_silently(),
            Some(Fault::Hangs(length)) => sleep(length).await,
            Some(Fault::NeverReturns) => std::future::pending().await,
            Some(Fault::Blocks(length)) => {
                self.gate.shut();
                let (gate, history, process) =
                    (self.gate.clone(), self.history.clone(), self.process);
                let mut order = self.dice.lock().unwrap_or_else(PoisonError::into_inner).clone();
                tokio::spawn(async move {
                    sleep(length).await;
                    gate.open(&history, process, &mut order);
                });
            }
            Some(Fault::Forgets) => return false,
        }
        self.gate.pass().await;
        true
    }

    /// What `work` answers, with a fault before it or after it.
    async fn around<T>(&self, work: impl Future<Output = T>) -> T {
        self.stumble().await;
        let answer = work.await;
        self.stumble().await;
        answer
    }
}

/// A panic that is not printed, since it was ordered.
fn panic_silently() -> ! {
    resume_unwind(Box::new("the backend panics on the conditions' order"))
}

/// What `work` returns; `None` when it panics.
pub(crate) async fn caught<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(move |cx| {
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
            Ok(poll) => poll.map(Some),
            Err(_) => Poll::Ready(None),
        }
    })
    .await
}

fn forgotten() -> Error {
    Error::new(ErrorKind::Unreachable, "the backend forgets the answer on the conditions' order")
}

impl<S: DistributedLock> DistributedLock for Faulty<S> {
    type Acquisition = FaultyAcquisition<S>;

    fn profile(&self) -> &Profile {
        self.inner.profile()
    }

    fn clock(&self) -> &dyn Clock {
        self.inner.clock()
    }

    fn begin(self: &Arc<Self>, claim: Arc<Claim>) -> FaultyAcquisition<S> {
        if self.faults.fault() == Some(Fault::Panics) {
            panic_silently();
        }
        FaultyAcquisition { faults: self.faults.clone(), inner: self.inner.begin(claim) }
    }

    fn shard(&self, acquisition: &FaultyAcquisition<S>) -> impl Eq + Hash + Send {
        self.inner.shard(&acquisition.inner)
    }

    async fn renew(&self, held: &FaultyAcquisition<S>) -> Result<RenewOutcome> {
        let answers = self.faults.stumble().await;
        let answer = self.inner.renew(&held.inner).await;
        self.faults.stumble().await;
        if answers { answer } else { Err(forgotten()) }
    }

    async fn check_waiters(
        &self,
        lock: &LockName,
        waiting: &[&FaultyAcquisition<S>],
    ) -> Result<Vec<WaiterCheck>> {
        let answers = self.faults.stumble().await;
        let waiting: Vec<_> = waiting.iter().map(|waiter| &waiter.inner).collect();
        let answer = self.inner.check_waiters(lock, &waiting).await;
        self.faults.stumble().await;
        if answers { answer } else { Ok(Vec::new()) }
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.faults.stumble().await;
        self.inner.inspect(name).await
    }

    async fn evict(&self, name: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
        self.inner.evict(name, who).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

pub(crate) struct FaultyAcquisition<S: DistributedLock> {
    faults: Arc<Faults>,
    inner: S::Acquisition,
}

impl<S: DistributedLock> Acquisition for FaultyAcquisition<S> {
    fn claim(&self) -> &Arc<Claim> {
        self.inner.claim()
    }

    async fn attempt(&self) -> Result<AttemptOutcome> {
        self.faults.around(self.inner.attempt()).await
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        self.faults.around(self.inner.release()).await
    }

    async fn downgrade(&self) -> Result<RenewOutcome> {
        self.faults.around(self.inner.downgrade()).await
    }
}
