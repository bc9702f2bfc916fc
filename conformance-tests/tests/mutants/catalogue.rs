//! Every way of being wrong that these tests know, and what rejects it: one list, so that nothing
//! on it can lose its test unnoticed.
//!
//! Broken stores are made on purpose and run. The core has no switches for its faults: a person
//! breaks the line, and the named tests fail.

use std::fs;
use std::path::Path;

use crate::mutant::Mutant;

/// Who rejects a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// A behaviour of the suite, on the toy store with this fault.
    Suite(&'static str),
    /// Random seeds, on the simulated store with leases that has this fault.
    SeedsOfLeases,
    /// The same with sessions.
    SeedsOfSessions,
    /// A test by its file and name.
    Test(&'static str, &'static str),
}

use By::{SeedsOfLeases, SeedsOfSessions, Suite, Test};

const BACKENDS: &str = "conformance-tests/tests/simulation/backends.rs";
const CELLS: &str = "core/tests/promises/cells.rs";
const CLOSING: &str = "conformance-tests/tests/simulation/scenes/closing.rs";
const FAILING: &str = "conformance-tests/tests/simulation/scenes/failing.rs";
const LEAVING: &str = "conformance-tests/tests/simulation/scenes/leaving.rs";
const RENEWING: &str = "conformance-tests/tests/simulation/scenes/renewing.rs";
const WAITING: &str = "conformance-tests/tests/simulation/scenes/waiting.rs";
const OBSERVING: &str = "core/tests/promises/observing.rs";

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
            Suite("exclusion::an_unprotected_counter_loses_no_update"),
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
    (Mutant::NoWakeUps, &[Suite("waiting::no_wake_up_is_missed_under_stress")]),
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
    (
        Mutant::PermitsCountedByClaims,
        &[
            Suite("modes::several_permits_are_taken_at_once"),
            Suite("modes::permits_never_exceed_their_limit"),
        ],
    ),
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
            Suite("cells::a_watch_is_notified_of_every_last_change"),
            Suite("latches::all_waiters_of_all_clients_are_told"),
            Suite("barriers::nobody_passes_before_all_have_arrived"),
        ],
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

