//! Every way of being wrong that these tests know, and what rejects it, so that nothing on it can
//! lose its test unnoticed.
//!
//! Broken stores are made on purpose and run. The core has no switches for its faults: docs/proof.md
//! says which lines a person may break, and which tests fail then.

use std::fs;
use std::path::Path;

use fencelock_conformance::BEHAVIOURS;

use crate::mutant::Mutant;

/// Who rejects a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// A behaviour of the suite, on the toy store with this fault.
    Suite(&'static str),
    /// The same, whatever patience the suite has: it names what is late.
    Late(&'static str),
    /// Random seeds, on the simulated store with leases that has this fault.
    SeedsOfLeases,
    /// The same with sessions.
    SeedsOfSessions,
    /// A test by its file and name.
    Test(&'static str, &'static str),
}

use By::{Late, SeedsOfLeases, SeedsOfSessions, Suite, Test};

const BACKENDS: &str = "conformance-tests/tests/simulation/backends.rs";

/// Each mutant, in the order of their list.
pub(crate) const CATALOGUE: &[(Mutant, &[By])] = &[
    (
        Mutant::ReleaseFreesAnybody,
        &[
            Suite("cancel::a_cancelled_waiter_releases_no_other_hold"),
            Suite("ownership::a_thawed_holder_does_not_free_a_successor"),
            SeedsOfLeases,
        ],
    ),
    (Mutant::ReleaseAlwaysRemoved, &[Suite("validity::a_forgotten_grant_is_lost_and_stays_so")]),
    (
        Mutant::RenewalResurrects,
        &[
            Suite("inspecting::an_evicted_holder_is_lost"),
            Suite("validity::a_forgotten_grant_is_lost_and_stays_so"),
            SeedsOfLeases,
        ],
    ),
    (Mutant::RenewsOnlyTheFirst, &[Suite("renewal::a_thousand_held_locks_are_renewed")]),
    (
        Mutant::NoTtl,
        &[
            Suite("ownership::a_guard_outlives_its_runtime_without_harm"),
            Suite("validity::a_frozen_holder_finds_its_lock_lost_after_the_freeze"),
            Suite("modes::a_lost_holder_releases_its_permits"),
            Suite("lost_handoffs::a_frozen_client_hands_on_nothing_after_its_thaw"),
            SeedsOfLeases,
        ],
    ),
    (Mutant::ForgetsEarly, &[Suite("renewal::a_lock_is_kept_long_past_its_ttl")]),
    (
        Mutant::DeadlineFromReply,
        &[Suite("validity::validity_counts_from_before_the_request"), SeedsOfLeases],
    ),
    (
        Mutant::RepeatedAttemptExtendsNothing,
        &[Suite("replies::a_grant_found_again_is_relied_on_only_for_its_lease")],
    ),
    (
        Mutant::ClockOfEachClient,
        &[Suite("exclusion::clients_that_connected_at_different_times_exclude_each_other")],
    ),
    (
        Mutant::DoubleGrant,
        &[
            Suite("exclusion::clients_exclude_each_other"),
            Suite("exclusion::no_two_holders_overlap_under_contention"),
            SeedsOfLeases,
        ],
    ),
    (
        Mutant::ForgetsWhoAsked,
        &[
            Suite("replies::a_grant_whose_reply_was_lost_is_found_again"),
            Suite("replies::a_queue_place_whose_reply_was_lost_is_found_again"),
        ],
    ),
    (
        Mutant::TokenFromIncr,
        &[Suite("tokens::tokens_rise_when_the_store_loses_its_data"), SeedsOfLeases],
    ),
    (Mutant::TokenDiesWithTheLock, &[Suite("tokens::tokens_rise_after_all_clients_have_left")]),
    (Mutant::SharedTokensRepeat, &[Suite("tokens::tokens_of_shared_grants_are_unique")]),
    (
        Mutant::NoTokensReserved,
        &[
            Suite("handoffs::tokens_rise_with_every_turn_across_clients"),
            Suite("lost_handoffs::an_evicted_tenure_is_lost"),
            SeedsOfLeases,
        ],
    ),
    (
        Mutant::ReservesAheadOfTime,
        &[Suite("lost_handoffs::tokens_rise_over_hand_offs_when_the_store_loses_its_data")],
    ),
    (Mutant::DowngradeStaysExclusive, &[Suite("downgrade::a_downgraded_writer_lets_readers_in")]),
    (
        Mutant::DowngradeLetsGo,
        &[Suite("downgrade::a_downgraded_writer_keeps_writers_out"), SeedsOfLeases],
    ),
    (Mutant::DowngradeMintsToken, &[Suite("downgrade::a_downgrade_keeps_the_token")]),
    (Mutant::ReleaseKnowsOneForm, &[SeedsOfLeases]),
    (Mutant::TryStaysQueued, &[Suite("waiting::a_try_leaves_nothing_in_the_queue"), SeedsOfLeases]),
    (
        Mutant::CancelLeavesEntry,
        &[
            Suite("cancel::a_cancelled_waiter_releases_no_other_hold"),
            Suite("waiting::a_wait_that_timed_out_leaves_the_queue"),
            Suite("handoffs::a_thousand_random_drops_leave_nothing"),
        ],
    ),
    (
        Mutant::WakeLostOnCancel,
        &[Suite("cancel::waiters_cancelled_at_the_hand_off_lose_no_turn"), SeedsOfLeases],
    ),
    (
        Mutant::NoWakeUps,
        &[
            Late("waiting::a_waiter_is_woken_by_the_release"),
            Suite("waiting::no_wake_up_is_missed_under_stress"),
        ],
    ),
    (Mutant::WatchBeginsLate, &[Late("waiting::a_release_wakes_a_waiter_that_is_just_queuing")]),
    (Mutant::GrantNotReported, &[SeedsOfLeases]),
    (Mutant::WakesOnlyOne, &[Suite("modes::one_release_wakes_all_waiters_that_fit")]),
    (
        Mutant::FrozenWaiterBlocks,
        &[Suite("waiting::a_frozen_waiter_is_passed_over"), SeedsOfLeases],
    ),
    (
        Mutant::LastComeFirstServed,
        &[Suite("waiting::waiters_are_served_in_arrival_order"), SeedsOfLeases],
    ),
    (
        Mutant::Overtaking,
        &[
            Suite("modes::readers_cannot_starve_a_writer"),
            Suite("modes::a_big_request_is_not_starved"),
        ],
    ),
    (Mutant::PushIsTheGrant, &[SeedsOfLeases]),
    (
        Mutant::StrayIgnored,
        &[Test(BACKENDS, "a_dead_claim_of_a_live_process_does_not_hold_up_the_queue")],
    ),
    (
        Mutant::HeldIsStray,
        &[SeedsOfLeases, Test(BACKENDS, "a_late_push_does_not_free_what_is_held")],
    ),
    (Mutant::WaitersNotVerified, &[SeedsOfLeases]),
    (Mutant::SharedIsExclusive, &[Suite("modes::readers_hold_together")]),
    (Mutant::ReadersAlways, &[SeedsOfLeases]),
    (Mutant::PermitsCountedByClaims, &[Suite("modes::permits_never_exceed_their_limit")]),
    (Mutant::ModesApart, &[Suite("modes::all_modes_of_a_name_are_one_lock")]),
    (Mutant::NamesFoldCase, &[Suite("names::similar_names_are_different_locks")]),
    (Mutant::NamesCut, &[Suite("names::the_longest_names_differ_in_their_last_byte")]),
    (Mutant::NamesMapSlashes, &[Suite("names::similar_names_are_different_locks")]),
    (Mutant::ClearsEverything, &[Suite("names::clearing_scratch_names_leaves_other_locks")]),
    (Mutant::ShowsOwner, &[Suite("errors::no_secret_is_ever_shown")]),
    (
        Mutant::EvictsAnyClaim,
        &[Suite("inspecting::evicting_an_unknown_participant_changes_nothing")],
    ),
    (
        Mutant::EvictsNone,
        &[
            Suite("inspecting::an_evicted_holder_is_lost"),
            Suite("lost_handoffs::an_evicted_tenure_is_lost"),
        ],
    ),
    (
        Mutant::CellSwapComparesNothing,
        &[
            Suite("cells::only_one_of_many_first_writes_wins"),
            Suite("cells::a_swap_from_an_old_stamp_changes_nothing"),
            Suite("counters::additions_of_all_clients_add_up_and_no_sum_is_given_twice"),
        ],
    ),
    (
        Mutant::CellFirstWriteOverwrites,
        &[
            Suite("cells::only_one_of_many_first_writes_wins"),
            Suite("cells::a_repeated_swap_is_the_same_swap"),
        ],
    ),
    (Mutant::CellRepetitionIsRefused, &[Suite("cells::a_repeated_swap_is_the_same_swap")]),
    (
        Mutant::CellIsNotWatched,
        &[
            Late("cells::a_watch_is_notified_of_every_last_change"),
            Suite("latches::all_waiters_of_all_clients_are_told"),
            Suite("barriers::nobody_passes_before_all_have_arrived"),
        ],
    ),
    (
        Mutant::CellWatchBeginsLate,
        &[Late("cells::no_change_is_missed_between_reading_and_watching")],
    ),
    (Mutant::CellReadsLag, &[Suite("cells::what_is_written_is_read_by_every_client")]),
    (Mutant::CellNamesFoldCase, &[Suite("cells::any_text_is_the_name_of_a_cell")]),
    (Mutant::NoAdoption, &[SeedsOfSessions]),
    (Mutant::NoSync, &[SeedsOfSessions]),
    (Mutant::ReadIsHeartbeat, &[SeedsOfSessions, Test(BACKENDS, "a_read_is_no_heartbeat")]),
    (Mutant::WaitsForExpired, &[SeedsOfSessions]),
    (Mutant::UnsureIsAbsent, &[SeedsOfSessions]),
    (Mutant::OwnNodeUnwatched, &[SeedsOfSessions]),
    (Mutant::PermitsWatchOne, &[SeedsOfSessions]),
    (Mutant::PermitsOvertake, &[SeedsOfSessions]),
    (Mutant::SuccessorIsGranted, &[SeedsOfSessions]),
];

pub(crate) fn every_mutant_is_in_the_catalogue_once() {
    let listed: Vec<usize> = CATALOGUE.iter().map(|(mutant, _)| *mutant as usize).collect();
    let all: Vec<usize> = (0..Mutant::COUNT).collect();
    assert_eq!(listed, all);
}

pub(crate) fn everything_in_the_catalogue_has_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |file: &str| fs::read_to_string(root.join(file)).expect(file);
    let require_test = |what: &str, file: &str, name: &str| {
        assert!(read(file).contains(&format!("fn {name}()")), "{what}: no test {name} in {file}");
    };
    for (mutant, by) in CATALOGUE {
        assert!(!by.is_empty(), "no test rejects {mutant:?}");
        for by in *by {
            // The suite and the seeds are run on it, elsewhere.
            if let Test(file, name) = by {
                require_test(&format!("{mutant:?}"), file, name);
            }
        }
    }
    let page = read("docs/proof.md");
    let rows: Vec<_> =
        page.lines().filter(|line| line.starts_with("| ") && line.contains("](../")).collect();
    assert_eq!(rows.len(), 67, "a row has come, or gone");
    for row in rows {
        let [_, what, kept_by, by, _] = row.split('|').collect::<Vec<_>>()[..] else {
            panic!("expected three columns: {row}")
        };
        let (_, file, words) = links(kept_by)[0];
        let text = read(file);
        for word in words.split([':', ',', ' ']).filter(|word| !word.is_empty()) {
            assert!(text.contains(word), "{what}: no {word} in {file}");
        }
        for (test, file, _) in links(by) {
            require_test(what, file, test);
        }
        let of_the_suite: Vec<_> = by.split('`').skip(1).step_by(2).collect();
        for name in &of_the_suite {
            let mut suite = BEHAVIOURS.iter().flat_map(|group| group.iter());
            assert!(suite.any(|it| it.full_name() == *name), "{what}: no behaviour {name}");
        }
        assert!(!of_the_suite.is_empty() || !links(by).is_empty(), "no test notices {what}");
    }
}

/// The links of a cell of the table: the name, the file, and the words behind it.
fn links(cell: &str) -> Vec<(&str, &str, &str)> {
    let link = |part| {
        let (name, rest): (&str, &str) = str::split_once(part, "](../")?;
        let (file, behind) = rest.split_once(')')?;
        Some((name, file, behind))
    };
    cell.split('[').filter_map(link).collect()
}
