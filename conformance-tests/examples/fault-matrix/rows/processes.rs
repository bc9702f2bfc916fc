//! Clients that die, stop, or are too late.

use crate::table::*;

pub(super) const GROUP: Group = Group {
    title: "Holders and waiters that die or stop",
    rows: &[
        row(
            "1",
            "holder SIGKILLed",
            "the next is granted within S and a retry; files: at once; ZooKeeper: within S + t",
            &[
                suite("processes::a_killed_holder_frees_its_lock"),
                suite("processes::a_crashed_holder_frees_its_lock"),
                suite("processes::no_update_is_lost_although_processes_are_killed"),
                suite("processes::a_stale_write_from_a_dead_process_is_rejected"),
                test(
                    FILE,
                    FILE_PROCESSES,
                    "a_killed_holder_frees_at_once_and_a_killed_waiter_is_skipped",
                ),
                test(FILE, FILE_PROCESSES, "no_update_is_lost_while_processes_are_killed"),
            ],
        ),
        row(
            "2",
            "holder paused for less than S",
            "still held",
            &[
                suite("processes::a_briefly_stopped_holder_keeps_its_lock"),
                suite("validity::a_short_freeze_loses_nothing"),
            ],
        ),
        row(
            "3",
            "holder paused for more than S",
            "the loss shows at the first look after it; files: still held",
            &[
                suite("processes::a_long_stopped_holder_never_overlaps_another"),
                suite("validity::a_frozen_holder_finds_its_lock_lost_after_the_freeze"),
                suite("ownership::a_thawed_holder_does_not_free_a_successor"),
                test(FILE, FILE_PROCESSES, "a_stopped_holder_keeps_its_lock"),
            ],
        ),
        row(
            "4",
            "paused between the reply and the guard",
            "acquire is an error",
            &[
                suite("validity::a_reply_after_the_lease_is_no_guard"),
                test(
                    TIMED,
                    SIMULATION,
                    "waiting::a_grant_that_comes_too_late_is_an_error_and_is_released",
                ),
                test(REDIS, REDIS_FAULTS, "waking::a_grant_that_arrives_too_late_is_discarded"),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "majority::a_grant_that_arrives_after_its_expiry_is_not_a_grant",
                ),
                ignored(FILE, "its grants have no end"),
            ],
        ),
        row(
            "5",
            "queued waiter SIGKILLed",
            "skipped in seconds, nothing left",
            &[
                suite("processes::a_killed_waiter_is_passed_over"),
                suite("waiting::a_frozen_waiter_is_passed_over"),
                test(FILE, FILE_PROCESSES, "a_stopped_waiter_is_passed_over_and_queues_again"),
            ],
        ),
        row(
            "6",
            "executor blocked for more than S by the user's code",
            "kept or lost, never a wrong \"held\"",
            &[
                suite("validity::a_short_freeze_loses_nothing"),
                suite("validity::a_frozen_holder_finds_its_lock_lost_after_the_freeze"),
                suite("waiting::a_frozen_waiter_is_passed_over"),
                test(FILE, FILE_PROCESSES, "a_stopped_holder_keeps_its_lock"),
            ],
        ),
    ],
};
