//! The matrix of stores and behaviours, run by libtest-mimic: each pair is a test of its own.
//!
//! The matrix must be complete. A pair that did not run, and a run of no pair at all, are
//! failures, since a suite that tests nothing is green for ever.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fencelock_core::{Error, ErrorKind, Result};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

use crate::behaviours::BEHAVIOURS;
use crate::harness::Harness;
use crate::harness::scratch::Connect;
use crate::harness::url::UrlHarness;
use crate::processes::peer::process::serve_if_asked;
use crate::suite::{Behaviour, Bounds, Outcome, STOPPED, Subject, run_fairly};

/// The whole of a store's own test target, with `harness = false`. Takes the arguments of
/// `cargo test`, and is also the program of the peer processes.
pub fn main(harness: impl Harness) {
    main_of(&[Arc::new(harness)]);
}

/// As [`main`], for a store that is run in several ways, each with a name of its own.
///
/// Where the environment variable `FENCELOCK_BEHAVIOURS` is set, only the pairs are run whose full name, such as
/// `memory::modes::readers_hold_together`, begins with one of its words; a word that no name begins with is an
/// error.
pub fn main_of(harnesses: &[Arc<dyn Harness>]) {
    serve_if_asked(harnesses, None);
    let only = Only::from_environment();
    if let Some(unknown) = only.unknown(harnesses) {
        eprintln!("{ONLY}: expected the beginning of a test's name, which {unknown:?} is not");
        std::process::exit(101);
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(usual_threads()));
    // A filter may name a test of another target: only a run of all must not be empty.
    let whole = arguments.filter.is_none() && arguments.skip.is_empty() && !arguments.ignored;
    let state = RunState { only, ..RunState::default() };
    let report = run_matrix(harnesses, &arguments, state);
    if arguments.list || (report.is_empty() && !whole) {
        return;
    }
    if let Err(why) = report.verdict() {
        eprintln!("{why}");
        std::process::exit(101);
    }
}

/// Runs every behaviour on every harness. For several stores in one target, and for programs
/// with arguments of their own; [`main`] is the simple form.
#[must_use]
pub fn run_suite(harnesses: &[Arc<dyn Harness>], options: &RunOptions) -> Report {
    run_matrix(harnesses, &options.arguments(), RunState::of(options))
}

/// Runs the suite on the store that `url` names: what `fencelock conformance` does. The program
/// must call [`peer_main_if_asked`](crate::peer_main_if_asked) before anything else, since it is
/// executed again for the peer processes.
///
/// At the end, whatever it is, all that the run made is removed from the store; what could not be
/// is in [`Report::left_behind`].
///
/// # Errors
/// When the first connection fails: there is nothing to test then.
///
/// # Panics
/// Inside a tokio runtime: each behaviour has its own.
pub fn run_against_url(connect: Connect, url: &str, options: &RunOptions) -> Result<Report> {
    let harness = Arc::new(UrlHarness::new(connect, url)?);
    // With a thread of its own, which keeps its client connected while the suite runs.
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|error| {
        Error::new(ErrorKind::Unreachable, "no runtime to connect with").caused_by(error)
    })?;
    let opened = runtime.block_on(options.stop.run_until_cancelled(harness.open_store()));
    let Some(opened) = opened else {
        return Ok(Report { was_stopped: true, ..Report::default() });
    };
    opened?;
    let harnesses: [Arc<dyn Harness>; 1] = [harness.clone()];
    let mut report = run_suite(&harnesses, options);
    report.left_behind = runtime.block_on(harness.clear()).err();
    Ok(report)
}

/// What to run, and how.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RunOptions {
    /// Only behaviours whose name, as `memory::modes::readers_hold_together`, contains this.
    pub filter: Option<String>,
    /// Begins no further behaviour after a failed one. The list begins with exclusion, without which
    /// the rest says little.
    pub fail_fast: bool,
    /// Ends the run when it is cancelled: behaviours under way are cut short, no further one
    /// begins, and what the run made is removed from the store as at any other end.
    pub stop: CancellationToken,
}

impl RunOptions {
    /// Only behaviours whose name contains `filter`.
    #[must_use]
    pub fn filter(mut self, filter: &str) -> RunOptions {
        self.filter = Some(filter.to_owned());
        self
    }

    fn arguments(&self) -> Arguments {
        Arguments {
            filter: self.filter.clone(),
            test_threads: Some(usual_threads()),
            ..Arguments::default()
        }
    }
}

/// How every pair of store and behaviour went.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// By the full name; `None` did not run.
    outcomes: BTreeMap<String, Option<Outcome>>,
    was_stopped: bool,
    left_behind: Option<Error>,
}

