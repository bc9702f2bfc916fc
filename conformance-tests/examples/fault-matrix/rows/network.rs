//! Connections that lose, delay and garble.

use crate::table::*;

pub(super) const GROUP: Group = Group {
    title: "The network",
    rows: &[
        row(
            "7",
            "reply to an acquire lost",
            "found again, the same fencing token, no orphan",
            &[
                suite("replies::a_grant_whose_reply_was_lost_is_found_again"),
                suite("replies::a_queue_place_whose_reply_was_lost_is_found_again"),
                suite("replies::an_acquire_dropped_after_a_lost_reply_leaves_nothing"),
                test(REDLOCK, REDLOCK_FAULTS, "majority::what_a_lost_reply_acquired_is_released"),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "connections::replies::a_node_whose_creation_was_not_confirmed_is_adopted_and_not_created_twice",
                ),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "connections::replies::a_queue_place_whose_reply_was_lost_is_kept",
                ),
            ],
        ),
        row(
            "8",
            "reply to a release lost",
            "it is a release, and frees no newer grant",
            &[
                suite("replies::a_release_whose_reply_was_lost_is_a_release"),
                test(REDLOCK, REDLOCK_FAULTS, "rules::a_late_release_does_not_free_a_successor"),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "connections::replies::a_release_whose_reply_was_lost_has_worked",
                ),
            ],
        ),
        row(
            "9",
            "reply to a renewal lost",
            "the old deadline stands",
            &[
                suite("replies::a_renewal_whose_reply_was_lost_is_repeated"),
                test(LEASES, SIMULATION, "renewing::a_lost_renewal_reply_leaves_the_old_deadline"),
                test(ZOOKEEPER, ZK_FAULTS, "connections::replies::a_lost_heartbeat_costs_no_lock"),
                ignored(FILE, "nothing is renewed"),
            ],
        ),
        row(
            "10",
            "half-open connection",
            "lost by the deadline, replaced within seconds",
            &[
                suite("validity::a_holder_that_is_cut_off_is_lost_in_time"),
                suite("validity::a_silent_store_is_an_error_in_time"),
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "connection::a_half_open_connection_is_replaced_within_seconds",
                ),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "away::nodes_that_receive_nothing_are_not_waited_for",
                ),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "majority::a_client_without_a_majority_gets_an_error_by_the_deadline",
                ),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "connections::session::a_holder_that_is_cut_off_detects_its_loss_before_the_next_grant",
                ),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "connections::session::a_connection_that_is_back_within_half_the_session_timeout_costs_no_lock",
                ),
            ],
        ),
        row(
            "11",
            "one direction dropped",
            "the same",
            &[
                suite("network::a_loss_is_reported_in_time_when_one_direction_is_cut"),
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "connection::with_one_direction_dropped_a_holder_is_lost_in_time_and_work_continues_afterwards",
                ),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "away::nodes_that_execute_without_replying_are_not_waited_for",
                ),
            ],
        ),
        row(
            "12",
            "connections reset",
            "reconnected, the lock and the place are kept",
            &[
                suite("network::connection_resets_lose_no_lock_and_no_queue_place"),
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "connection::a_release_while_the_subscription_was_down_is_noticed_at_once_afterwards",
                ),
            ],
        ),
        row(
            "13",
            "delay near S",
            "no guard without validity",
            &[
                suite("validity::validity_counts_from_before_the_request"),
                suite("validity::a_reply_after_the_lease_is_no_guard"),
                suite("network::a_delay_near_the_promise_makes_no_guard_without_validity"),
                test(REDLOCK, REDLOCK_FAULTS, "away::slow_nodes_are_not_waited_for"),
            ],
        ),
        row(
            "14",
            "30 % of the packets lost",
            "slower only",
            &[
                test(
                    REDIS,
                    "backend-redis/tests/netns",
                    "a_third_of_the_packets_lost_only_slows_down",
                ),
                test(
                    REDIS,
                    "backend-redis/tests/netns",
                    "late_packets_of_a_lost_connection_take_no_lock",
                ),
                test(
                    SENTINEL,
                    "backend-redis/tests/netns",
                    "a_third_of_the_packets_lost_only_slows_a_client_under_sentinel_down",
                ),
                test(
                    CLUSTER,
                    "backend-redis/tests/netns",
                    "a_third_of_the_packets_lost_only_slows_a_cluster_down",
                ),
                test(
                    REDLOCK,
                    "backend-redis/tests/netns",
                    "a_third_of_the_packets_lost_only_slows_a_quorum_down",
                ),
                test(ZK, "backend-zk/tests/netns", "a_third_of_the_packets_lost_only_slows_down"),
                ignored(LOCAL, "nothing lies between the store and its clients"),
            ],
        ),
        row(
            "15",
            "torn and garbled bytes",
            "an error or a new connection, no panic",
            &[
                suite("network::garbled_replies_do_no_harm"),
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "connection::garbage_from_the_server_is_an_error_and_then_a_new_connection",
                ),
                test(REDIS, REDIS_FAULTS, "connection::a_split_reply_does_no_harm"),
                test(REDIS, REDIS_FAULTS, "connection::a_connection_out_of_step_is_replaced"),
                test(FILE, FILE_DIRECTORIES, "a_queue_of_another_version_is_left_alone"),
            ],
        ),
        row(
            "16",
            "link that flaps once a second",
            "no orphans, waiters are woken again",
            &[
                suite("network::a_flapping_link_leaves_no_orphans"),
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "connection::a_flapping_connection_only_slows_things_down_and_leaves_no_orphans",
                ),
                test(REDLOCK, REDLOCK_FAULTS, "away::flapping_nodes_are_not_waited_for"),
            ],
        ),
    ],
};
