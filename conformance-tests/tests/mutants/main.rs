//! The suite rejects broken stores, each by the behaviour that names the broken promise, and
//! accepts the same store without the fault.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use fencelock_conformance::{
    BEHAVIOURS, Backdoor, Behaviour, Harness, Need, Outcome, run_behaviour, serve_if_asked,
};
use fencelock_core::Clock;
use fencelock_core::backend::StoreTime;
use libtest_mimic::{Arguments, Trial};

mod backend;
mod catalogue;
mod cells;
mod harness;
mod mutant;
#[allow(dead_code)]
#[path = "../../examples/own_store.rs"]
mod own_store;
mod server;

use catalogue::{
    By, CATALOGUE, every_mutant_is_in_the_catalogue_once, everything_in_the_catalogue_has_a_test,
};
use harness::Toy;
use mutant::Mutant;

/// Enough for a healthy in-process store, so that a broken one is found soon.
const SHORT: Duration = Duration::from_secs(3);
/// What the suite has by default.
const USUAL: Duration = Duration::from_secs(15);

fn behaviours() -> impl Iterator<Item = &'static Behaviour> {
    BEHAVIOURS.iter().flat_map(|group| group.iter())
}

/// Panics are what is expected here; only those of the tests themselves are worth printing.
fn hush() {
    static HUSHED: Once = Once::new();
    HUSHED.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let current = std::thread::current();
            if !matches!(current.name(), Some("hushed" | "tokio-rt-worker") | None) {
                usual(info);
            }
        }));
    });
}

/// A behaviour to run on a store with this fault, or on the honest one.
struct Pair {
    mutant: Option<Mutant>,
    behaviour: &'static Behaviour,
    patience: Duration,
}

/// Runs each pair, a few at a time.
fn run_all(pairs: &[Pair]) -> Vec<(&Pair, Outcome)> {
    hush();
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(pair) = pairs.get(next.fetch_add(1, Ordering::SeqCst)) {
            let harness: Arc<dyn Harness> = Arc::new(Toy(pair.mutant));
            // A mutant is to be caught whatever the machine does, and nothing else is.
            let fairly = pair.mutant.is_none();
            let outcome = run_behaviour(&harness, pair.behaviour, pair.patience, 42, fairly);
            results.lock().expect("no panic inside").push((pair, outcome));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let builder = std::thread::Builder::new().name("hushed".to_owned());
            builder.spawn_scoped(scope, work).expect("a thread");
        }
    });
    results.into_inner().expect("no panic inside")
}

fn the_honest_store_passes() {
    let pair = |behaviour| Pair { mutant: None, behaviour, patience: USUAL };
    let all: Vec<_> = behaviours().map(pair).collect();
    let results = run_all(&all);
    assert_eq!(results.len(), behaviours().count());
    for (Pair { behaviour, .. }, outcome) in results {
        let name = behaviour.full_name();
        // It lives in one process, and has no connections.
        let absent = [Need::Backdoor(Backdoor::Processes), Need::Backdoor(Backdoor::NetworkFaults)];
        let must_be_ignored = behaviour.needs.iter().any(|need| absent.contains(need));
        match outcome {
            Outcome::Passed => assert!(!must_be_ignored, "{name}"),
            Outcome::Ignored(why) => assert!(must_be_ignored, "{name}: {why}"),
            Outcome::Failed(why) => panic!("{name}: {why}"),
        }
    }
}

fn named(name: &str) -> &'static Behaviour {
    let found = behaviours().find(|behaviour| behaviour.full_name() == name);
    found.unwrap_or_else(|| panic!("no behaviour {name}"))
}

fn every_mutant_is_rejected_by_the_behaviour_that_names_its_fault() {
    let mut pairs = Vec::new();
    for (mutant, catchers) in CATALOGUE {
        for catcher in *catchers {
            let (behaviour, patience) = match catcher {
                By::Suite(name) => (named(name), SHORT),
                By::Late(name) => (named(name), USUAL),
                By::SeedsOfLeases | By::SeedsOfSessions | By::Test(..) => continue,
            };
            pairs.push(Pair { mutant: Some(*mutant), behaviour, patience });
        }
    }
    let mut survivors = Vec::new();
    for (Pair { mutant, behaviour, patience }, outcome) in run_all(&pairs) {
        let (mutant, name) = (mutant.expect("no honest store"), behaviour.full_name());
        match outcome {
            Outcome::Failed(why) if *patience == SHORT || why.contains(" s late") => {
                println!("{mutant:?}: {name}: {why}");
            }
            other => survivors.push(format!("{mutant:?} survived {name}: {other:?}")),
        }
    }
    assert!(survivors.is_empty(), "{}", survivors.join("\n"));
}

/// Of a store across a network that keeps the time of its clients, two machines hold a lock at once.
fn a_record_in_the_time_of_its_clients_is_rejected(own: &Arc<dyn Harness>) {
    hush();
    let behaviour = named("processes::machines_that_booted_at_different_times_exclude_each_other");
    match run_behaviour(own, behaviour, USUAL, 42, false) {
        Outcome::Failed(why) => assert!(why.contains("two machines hold one lock"), "{why}"),
        Outcome::Ignored(why) => println!("ignored: {why}"),
        Outcome::Passed => panic!("it passed"),
    }
}

fn main() {
    let own = own_store::OwnHarness(|_, own| StoreTime::from_nanos(own.now().as_nanos()));
    let own: Arc<dyn Harness> = Arc::new(own);
    serve_if_asked(std::slice::from_ref(&own), None);
    let tests = vec![
        test("the_honest_store_passes", the_honest_store_passes),
        test(
            "every_mutant_is_rejected_by_the_behaviour_that_names_its_fault",
            every_mutant_is_rejected_by_the_behaviour_that_names_its_fault,
        ),
        test("a_record_in_the_time_of_its_clients_is_rejected", move || {
            a_record_in_the_time_of_its_clients_is_rejected(&own);
        }),
        test("every_mutant_is_in_the_catalogue_once", every_mutant_is_in_the_catalogue_once),
        test("everything_in_the_catalogue_has_a_test", everything_in_the_catalogue_has_a_test),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}

fn test(name: &str, run: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        run();
        Ok(())
    })
}