impl Report {
    /// Each pair's full name and outcome.
    pub fn outcomes(&self) -> impl Iterator<Item = (&str, Option<&Outcome>)> {
        self.outcomes.iter().map(|(name, outcome)| (name.as_str(), outcome.as_ref()))
    }

    /// Whether nothing was to be run.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    /// How many passed, failed and were ignored.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        let count = |which: fn(&Outcome) -> bool| {
            self.outcomes.values().flatten().filter(|outcome| which(outcome)).count()
        };
        (
            count(|outcome| *outcome == Outcome::Passed),
            count(|outcome| matches!(outcome, Outcome::Failed(_))),
            count(|outcome| matches!(outcome, Outcome::Ignored(_))),
        )
    }

    /// Why something that the suite made stays in the store, if it does. It is not part of the
    /// [`verdict`](Report::verdict): the store may not let its user search it.
    #[must_use]
    pub fn left_behind(&self) -> Option<&Error> {
        self.left_behind.as_ref()
    }

    /// Whether the store may call itself conformant.
    ///
    /// # Errors
    /// In words: a behaviour failed, a pair is missing, the run was stopped, or nothing was tested.
    pub fn verdict(&self) -> Result<(), String> {
        let (passed, failed, _) = self.counts();
        let missing: Vec<&str> = self
            .outcomes()
            .filter_map(|(name, outcome)| outcome.is_none().then_some(name))
            .collect();
        if !missing.is_empty() {
            return Err(format!("did not run: {}", missing.join(", ")));
        }
        if failed > 0 {
            let s = if failed == 1 { "" } else { "s" };
            return Err(format!("{failed} behaviour{s} failed"));
        }
        if self.was_stopped {
            return Err(STOPPED.to_owned());
        }
        if passed == 0 {
            return Err("no behaviour was tested".to_owned());
        }
        Ok(())
    }

    /// Success for a good [`verdict`](Report::verdict), else 1.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self.verdict() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        }
    }
}

/// Behaviours wait more than they work.
fn usual_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).max(2) * 2
}

fn full_name(harness: &Arc<dyn Harness>, behaviour: &Behaviour) -> String {
    format!("{}::{}", harness.name(), behaviour.full_name())
}

const ONLY: &str = "FENCELOCK_BEHAVIOURS";

/// The beginnings of the names of pairs that are to be run; of all, if there is none.
#[derive(Default)]
struct Only(Vec<String>);

impl Only {
    fn from_environment() -> Only {
        let words = std::env::var(ONLY).unwrap_or_default();
        Only(words.split_whitespace().map(str::to_owned).collect())
    }

    fn admits(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|only| name.starts_with(only.as_str()))
    }

    /// One that no pair's name begins with: a behaviour that was renamed would never run again, in silence.
    fn unknown(&self, harnesses: &[Arc<dyn Harness>]) -> Option<&str> {
        let named = |only: &str| {
            let begins = |harness, it| full_name(harness, it).starts_with(only);
            let behaviours = || BEHAVIOURS.iter().flat_map(|group| group.iter());
            harnesses.iter().any(|harness| behaviours().any(|it| begins(harness, it)))
        };
        self.0.iter().map(String::as_str).find(|only| !named(only))
    }
}

type Outcomes = Arc<Mutex<BTreeMap<String, Option<Outcome>>>>;

fn run_matrix(harnesses: &[Arc<dyn Harness>], arguments: &Arguments, state: RunState) -> Report {
    let seed = crate::seed::fresh();
    let state = Arc::new(state);
    let outcomes = Outcomes::default();
    let subjects = harnesses.iter().map(|harness| Arc::new(Subject::new(harness.clone())));
    let pairs = subjects.flat_map(|subject| {
        BEHAVIOURS.iter().flat_map(|group| group.iter()).map(move |it| (subject.clone(), *it))
    });
    let mut trials = Vec::new();
    for (subject, behaviour) in pairs {
        let name = full_name(&subject.harness, &behaviour);
        if !state.only.admits(&name) {
            continue;
        }
        let run = {
            let state = state.clone();
            move || {
                state.watch(|| {
                    run_fairly(&subject, &behaviour, Bounds::GENEROUS, seed, &state.options.stop)
                })
            }
        };
        let trial = trial(name, run, &outcomes);
        if !arguments.is_filtered_out(&trial) && !arguments.is_ignored(&trial) {
            record(&outcomes, trial.name(), None);
        }
        trials.push(trial);
    }
    let _ = libtest_mimic::run(arguments, trials);
    let outcomes = std::mem::take(&mut *outcomes.lock().unwrap_or_else(PoisonError::into_inner));
    Report { outcomes, was_stopped: state.options.stop.is_cancelled(), left_behind: None }
}

