//! What programs do to a lock: odd names, dropped futures, panics, absurd arguments.

use crate::table::*;

pub(super) const GROUP: Group = Group {
    title: "Programs",
    rows: &[
        row(
            "42",
            "huge, empty and odd names: `/`, `..`, NUL, `{}`",
            "refused, or encoded so that no two meet",
            &[
                suite("names::any_text_is_a_name"),
                suite("names::similar_names_are_different_locks"),
                suite("names::the_longest_names_differ_in_their_last_byte"),
                suite("names::invalid_names_are_refused"),
                suite("names::random_names_are_different_locks"),
                suite("names::prefixes_keep_services_apart"),
                test(FILE, FILE_DIRECTORIES, "odd_and_long_names_are_separate_locks"),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "claims::queue::a_huge_name_is_refused_before_it_reaches_the_servers",
                ),
            ],
        ),
        row(
            "43",
            "foreign things in the lock's place",
            "a typed error or waited for; nothing destroyed",
            &[
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "strangers::keys_of_other_programs_are_an_error_and_stay_as_they_are",
                ),
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "strangers::a_lock_of_another_library_is_waited_for_and_left_alone",
                ),
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "strangers::a_waiter_fails_at_once_when_its_lock_becomes_foreign",
                ),
                test(REDIS, REDIS_FAULTS, "strangers::a_foreign_token_is_reported_to_every_claim"),
                ignored(FOLLOWED, "what lies at a key is read by the same scripts as at redis"),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "steps::strangers::a_key_of_another_type_is_an_error_and_stays",
                ),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "steps::strangers::a_value_of_another_library_is_its_lock",
                ),
                test(FILE, FILE_DIRECTORIES, "foreign_files_in_the_way_are_typed_errors"),
                test(ZK, ZK_FAULTS, "claims::queue::nodes_are_named_as_curator_names_them"),
                ignored(MEMORY, "nobody else reaches it"),
            ],
        ),
        row(
            "44",
            "acquire dropped at every await, a thousand times",
            "nothing left",
            &[
                suite("cancel::an_acquire_dropped_anywhere_leaves_nothing"),
                suite("cancel::a_wait_dropped_anywhere_leaves_nothing"),
                suite("cancel::a_try_dropped_anywhere_leaves_nothing"),
                suite("cancel::a_thousand_random_drops_leave_nothing"),
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "replicas::an_acquire_dropped_at_any_await_leaves_nothing_while_replicas_confirm",
                ),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "claims::cancel::a_thousand_cancelled_acquisitions_leave_nothing",
                ),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "claims::cancel::a_thousand_cancelled_waiters_leave_nothing",
                ),
            ],
        ),
        row(
            "45",
            "release dropped",
            "still released",
            &[suite("cancel::a_release_dropped_anywhere_still_releases")],
        ),
        row(
            "46",
            "guard dropped without a runtime, runtime ended while holding",
            "no panic, freed",
            &[
                suite("ownership::drop_on_a_plain_thread_releases"),
                suite("ownership::a_guard_outlives_its_runtime_without_harm"),
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "limits::the_end_of_the_runtime_during_any_operation_causes_no_panic",
                ),
                test(FILE, FILE_SINGLE_PROCESS, "a_store_whose_runtime_ended_leaves_nothing_held"),
            ],
        ),
        row(
            "47",
            "panic while holding, forgotten guard",
            "released; ended by `hold_at_most`",
            &[
                suite("ownership::a_panic_while_holding_releases"),
                suite("validity::hold_at_most_ends_a_forgotten_guard"),
            ],
        ),
        row(
            "48",
            "released twice, released after the loss",
            "`NotHeld`, nobody else's freed; twice does not compile",
            &[
                suite("ownership::release_after_a_loss_is_not_held"),
                suite("ownership::a_stale_release_does_not_free_a_successor"),
                suite("ownership::a_stale_drop_does_not_free_a_successor"),
            ],
        ),
        row(
            "49",
            "TTL 0, tiny, 10 years; wait 0; limit 0; more permits than the limit",
            "a typed error or the exact meaning, no panic",
            &[
                suite("options::absurd_times_are_refused"),
                suite("options::extreme_times_within_the_range_work"),
                suite("options::absurd_permits_are_refused"),
                suite("waiting::a_wait_limit_of_zero_is_a_try"),
                suite("waiting::a_tiny_wait_limit_is_kept"),
                suite("waiting::an_absurdly_long_wait_limit_waits"),
            ],
        ),
    ],
};
