//! One server that stops, restarts, refuses or forgets.

use super::{NO_REDIS, NO_SERVER, REFUSED_IN_A_CLUSTER, REFUSED_UNDER_SENTINEL};
use crate::table::*;

pub(super) const GROUP: Group = Group {
    title: "Servers that stop, refuse or forget",
    rows: &[
        row(
            "17",
            "restart with nothing persisted",
            "an overlap is possible and documented; the token still rises, the stale write is rejected; ZooKeeper: sessions and nodes persist",
            &[
                allowed(
                    REDIS,
                    "the restarted server grants a lock that is still believed in",
                    REDIS_FAULTS,
                    "server::after_a_restart_without_persistence_the_token_still_rises",
                ),
                suite("tokens::tokens_rise_when_the_store_loses_its_data"),
                ignored(
                    FOLLOWED,
                    "as redis where the master is back before it is replaced, else row 26",
                ),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "restarts::a_majority_that_forgot_grants_nothing_before_the_holder_is_told",
                ),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "extension::a_holder_survives_the_restart_of_all_nodes_one_by_one",
                ),
                test(REDLOCK, REDLOCK_FAULTS, "exclusion::no_two_hold_while_majorities_forget"),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "session::a_server_that_is_killed_and_comes_back_loses_no_place_and_no_lock",
                ),
                test(
                    ENSEMBLE,
                    ZK_FAULTS,
                    "ensemble::a_new_leader_keeps_locks_and_places_and_its_tokens_are_larger",
                ),
                test(
                    FILE,
                    FILE_TOKENS,
                    "a_reboot_voids_the_queue_and_tokens_go_on_above_what_was_promised",
                ),
                ignored(MEMORY, "nothing outlives its process, holders included"),
            ],
        ),
        row(
            "18",
            "restart with an append-only file",
            "lock and queue kept",
            &[
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "server::with_an_append_only_file_holders_and_waiters_survive_a_restart",
                ),
                ignored(
                    FOLLOWED,
                    "as redis where the master is back before it is replaced, else row 26",
                ),
                ignored(REDLOCK, "a node that was away is not believed whatever it kept: row 17"),
                ignored(LOCAL, NO_SERVER),
                ignored(ZK, NO_REDIS),
            ],
        ),
        row(
            "19",
            "server frozen",
            "holders are lost by their deadline, work goes on when it thaws; ZooKeeper: kept for less than S",
            &[
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "server::holders_on_a_frozen_server_are_lost_in_time_and_it_works_again_afterwards",
                ),
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "batching::a_frozen_server_is_reported_in_time_to_concurrent_attempts",
                ),
                test(SENTINEL, REDIS_FAULTS, "sentinel::a_frozen_master_is_replaced_by_the_next_one"),
                test(
                    CLUSTER,
                    REDIS_FAULTS,
                    "cluster::a_frozen_master_delays_no_lock_of_the_others",
                ),
                test(REDLOCK, REDLOCK_FAULTS, "away::nobody_waits_for_frozen_nodes"),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "server::a_short_freeze_of_the_server_costs_no_lock_and_a_long_one_is_told_in_time",
                ),
                test(ENSEMBLE, ZK_FAULTS, "quorum::a_frozen_follower_stops_nobody"),
                ignored(LOCAL, NO_SERVER),
            ],
        ),
        row(
            "20",
            "server loads its data, or does not serve",
            "retried within the wait",
            &[
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "server::while_a_server_loads_its_data_claims_wait_and_holds_stay",
                ),
                REFUSED_UNDER_SENTINEL,
                REFUSED_IN_A_CLUSTER,
                test(
                    CLUSTER,
                    REDIS_FAULTS,
                    "cluster::while_a_master_loads_its_data_new_clients_get_the_locks_of_the_others",
                ),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "refusing::nobody_waits_for_nodes_that_load_their_data",
                ),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "session::a_server_that_is_killed_and_comes_back_loses_no_place_and_no_lock",
                ),
                test(
                    ENSEMBLE,
                    ZK_FAULTS,
                    "quorum::without_a_quorum_claims_wait_and_what_a_dead_holder_had_is_freed_afterwards",
                ),
                ignored(LOCAL, NO_SERVER),
            ],
        ),
        row(
            "21",
            "server busy with a script",
            "retried within the wait",
            &[
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "server::while_a_long_script_runs_claims_wait_and_holds_stay",
                ),
                REFUSED_UNDER_SENTINEL,
                REFUSED_IN_A_CLUSTER,
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "refusing::nobody_waits_for_nodes_that_run_a_long_script",
                ),
                ignored(LOCAL, NO_SERVER),
                ignored(ZK, NO_REDIS),
            ],
        ),
        row(
            "22",
            "`CLIENT PAUSE WRITE`",
            "bounded, and then goes on",
            &[
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "server::while_writes_are_paused_everything_is_bounded_and_then_continues",
                ),
                REFUSED_UNDER_SENTINEL,
                REFUSED_IN_A_CLUSTER,
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "refusing::nobody_waits_for_nodes_whose_writes_are_paused",
                ),
                ignored(LOCAL, NO_SERVER),
                ignored(ZK, NO_REDIS),
            ],
        ),
        row(
            "23",
            "`CLIENT KILL`",
            "reconnected, waiters looked at again",
            &[
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "connection::client_kill_ends_no_hold_and_no_place_in_the_queue",
                ),
                REFUSED_UNDER_SENTINEL,
                REFUSED_IN_A_CLUSTER,
                suite("network::resets_cost_no_lock_and_no_place"),
                ignored(LOCAL, NO_SERVER),
            ],
        ),
        row(
            "24",
            "`SCRIPT FLUSH`",
            "not noticed",
            &[
                test(REDIS, REDIS_FAULTS, "server::script_flush_does_no_harm"),
                test(REDIS, REDIS_FAULTS, "batching::script_flush_does_not_disturb_concurrent_attempts"),
                REFUSED_UNDER_SENTINEL,
                REFUSED_IN_A_CLUSTER,
                test(REDLOCK, REDLOCK_FAULTS, "refusing::script_flush_is_not_noticed"),
                ignored(LOCAL, NO_SERVER),
                ignored(ZK, NO_REDIS),
            ],
        ),
        row(
            "25",
            "`FLUSHALL`, `DEL`, node deleted by hand",
            "lost at the next renewal, in ZooKeeper by one notification; the token still rises",
            &[
                suite("validity::a_forgotten_grant_is_lost_and_stays_so"),
                suite("tokens::tokens_rise_when_the_store_loses_its_data"),
                suite("inspecting::an_evicted_holder_is_lost"),
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "server::waiters_survive_a_flushall_and_deleted_queues_and_tokens",
                ),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "extension::what_was_deleted_is_lost_at_the_next_renewal_and_does_not_come_back",
                ),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "restarts::a_node_that_was_flushed_is_kept_out_as_one_that_restarted",
                ),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "queue::a_holder_whose_node_was_deleted_is_told_at_once",
                ),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "queue::a_lock_whose_own_node_vanishes_goes_on_with_larger_tokens",
                ),
                test(
                    FILE,
                    FILE_PLACES,
                    "a_lock_whose_directory_was_removed_is_made_anew_and_the_old_grant_is_not_ours",
                ),
            ],
        ),
    ],
};
