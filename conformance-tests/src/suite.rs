//! One behaviour on one store: its needs, its run under a watchdog, and the look for leftovers.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::context::Context;
use crate::harness::Harness;
use crate::needs::Need;

/// Something every store must do, or must do if it meets the needs.
#[derive(Clone, Copy)]
pub struct Behaviour {
    /// The promise, in words.
    pub name: &'static str,
    /// The part of the suite.
    pub group: &'static str,
    /// What it cannot be tested without.
    pub needs: &'static [Need],
    /// Keeps the promise, or panics, or says what is wrong.
    pub run: fn(Arc<Context>) -> Running,
}

/// A behaviour under way. It stays on the thread that runs it; what it spawns does not.
pub type Running = Pin<Box<dyn Future<Output = ()>>>;

impl Behaviour {
    /// `group::name`, unique in the suite.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}::{}", self.group, self.name)
    }
}

impl fmt::Debug for Behaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Behaviour")
            .field("name", &self.full_name())
            .field("needs", &self.needs)
            .finish_non_exhaustive()
    }
}

/// How a behaviour went on a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As it should.
    Passed,
    /// Not as it should, and how.
    Failed(String),
    /// Not tested, and why not.
    Ignored(String),
}

/// How patient a run is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// How long a single event may take.
    pub(crate) patience: Duration,
    /// How long a whole behaviour may take.
    pub(crate) watchdog: Duration,
}

impl Bounds {
    /// For a busy machine.
    pub(crate) const GENEROUS: Bounds =
        Bounds { patience: Duration::from_secs(15), watchdog: Duration::from_secs(90) };

    pub(crate) fn with_patience(patience: Duration) -> Bounds {
        Bounds { patience, watchdog: patience * 10 }
    }
}

/// Runs one behaviour on a runtime of its own. `patience` bounds each event it waits for; a broken
/// store is found sooner with less of it, a slow one needs more.
pub fn run_behaviour(
    harness: &Arc<dyn Harness>,
    behaviour: &Behaviour,
    patience: Duration,
    seed: u64,
) -> Outcome {
    run(harness, behaviour, Bounds::with_patience(patience), seed)
}

pub(crate) fn run(
    harness: &Arc<dyn Harness>,
    behaviour: &Behaviour,
    bounds: Bounds,
    seed: u64,
) -> Outcome {
    // Two workers, so that tasks of one client meet in parallel.
    let built = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = match built {
        Ok(runtime) => runtime,
        Err(error) => return Outcome::Failed(format!("no runtime: {error}")),
    };
    let outcome = runtime.block_on(judged(harness.clone(), behaviour, bounds, seed));
    // Whatever hangs on it must not hang the suite.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match outcome {
        Outcome::Failed(why) => Outcome::Failed(format!("{why} (seed {seed})")),
        other => other,
    }
}

async fn judged(
    harness: Arc<dyn Harness>,
    behaviour: &Behaviour,
    bounds: Bounds,
    seed: u64,
) -> Outcome {
    let opening = timeout(bounds.watchdog, Context::open(harness, bounds.patience, seed));
    let context = match opening.await {
        Ok(Ok(context)) => Arc::new(context),
        Ok(Err(error)) => return Outcome::Failed(format!("cannot open the store: {error}")),
        Err(_) => return Outcome::Failed("opening the store hangs".to_owned()),
    };
    let lacking = |need: &Need| need.lacking(context.profile(), context.store());
    if let Some(reason) = behaviour.needs.iter().find_map(lacking) {
        context.close().await;
        return Outcome::Ignored(reason);
    }
    let work = crate::panics::caught((behaviour.run)(context.clone()));
    let outcome = match timeout(bounds.watchdog, work).await {
        Ok(Ok(())) => match context.audit().await {
            Ok(()) => Outcome::Passed,
            Err(left) => Outcome::Failed(left),
        },
        Ok(Err(panic)) => Outcome::Failed(panic),
        Err(_) => {
            let step = context.last_step();
            Outcome::Failed(format!("hangs: not done in {:?}; last: {step}", bounds.watchdog))
        }
    };
    context.close().await;
    outcome
}
