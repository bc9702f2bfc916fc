//! A backend that fails by itself now and then, whatever its store does: it panics, it stays away
//! for long or for ever, it keeps its whole process from running, or it forgets to report.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, Clock, DistributedLock, LockName, ParticipantId, Profile,
    ReleaseOutcome, RenewOutcome, Report, Result, Snapshot, WaiterCheck,
};
use tokio::time::sleep;

use crate::conditions::Conditions;
use crate::dice::Dice;
use crate::gate::Gate;
use crate::history::History;

pub(crate) struct Faulty {
    inner: Arc<dyn DistributedLock>,
    process: u32,
    gate: Arc<Gate>,
    history: Arc<History>,
    /// In per cent: how often a call fails, before its work or after it.
    chance: u64,
    dice: Mutex<Dice>,
    works: AtomicBool,
    me: Weak<Faulty>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Panics,
    /// Comes back late.
    Hangs(Duration),
    NeverReturns,
    /// Blocks the thread on which all of its process runs.
    Blocks(Duration),
    /// Only of a batch: does its work and tells nobody.
    Forgets,
}

impl Faulty {
    pub(crate) fn new(
        inner: Arc<dyn DistributedLock>,
        process: u32,
        gate: Arc<Gate>,
        history: Arc<History>,
        conditions: &Conditions,
        dice: Dice,
    ) -> Arc<Faulty> {
        let chance = conditions.backend_faults;
        Arc::new_cyclic(|me| Faulty {
            inner,
            process,
            gate,
            history,
            chance,
            dice: Mutex::new(dice),
            works: AtomicBool::new(false),
            me: me.clone(),
        })
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

    /// `false` when the call is to tell nothing.
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
}

/// A panic that nobody prints, as it is what was ordered.
fn panic_silently() -> ! {
    resume_unwind(Box::new("the backend panics on the conditions's order"))
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

fn inner(contenders: &[Arc<dyn Acquisition>]) -> Vec<Arc<dyn Acquisition>> {
    let inner = contenders.iter().map(|contender| {
        let any: &dyn std::any::Any = contender.as_ref();
        let acquisition: &FaultyAcquisition =
            any.downcast_ref().expect("a backend gets its own acquisitions only");
        acquisition.inner.clone()
    });
    inner.collect()
}

#[async_trait]
impl DistributedLock for Faulty {
    fn profile(&self) -> &Profile {
        self.inner.profile()
    }

    fn clock(&self) -> &dyn Clock {
        self.inner.clock()
    }

    fn begin(&self, claim: Arc<Claim>) -> Arc<dyn Acquisition> {
        if self.fault() == Some(Fault::Panics) {
            panic_silently();
        }
        let Some(backend) = self.me.upgrade() else { unreachable!("the backend is being called") };
        Arc::new(FaultyAcquisition { backend, inner: self.inner.begin(claim) })
    }

    async fn renew(&self, held: &[Arc<dyn Acquisition>], report: Report<'_, RenewOutcome>) {
        let tells = self.stumble().await;
        let told = |index, answer| {
            if tells {
                report(index, answer);
            }
        };
        self.inner.renew(&inner(held), &told).await;
        self.stumble().await;
    }

    async fn check_waiters(
        &self,
        waiting: &[Arc<dyn Acquisition>],
        report: Report<'_, WaiterCheck>,
    ) {
        let tells = self.stumble().await;
        let told = |index, answer| {
            if tells {
                report(index, answer);
            }
        };
        self.inner.check_waiters(&inner(waiting), &told).await;
        self.stumble().await;
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.stumble().await;
        self.inner.inspect(name).await
    }

    async fn evict(&self, name: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
        self.inner.evict(name, who).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

struct FaultyAcquisition {
    backend: Arc<Faulty>,
    inner: Arc<dyn Acquisition>,
}

#[async_trait]
impl Acquisition for FaultyAcquisition {
    fn claim(&self) -> &Arc<Claim> {
        self.inner.claim()
    }

    async fn attempt(&self) -> Result<AttemptOutcome> {
        self.backend.stumble().await;
        let answer = self.inner.attempt().await;
        self.backend.stumble().await;
        answer
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        self.backend.stumble().await;
        let answer = self.inner.release().await;
        self.backend.stumble().await;
        answer
    }
}