/// A fault of the core: what is wrong, where the line is that keeps it
/// out, and the tests that fail without it.
pub(crate) type Broken = (&'static str, &'static str, &'static [By]);

pub(crate) const IN_THE_CORE: &[Broken] = &[
    (
        "no clean-up after a dropped acquisition",
        "core/src/engine/cleanup.rs: CleanupGuard::drop",
        &[Test(WAITING, "dropped_at_any_poll_it_is_released"), SeedsOfLeases, SeedsOfSessions],
    ),
    (
        "a release dropped half-way is not finished",
        "core/src/engine/cleanup.rs: ReleaseInFlight::drop",
        &[Test(LEAVING, "a_release_dropped_at_any_poll_is_finished")],
    ),
    (
        "a panic in release ends the clean-up",
        "core/src/engine/cleanup.rs: caught",
        &[Test(FAILING, "a_clean_up_survives_backend_failures"), SeedsOfSessions],
    ),
    (
        "a release that never returns is never asked for again",
        "core/src/engine/cleanup.rs: clean_up, bound",
        &[Test(FAILING, "a_clean_up_survives_backend_failures"), SeedsOfSessions],
    ),
    (
        "a clean-up gives up while a session lives",
        "core/src/engine/cleanup.rs: clean_up, give_up",
        &[Test(LEAVING, "a_clean_up_never_gives_up_while_a_session_may_live")],
    ),
    (
        "a lock is released while its validity lasts",
        "core/src/engine/owned_hold.rs: release",
        &[Test(LEAVING, "no_hold_is_valid_any_more_when_its_release_is_sent")],
    ),
    (
        "a repeated release that finds nothing is not held",
        "core/src/engine/cleanup.rs: CleanupGuard::release, repeated",
        &[Test(LEAVING, "a_release_reports_what_became_of_the_lock")],
    ),
    (
        "validity is revived after its end",
        "core/src/engine/hold.rs: Hold::extend, now >= old",
        &[Test(RENEWING, "renewed_after_the_deadline_revives_nothing"), SeedsOfSessions],
    ),
    (
        "a grant whose validity is over becomes a guard",
        "core/src/engine/acquire.rs: grant",
        &[Test(WAITING, "a_grant_that_comes_too_late_is_an_error_and_is_released")],
    ),
    (
        "what a check does not answer is forgotten",
        "core/src/store/grouping.rs: check_waiters, no_answer",
        &[Test(WAITING, "a_check_with_too_few_results_is_unknown_for_the_other_waiters")],
    ),
    (
        "a panic in renew ends the batch",
        "core/src/store/grouping.rs: renew, caught",
        &[Test(RENEWING, "a_panic_in_renew_is_retried")],
    ),
    (
        "a slow shard delays the others",
        "core/src/store/grouping.rs: grouped",
        &[Test(RENEWING, "a_slow_shard_delays_no_renewal_of_other_shards")],
    ),
    (
        "the renewal worker ends nothing that is past its validity",
        "core/src/engine/renewal/worker.rs: carry_out, expire",
        &[Test(RENEWING, "a_lost_renewal_reply_leaves_the_old_deadline"), SeedsOfLeases],
    ),
    (
        "`is_held` must wait for the renewal worker to end a hold",
        "core/src/engine/hold.rs: Hold::is_held",
        &[Test(BACKENDS, "a_stopped_process_finds_its_lock_lost_before_it_can_use_it")],
    ),
    (
        "a renewal moves a hold past its limit",
        "core/src/engine/hold.rs: Hold::extend, limit",
        &[Test(RENEWING, "a_forgotten_guard_is_released_at_its_limit")],
    ),
    (
        "an attempt may last as long as the store is silent",
        "core/src/engine/acquire.rs: attempt, silence_ends",
        &[Test(WAITING, "a_silent_store_is_waited_for_so_long")],
    ),
    (
        "the renewal worker waits for a batch",
        "core/src/engine/renewal/worker.rs: carry_out, tokio::spawn",
        &[Test(RENEWING, "a_renewal_that_never_returns_is_a_loss_at_the_deadline")],
    ),
    (
        "the answer to a waiter check moves a hold",
        "core/src/engine/renewal/worker.rs: checked, Task::Wait",
        &[Test(WAITING, "a_stale_check_does_not_delay_a_loss")],
    ),
    (
        "a wake-up during an attempt is lost",
        "core/src/store/claim.rs: wake, notify_one",
        &[Test(WAITING, "a_wake_up_during_an_attempt_is_not_lost")],
    ),
    (
        "a wake-up between a grant and its hold is lost",
        "core/src/engine/acquire.rs: grant, enable",
        &[Test(WAITING, "a_wake_up_between_the_grant_and_the_hold_renews_the_hold")],
    ),
    (
        "a wake-up of a hold is taken for a stray",
        "core/src/store/claim.rs: wake, HELD",
        &[Test(LEAVING, "a_wake_up_is_stray_only_when_its_claim_has_gone")],
    ),
    (
        "the connection ends before the releases are sent",
        "core/src/locks.rs: close, tasks.wait",
        &[Test(CLOSING, "close_ends_holds_then_releases_them")],
    ),
    (
        "a guard that is dropped too late counts as released",
        "core/src/engine/owned_hold.rs: drop, is_held",
        &[Test(OBSERVING, "a_guard_that_is_dropped_after_its_validity_is_lost")],
    ),
    (
        "a loss is reported to the program while the turns are locked",
        "core/src/engine/handoff.rs: advance and accept, is_valid",
        &[
            Test(OBSERVING, "a_subscriber_may_use_a_lock_whose_loss_the_next_turn_finds"),
            Test(OBSERVING, "a_subscriber_may_use_a_lock_whose_loss_a_dropped_waiter_finds"),
        ],
    ),
    (
        "a turn begins after the end of the validity",
        "core/src/engine/handoff.rs: accept, is_valid",
        &[Test(OBSERVING, "a_subscriber_may_use_a_lock_whose_loss_the_next_turn_finds")],
    ),
    (
        "a tenure has another TTL than its turns",
        "core/src/engine/handoff.rs: join, request",
        &[Suite("lost_handoffs::a_killed_process_frees_its_tenure")],
    ),
    (
        "no loss ends a tenure for which tasks wait",
        "core/src/engine/handoff.rs: watch, lost",
        &[
            Suite("lost_handoffs::a_loss_ends_the_turn_and_keeps_the_waiters"),
            Suite("lost_handoffs::an_evicted_tenure_is_lost"),
        ],
    ),
    (
        "an addition that is repeated after a lost reply without looking for its stamp",
        "core/src/cells/settled.rs",
        &[
            Suite("counters::an_addition_whose_reply_was_lost_counts_once"),
            Test(CELLS, "additions_are_exact_whatever_is_lost_late_or_repeated"),
        ],
    ),
    (
        "changes that are written one by one",
        "core/src/cells/combining.rs",
        &[Test(CELLS, "changes_of_one_client_share_writes")],
    ),
    (
        "an answer that was read before the wait began",
        "core/src/cells/watching.rs",
        &[
            Suite("barriers::nobody_passes_before_all_have_arrived"),
            Test(CELLS, "a_watch_begins_with_what_is_there_when_it_begins"),
        ],
    ),
    (
        "a notification that comes during a reading is lost",
        "core/src/store/cell_store.rs: notify, notify_one",
        &[Test(CELLS, "a_notification_during_a_reading_is_not_lost")],
    ),
    (
        "a latch counts the requests of a participant",
        "core/src/recipes/latch.rs: count_down_as",
        &[Suite("latches::a_participant_counts_once")],
    ),
    (
        "a set of done ticks that pushes the oldest out",
        "core/src/recipes/once/ranges.rs",
        &[Suite("once::a_machine_whose_clock_is_off_by_years_stops_no_other")],
    ),
    (
        "a tick that is marked by a run which has lost its lock",
        "core/src/recipes/once.rs",
        &[Suite("once::a_run_that_lost_its_lock_marks_nothing")],
    ),
    (
        "a leader whose words are written without its term",
        "core/src/recipes/election.rs",
        &[Suite("elections::an_old_leaders_words_are_refused")],
    ),
    (
        "an arrival that is not withdrawn",
        "core/src/recipes/barrier.rs",
        &[Suite("barriers::a_dropped_arrival_is_withdrawn")],
    ),
];

#[test]
fn every_mutant_is_in_the_catalogue_once() {
    let listed: Vec<usize> = CATALOGUE.iter().map(|(mutant, _)| *mutant as usize).collect();
    let all: Vec<usize> = (0..Mutant::COUNT).collect();
    assert_eq!(listed, all);
}

#[test]
fn everything_in_the_catalogue_has_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let stores = CATALOGUE.iter().map(|(mutant, by)| (format!("{mutant:?}"), *by));
    let others = IN_THE_CORE.iter().map(|(what, line, by)| {
        let file = line.split(':').next().expect("a path first");
        assert!(root.join(file).exists(), "{what}: no file {file}");
        ((*what).to_owned(), *by)
    });
    for (what, by) in stores.chain(others) {
        assert!(!by.is_empty(), "no test rejects {what}");
        for by in by {
            match by {
                // The suite and the seeds are run on it, elsewhere.
                Suite(behaviour) => println!("{what}: the suite's {behaviour}"),
                SeedsOfLeases | SeedsOfSessions => println!("{what}: {by:?}"),
                Test(file, name) => {
                    let text = fs::read_to_string(root.join(file)).expect("a file of tests");
                    assert!(
                        text.contains(&format!("fn {name}()")),
                        "{what}: no test {file} {name}"
                    );
                    println!("{what}: {name} in {file}");
                }
            }
        }
    }
}
