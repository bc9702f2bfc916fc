//! The scripted store of core's tests, with answers as steps that a test can take in any order, also
//! while the store is in use: for races that random runs reach too seldom.

use std::future::pending;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::{
    AttemptOutcome, Error, ErrorKind, Guard, Liveness, Locks, ReleaseOutcome, RenewOutcome,
    RenewalPlan, Result, Snapshot, WaiterCheck,
};
use tokio::time::sleep;

pub(crate) use store::*;

// Core's own tests use the rest of it, and a helper that fails should fail its test.
#[allow(dead_code, clippy::unwrap_used)]
#[path = "../../../../core/tests/promises/scripted.rs"]
mod store;

/// Of every lock of a scripted store, unless a test says otherwise: renewed each second.
pub(crate) const TTL: Duration = Duration::from_secs(3);

pub(crate) fn unreachable() -> Error {
    Error::new(ErrorKind::Unreachable, "the reply was lost")
}

/// A store with leases, a client of it, and a lock of this name that it holds.
pub(crate) async fn holding(name: &str) -> (Arc<Scripted>, Locks, Guard) {
    let store = Scripted::leases();
    let locks = store.locks();
    let guard = locks.lock(name).acquire().await.expect("granted");
    (store, locks, guard)
}

/// What the backend does with one request.
#[derive(Clone, Debug)]
pub(crate) enum Step<T> {
    Now(Result<T>),
    After(Duration, Result<T>),
    Never,
    Panic,
    /// Keeps its thread until the test lets it go, then answers.
    Blocks(Arc<Stall>, Result<T>),
}

/// What a backend does that blocks its thread.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    state: Mutex<Stalled>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Stalled {
    begun: bool,
    over: bool,
}

impl Stall {
    pub(crate) fn block(&self) {
        let mut state = self.locked();
        state.begun = true;
        while !state.over {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn locked(&self) -> MutexGuard<'_, Stalled> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.locked().begun
    }

    pub(crate) fn end(&self) {
        self.locked().over = true;
        self.changed.notify_all();
    }
}

impl<T> Step<T> {
    async fn play(self) -> Result<T> {
        match self {
            Step::Now(answer) => answer,
            Step::After(delay, answer) => {
                sleep(delay).await;
                answer
            }
            Step::Never => pending().await,
            Step::Panic => panic!("the backend panics on the test's order"),
            Step::Blocks(stall, answer) => {
                stall.block();
                answer
            }
        }
    }
}

impl Scripted {
    /// A store that grants, renews and releases whatever it is asked to.
    pub(crate) fn new(liveness: Liveness, renewal: RenewalPlan) -> Arc<Scripted> {
        let script = Script::new().liveness(liveness, renewal);
        script.ttl(TTL).unreachable_after(5 * SECOND).store()
    }

    pub(crate) fn leases() -> Arc<Scripted> {
        Scripted::new(Liveness::Lease, RenewalPlan::ThirdOfTtl)
    }

    /// What every inspection gets.
    pub(crate) fn on_inspect(&self, step: Step<Snapshot>) {
        self.change(|script| script.inspections(move |()| step.clone().play()));
    }

    pub(crate) fn on_attempt(
        &self,
        step: impl Fn(One) -> Step<AttemptOutcome> + Send + Sync + 'static,
    ) {
        self.change(|script| script.attempts(move |asked| step(asked).play()));
    }

    pub(crate) fn on_release(
        &self,
        step: impl Fn(One) -> Step<ReleaseOutcome> + Send + Sync + 'static,
    ) {
        self.change(|script| script.releases(move |asked| step(asked).play()));
    }

    pub(crate) fn on_renew(
        &self,
        step: impl Fn(One) -> Step<RenewOutcome> + Send + Sync + 'static,
    ) {
        self.change(|script| script.renewals(move |asked| step(asked).play()));
    }

    pub(crate) fn on_check(
        &self,
        step: impl Fn(Many) -> Step<Vec<WaiterCheck>> + Send + Sync + 'static,
    ) {
        self.change(|script| script.checks(move |asked| step(asked).play()));
    }
}
