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
                    "restarts::a_majority_without_its_data_grants_nothing_before_the_holder_is_notified",
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
                    "connections::session::a_server_that_is_killed_and_restarted_loses_no_queue_place_and_no_lock",
                ),
                test(
                    ENSEMBLE,
                    ZK_FAULTS,
                    "servers::ensemble::a_new_leader_keeps_locks_and_queue_places_and_gives_larger_tokens",
                ),
                test(
                    FILE,
                    FILE_TOKENS,
                    "a_reboot_voids_the_queue_and_tokens_continue_above_the_reservation",
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
                test(
                    SENTINEL,
                    REDIS_FAULTS,
                    "sentinel::a_frozen_master_is_replaced_by_the_next_one",
                ),
                test(
                    CLUSTER,
                    REDIS_FAULTS,
                    "cluster::a_frozen_master_delays_no_lock_of_the_others",
                ),
                test(REDLOCK, REDLOCK_FAULTS, "away::frozen_nodes_are_not_waited_for"),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "servers::single::a_short_server_freeze_costs_no_lock_and_a_long_one_is_reported_in_time",
                ),
                test(ENSEMBLE, ZK_FAULTS, "servers::quorum::a_frozen_follower_blocks_no_client"),
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
                    "refusing::nodes_that_load_their_data_are_not_waited_for",
                ),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "connections::session::a_server_that_is_killed_and_restarted_loses_no_queue_place_and_no_lock",
                ),
                test(
                    ENSEMBLE,
                    ZK_FAULTS,
                    "servers::quorum::without_a_quorum_claims_wait_and_a_dead_holders_lock_is_freed_afterwards",
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
                    "refusing::nodes_that_run_a_long_script_are_not_waited_for",
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
                    "refusing::nodes_whose_writes_are_paused_are_not_waited_for",
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
                suite("network::connection_resets_lose_no_lock_and_no_queue_place"),
                ignored(LOCAL, NO_SERVER),
            ],
        ),
        row(
            "24",
            "`SCRIPT FLUSH`",
            "not noticed",
            &[
                test(REDIS, REDIS_FAULTS, "server::script_flush_does_no_harm"),
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "batching::script_flush_does_not_disturb_concurrent_attempts",
                ),
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
                    "extension::a_deleted_lock_is_lost_at_the_next_renewal_and_does_not_come_back",
                ),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "restarts::a_flushed_node_is_excluded_like_a_restarted_one",
                ),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "claims::queue::a_holder_whose_node_was_deleted_is_notified_at_once",
                ),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "claims::queue::a_lock_whose_own_node_vanishes_continues_with_larger_tokens",
                ),
                test(
                    FILE,
                    FILE_DIRECTORIES,
                    "a_removed_lock_directory_is_recreated_and_the_old_grant_is_lost",
                ),
            ],
        ),
    ],
};
