//! Runs one behaviour on one store: checks its needs, runs it under a watchdog, and searches for
//! leftovers.

pub(crate) mod context;
pub(crate) mod needs;
pub mod waiting;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::harness::Harness;
use crate::suite::context::Context;
use crate::suite::needs::{Lacking, Need};
use crate::time::stall_detector::StallDetector;

/// Something every store must do, or must do if it meets the needs.
#[derive(Clone, Copy)]
pub struct Behaviour {
    /// The guarantee, as a sentence.
    pub name: &'static str,
    /// The part of the suite.
    pub group: &'static str,
    /// Requirements of its test.
    pub needs: &'static [Need],
    /// Runs the test; panics if the guarantee is violated.
    pub run: &'static dyn Start,
}

/// A behaviour under way. It stays on the thread that runs it; what it spawns does not.
pub type Running = Pin<Box<dyn Future<Output = ()>>>;

/// An async function on a store: a behaviour's.
pub trait Start: Sync {
    /// Begins it.
    fn start(&self, context: Arc<Context>) -> Running;
}

impl<F, Ended> Start for F
where
    F: Fn(Arc<Context>) -> Ended + Sync,
    Ended: Future<Output = ()> + 'static,
{
    fn start(&self, context: Arc<Context>) -> Running {
        Box::pin(self(context))
    }
}

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

/// A failure while the machine was stalled for this long in all says nothing about the store.
const STOOD_STILL: Duration = Duration::from_millis(200);
/// The limit of runs of a behaviour while the machine is stalled.
const RUNS: u32 = 3;

/// The reason of a behaviour that was stopped or not started.
pub(crate) const STOPPED: &str = "the run was stopped";

/// The outcome of a run, and whether a delay may explain it.
pub(crate) struct Run {
    outcome: Outcome,
    /// A guarantee was violated that no delay excuses.
    is_final: bool,
}

/// A store that the suite runs on.
pub(crate) struct Subject {
    pub(crate) harness: Arc<dyn Harness>,
    lacking: Lacking,
}

impl Subject {
    pub(crate) fn new(harness: Arc<dyn Harness>) -> Subject {
        Subject { harness, lacking: Lacking::default() }
    }
}

/// Runs one behaviour on a runtime of its own; `fairly`: again if it fails while the machine is stalled, three times in
/// all. `patience` bounds each event it waits for; a broken store is found sooner with less of it, a slow one needs more.
pub fn run_behaviour(
    harness: &Arc<dyn Harness>,
    behaviour: &Behaviour,
    patience: Duration,
    seed: u64,
    fairly: bool,
) -> Outcome {
    let (subject, never) = (Subject::new(harness.clone()), CancellationToken::new());
    let bounds = Bounds::with_patience(patience);
    match fairly {
        true => run_fairly(&subject, behaviour, bounds, seed, &never),
        false => run(&subject, behaviour, bounds, seed, &never).outcome,
    }
}

/// Repeats a behaviour that failed while the machine was stalled: then leases end and waits take
/// too long on any store. Exclusion and tokens do not depend on time, so their violation is final.
pub(crate) fn run_fairly(
    subject: &Subject,
    behaviour: &Behaviour,
    bounds: Bounds,
    seed: u64,
    stop: &CancellationToken,
) -> Outcome {
    fairly(behaviour.name, || {
        let stalls = StallDetector::start();
        let run = run(subject, behaviour, bounds, seed, stop);
        (run, stalls.stood_still())
    })
}

fn fairly(name: &str, mut run: impl FnMut() -> (Run, Duration)) -> Outcome {
    let mut runs = 1;
    loop {
        let (Run { outcome, is_final }, stood_still) = run();
        let is_open = !is_final && runs < RUNS && stood_still >= STOOD_STILL;
        match &outcome {
            Outcome::Failed(why) if is_open => {
                eprintln!(
                    "{name}: repeated, because the machine was stalled for {stood_still:?}: {why}"
                );
            }
            _ => return outcome,
        }
        runs += 1;
    }
}

fn run(
    subject: &Subject,
    behaviour: &Behaviour,
    bounds: Bounds,
    seed: u64,
    stop: &CancellationToken,
) -> Run {
    // Two workers, so that tasks of one client run in parallel.
    let built = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = match built {
        Ok(runtime) => runtime,
        Err(error) => return Run::of(Outcome::Failed(format!("no runtime: {error}"))),
    };
    let mut run = runtime.block_on(async {
        tokio::select! {
            biased;
            () = stop.cancelled() => Run::of(Outcome::Ignored(STOPPED.to_owned())),
            run = judged(subject, behaviour, bounds, seed) => run,
        }
    });
    // A hanging task must not hang the suite. Clients and peers end here at the latest.
    runtime.shutdown_timeout(Duration::from_secs(1));
    if let Outcome::Failed(why) = &mut run.outcome {
        why.push_str(&format!(" (seed {seed})"));
    }
    run
}

impl Run {
    fn of(outcome: Outcome) -> Run {
        Run { outcome, is_final: false }
    }
}

async fn judged(subject: &Subject, behaviour: &Behaviour, bounds: Bounds, seed: u64) -> Run {
    if let Some(reason) = subject.lacking.known(behaviour.needs) {
        return Run::of(Outcome::Ignored(reason));
    }
    let open = Context::open(subject.harness.clone(), bounds.patience, seed);
    let opening = timeout(bounds.watchdog, open);
    let context = match opening.await {
        Ok(Ok(context)) => Arc::new(context),
        Ok(Err(error)) => {
            return Run::of(Outcome::Failed(format!("cannot open the store: {error:?}")));
        }
        Err(_) => return Run::of(Outcome::Failed("opening the store hangs".to_owned())),
    };
    let lacking = subject.lacking.of(behaviour.needs, context.profile(), context.store());
    if let Some(reason) = lacking {
        context.close().await;
        return Run::of(Outcome::Ignored(reason));
    }
    let work = crate::panics::caught(behaviour.run.start(context.clone()));
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
    let is_final = context.has_failed_finally();
    match outcome {
        Outcome::Failed(why) if is_final => {
            Run { outcome: Outcome::Failed(format!("a promise is broken: {why}")), is_final }
        }
        outcome => Run { outcome, is_final },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: fn() -> Run = || Run::of(Outcome::Failed("lost".to_owned()));
    const PASSED: fn() -> Run = || Run::of(Outcome::Passed);

    /// The outcome, and the number of runs that it took.
    fn runs_of(stood_still: Duration, runs: &[fn() -> Run]) -> (bool, usize) {
        let mut taken = 0;
        let outcome = fairly("frees", || {
            taken += 1;
            (runs[(taken - 1).min(runs.len() - 1)](), stood_still)
        });
        (outcome == Outcome::Passed, taken)
    }

    #[test]
    fn only_a_machine_that_stood_still_excuses_a_failure() {
        assert_eq!(runs_of(Duration::ZERO, &[FAILED, PASSED]), (false, 1));
        assert_eq!(runs_of(STOOD_STILL, &[FAILED, FAILED, PASSED]), (true, 3));
        assert_eq!(runs_of(STOOD_STILL, &[PASSED]), (true, 1));
    }

    #[test]
    fn nothing_excuses_a_failure_for_ever_or_a_broken_promise() {
        assert_eq!(runs_of(STOOD_STILL, &[FAILED]), (false, 3));
        let broken = || Run { is_final: true, ..FAILED() };
        assert_eq!(runs_of(STOOD_STILL, &[broken, PASSED]), (false, 1));
    }
}