/// Whether further behaviours are run.
#[derive(Default)]
struct RunState {
    only: Only,
    options: RunOptions,
    has_failure: AtomicBool,
}

impl RunState {
    fn of(options: &RunOptions) -> RunState {
        RunState { options: options.clone(), ..RunState::default() }
    }

    fn watch(&self, run: impl FnOnce() -> Outcome) -> Outcome {
        if self.options.stop.is_cancelled() {
            return Outcome::Ignored(STOPPED.to_owned());
        }
        if self.options.fail_fast && self.has_failure.load(Ordering::Relaxed) {
            return Outcome::Ignored("another behaviour has failed".to_owned());
        }
        let outcome = run();
        self.has_failure.fetch_or(matches!(outcome, Outcome::Failed(_)), Ordering::Relaxed);
        outcome
    }
}

fn trial(
    name: String,
    run: impl FnOnce() -> Outcome + Send + 'static,
    outcomes: &Outcomes,
) -> Trial {
    let (outcomes, key) = (outcomes.clone(), name.clone());
    Trial::ignorable_test(name, move || {
        let outcome = run();
        record(&outcomes, &key, Some(outcome.clone()));
        match outcome {
            Outcome::Passed => Ok(Completion::Completed),
            Outcome::Failed(why) => Err(Failed::from(why)),
            Outcome::Ignored(reason) => Ok(Completion::ignored_with(reason)),
        }
    })
}

fn record(outcomes: &Outcomes, name: &str, outcome: Option<Outcome>) {
    let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
    outcomes.insert(name.to_owned(), outcome);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcomes: &[(&str, Option<Outcome>)]) -> Report {
        let outcomes = outcomes.iter().map(|(name, outcome)| ((*name).to_owned(), outcome.clone()));
        Report { outcomes: outcomes.collect(), ..Report::default() }
    }

    #[test]
    fn only_a_complete_and_passing_matrix_is_good() {
        let passed = ("a", Some(Outcome::Passed));
        let ignored = ("b", Some(Outcome::Ignored("no such mode".to_owned())));
        let failed = ("c", Some(Outcome::Failed("two holders".to_owned())));
        assert_eq!(report(&[passed.clone(), ignored.clone()]).verdict(), Ok(()));
        for (bad, why) in [
            (report(&[passed.clone(), ("d", None)]), "did not run: d"),
            (report(&[passed, failed]), "1 behaviour failed"),
            (report(&[ignored]), "no behaviour was tested"),
            (Report::default(), "no behaviour was tested"),
        ] {
            assert_eq!(bad.verdict(), Err(why.to_owned()));
        }
    }

    /// Every behaviour is a pair with every store, whether it can be tested there or not.
    #[test]
    fn the_matrix_has_every_pair() {
        let harness: Arc<dyn Harness> = Arc::new(crate::MemoryHarness);
        let options = RunOptions::default().filter("memory::options");
        let run = run_suite(&[harness], &options);
        let listed = BEHAVIOURS.iter().flat_map(|group| group.iter());
        let expected = listed.filter(|it| it.group == "options").count();
        assert_eq!(run.outcomes().count(), expected);
        assert_eq!(run.verdict(), Ok(()));
    }

    #[test]
    fn a_name_that_no_behaviour_has_is_noticed() {
        let harness: [Arc<dyn Harness>; 1] = [Arc::new(crate::MemoryHarness)];
        let unknown = |words: &[&str]| {
            let only = Only(words.iter().map(|word| (*word).to_owned()).collect());
            only.unknown(&harness).map(str::to_owned)
        };
        assert_eq!(unknown(&["memory::options", "memory::names::"]), None);
        assert_eq!(
            unknown(&["memory::options", "memory::nanes"]),
            Some("memory::nanes".to_owned())
        );
    }

    #[test]
    fn after_a_failure_a_run_continues_or_starts_nothing_more() {
        let failed = || Outcome::Failed("two holders".to_owned());
        let passes_after_a_failure = |fail_fast| {
            let state = RunState::of(&RunOptions { fail_fast, ..RunOptions::default() });
            assert_eq!(state.watch(|| Outcome::Passed), Outcome::Passed);
            assert_eq!(state.watch(failed), failed());
            state.watch(|| Outcome::Passed) == Outcome::Passed
        };
        assert!(passes_after_a_failure(false));
        assert!(!passes_after_a_failure(true));
    }
}
