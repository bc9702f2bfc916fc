//! The suite rejects broken stores, each by the behaviour that names the broken promise, and
//! accepts the same store without the fault.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use fencelock_conformance::{
    BEHAVIOURS, Backdoor, Behaviour, Harness, Need, Outcome, run_behaviour,
};

mod backend;
mod catalogue;
mod cells;
mod harness;
mod mutant;
mod server;

use catalogue::{By, CATALOGUE};
use harness::Toy;
use mutant::Mutant;

/// Enough for a healthy in-process store, so that a broken one is found soon.
const SHORT: Duration = Duration::from_secs(3);

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

/// Runs each pair, a few at a time.
fn run_all(
    pairs: &[(Option<Mutant>, &'static Behaviour)],
    patience: Duration,
) -> Vec<(Option<Mutant>, &'static Behaviour, Outcome)> {
    hush();
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((mutant, behaviour)) = pairs.get(next.fetch_add(1, Ordering::SeqCst)) {
            let harness: Arc<dyn Harness> = Arc::new(Toy(*mutant));
            // A mutant is to be caught whatever the machine does, and nothing else is.
            let outcome = run_behaviour(&harness, behaviour, patience, 42, mutant.is_none());
            results.lock().expect("no panic inside").push((*mutant, *behaviour, outcome));
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

#[test]
fn the_honest_store_passes() {
    let all: Vec<_> = behaviours().map(|behaviour| (None, behaviour)).collect();
    let results = run_all(&all, Duration::from_secs(15));
    assert_eq!(results.len(), behaviours().count());
    for (_, behaviour, outcome) in results {
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

#[test]
fn every_mutant_is_rejected_by_the_behaviour_that_names_its_fault() {
    let mut pairs = Vec::new();
    for (mutant, catchers) in CATALOGUE {
        for catcher in *catchers {
            let By::Suite(catcher) = catcher else { continue };
            let found = behaviours().find(|behaviour| behaviour.full_name() == *catcher);
            pairs.push((Some(*mutant), found.unwrap_or_else(|| panic!("no behaviour {catcher}"))));
        }
    }
    let mut survivors = Vec::new();
    for (mutant, behaviour, outcome) in run_all(&pairs, SHORT) {
        let (mutant, name) = (mutant.unwrap(), behaviour.full_name());
        match outcome {
            Outcome::Failed(why) => println!("{mutant:?}: {name}: {why}"),
            other => survivors.push(format!("{mutant:?} survived {name}: {other:?}")),
        }
    }
    assert!(survivors.is_empty(), "{}", survivors.join("\n"));
}
