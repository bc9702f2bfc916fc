//! The suite rejects broken stores, each by the behaviour that names the broken promise, and
//! accepts the same store without the fault.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use fencelock_conformance::{BEHAVIOURS, Behaviour, Harness, Outcome, run_behaviour};

mod driver;
mod harness;
mod mutant;
mod server;

use harness::Toy;
use mutant::Mutant;

/// Each mutant, and the behaviours that must reject it.
const CAUGHT_BY: &[(Mutant, &[&str])] = &[
    (
        Mutant::ReleaseFreesAnybody,
        &[
            "cancel::a_cancelled_waiter_frees_nobody",
            "ownership::a_thawed_holder_does_not_free_a_successor",
        ],
    ),
    (Mutant::ReleaseAlwaysRemoved, &["validity::a_forgotten_grant_is_lost_and_stays_so"]),
    (
        Mutant::RenewalResurrects,
        &[
            "inspecting::an_evicted_holder_is_lost",
            "validity::a_forgotten_grant_is_lost_and_stays_so",
        ],
    ),
    (Mutant::RenewsOnlyTheFirst, &["renewal::a_thousand_held_locks_are_renewed"]),
    (
        Mutant::NoTtl,
        &[
            "ownership::a_guard_outlives_its_runtime_without_harm",
            "validity::a_frozen_holder_is_lost_before_it_looks",
            "modes::a_lost_holder_gives_its_permits_back",
        ],
    ),
    (Mutant::ForgetsEarly, &["renewal::a_lock_is_kept_long_past_its_ttl"]),
    (Mutant::TokenFromIncr, &["tokens::tokens_rise_when_the_store_loses_its_data"]),
    (Mutant::TokenDiesWithTheLock, &["tokens::tokens_rise_when_everybody_has_left"]),
    (Mutant::SharedTokensRepeat, &["tokens::tokens_of_shared_grants_are_unique"]),
    (Mutant::DeadlineFromReply, &["validity::validity_counts_from_before_the_request"]),
    (
        Mutant::DoubleGrant,
        &[
            "exclusion::clients_exclude_each_other",
            "exclusion::nobody_overlaps_in_a_restless_crowd",
            "exclusion::an_unprotected_counter_loses_no_update",
        ],
    ),
    (
        Mutant::ForgetsWhoAsked,
        &[
            "replies::a_grant_whose_reply_was_lost_is_found_again",
            "replies::a_place_whose_reply_was_lost_is_found_again",
        ],
    ),
    (Mutant::TryStaysQueued, &["waiting::a_try_leaves_nothing_in_the_queue"]),
    (
        Mutant::CancelLeavesEntry,
        &[
            "cancel::a_cancelled_waiter_frees_nobody",
            "waiting::a_wait_that_timed_out_leaves_no_place",
        ],
    ),
    (Mutant::WakeLostOnCancel, &["cancel::waiters_cancelled_at_the_hand_over_lose_no_turn"]),
    (Mutant::NoBell, &["waiting::no_wake_up_is_missed_under_stress"]),
    (Mutant::WakesOnlyOne, &["modes::one_release_wakes_all_who_fit"]),
    (Mutant::FrozenWaiterBlocks, &["waiting::a_frozen_waiter_is_passed_over"]),
    (Mutant::LastComeFirstServed, &["waiting::waiters_are_served_in_arrival_order"]),
    (
        Mutant::Overtaking,
        &["modes::readers_cannot_starve_a_writer", "modes::a_big_request_is_not_starved"],
    ),
    (Mutant::SharedIsExclusive, &["modes::readers_hold_together"]),
    (
        Mutant::PermitsCountedByClaims,
        &["modes::several_permits_are_taken_at_once", "modes::permits_never_exceed_their_limit"],
    ),
    (Mutant::ModesApart, &["modes::all_modes_of_a_name_are_one_lock"]),
    (Mutant::NamesFoldCase, &["names::similar_names_are_different_locks"]),
    (Mutant::NamesCut, &["names::the_longest_names_differ_in_their_last_byte"]),
    (Mutant::NamesMapSlashes, &["names::similar_names_are_different_locks"]),
    (Mutant::ShowsOwner, &["errors::no_secret_is_ever_shown"]),
    (Mutant::EvictsAnybody, &["inspecting::evicting_nobody_evicts_nobody"]),
    (Mutant::EvictsNobody, &["inspecting::an_evicted_holder_is_lost"]),
];

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
            let outcome = run_behaviour(&harness, behaviour, patience, 42);
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
        match outcome {
            Outcome::Passed => assert_ne!(behaviour.group, "processes"),
            Outcome::Ignored(_) => assert_eq!(behaviour.group, "processes", "{name}"),
            Outcome::Failed(why) => panic!("{name}: {why}"),
        }
    }
}

#[test]
fn every_mutant_is_rejected_by_the_behaviour_that_names_its_fault() {
    let mut pairs = Vec::new();
    for (mutant, catchers) in CAUGHT_BY {
        for catcher in *catchers {
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
