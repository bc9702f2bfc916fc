//! Several servers that disagree, move and fail over.

use super::{NO_REDIS, NO_SERVER, REFUSED_IN_A_CLUSTER, REFUSED_UNDER_SENTINEL};
use crate::table::*;

const ONE_SERVER: &str = "there is one server";

pub(super) const GROUP: Group = Group {
    title: "Servers together",
    rows: &[
        row(
            "26",
            "failover to a replica without the key; ZooKeeper's leader killed",
            "Redis: an overlap is possible and documented, the stale write is rejected; ZooKeeper: within 10 t, locks kept",
            &[
                allowed(
                    REDIS,
                    "a replica that was promoted by hand grants a lock that is still believed in",
                    REDIS_FAULTS,
                    "failover::a_promoted_replica_without_the_lock_grants_it_again_and_stale_writes_are_rejected",
                ),
                allowed(
                    SENTINEL,
                    "the new master grants a lock that is still believed in",
                    REDIS_FAULTS,
                    "sentinel::a_lock_lost_in_a_failover_is_reported_and_its_writes_are_rejected",
                ),
                test(SENTINEL, REDIS_FAULTS, "sentinel::holders_and_waiters_survive_a_failover"),
                allowed(
                    CLUSTER,
                    "the new master of the slot grants a lock that is still believed in",
                    REDIS_FAULTS,
                    "failover::a_slots_new_master_without_the_lock_grants_it_again_and_stale_writes_are_rejected",
                ),
                test(
                    CLUSTER,
                    REDIS_FAULTS,
                    "cluster::holders_and_waiters_survive_a_failover_of_their_slot",
                ),
                test(REDLOCK, REDLOCK_FAULTS, "away::nodes_that_became_replicas_are_not_asked"),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "rules::a_node_that_lost_its_data_does_not_vote_a_second_time",
                ),
                test(
                    ENSEMBLE,
                    ZK_FAULTS,
                    "servers::ensemble::a_new_leader_keeps_locks_and_queue_places_and_gives_larger_tokens",
                ),
                ignored(ZOOKEEPER, ONE_SERVER),
                ignored(LOCAL, NO_SERVER),
            ],
        ),
        row(
            "27",
            "master becomes read-only",
            "found again; ZooKeeper: a read-only server is refused",
            &[
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "refusals::a_master_that_was_read_only_for_a_moment_loses_nothing",
                ),
                test(SENTINEL, REDIS_FAULTS, "sentinel::holders_and_waiters_survive_a_failover"),
                test(
                    CLUSTER,
                    REDIS_FAULTS,
                    "cluster::holders_and_waiters_survive_a_failover_of_their_slot",
                ),
                test(REDLOCK, REDLOCK_FAULTS, "away::nodes_that_became_replicas_are_not_asked"),
                test(ENSEMBLE, ZK_FAULTS, "servers::ensemble::a_read_only_server_is_refused"),
                ignored(ZOOKEEPER, ONE_SERVER),
                ignored(LOCAL, NO_SERVER),
            ],
        ),
        row(
            "28",
            "too few replicas: writes refused, the release too",
            "the release continues in the background",
            &[
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "refusals::a_release_refused_for_lack_of_replicas_continues_in_the_background",
                ),
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "replicas::without_live_replicas_grants_are_released_and_renewals_continue",
                ),
                REFUSED_UNDER_SENTINEL,
                REFUSED_IN_A_CLUSTER,
                ignored(REDLOCK, "its nodes have no replicas"),
                ignored(LOCAL, NO_SERVER),
                ignored(ZK, NO_REDIS),
            ],
        ),
        row(
            "29",
            "slot moves: MOVED, ASK",
            "followed, waiters still woken",
            &[
                test(CLUSTER, REDIS_FAULTS, "cluster::a_moved_slot_keeps_its_holders_and_waiters"),
                test(
                    CLUSTER,
                    REDIS_FAULTS,
                    "cluster::a_moving_slot_serves_locks_in_one_place_and_the_others_later",
                ),
                test(
                    CLUSTER,
                    REDIS_FAULTS,
                    "cluster::a_held_lock_is_renewed_while_its_slot_is_moving",
                ),
                ignored(
                    &[
                        Store::Memory,
                        Store::File,
                        Store::Redis,
                        Store::Sentinel,
                        Store::Redlock,
                        Store::ZooKeeper,
                        Store::Ensemble,
                    ],
                    "only a cluster has slots",
                ),
            ],
        ),
        row(
            "30",
            "minority down; majority down",
            "granted; an error or suspended, partial grants freed",
            &[
                test(REDLOCK, REDLOCK_FAULTS, "away::a_minority_of_dead_nodes_is_not_needed"),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "majority::without_a_majority_the_error_lists_each_nodes_report",
                ),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "majority::a_round_without_a_majority_is_released_at_once",
                ),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "rules::a_majority_of_those_that_reply_is_not_a_quorum",
                ),
                test(ENSEMBLE, ZK_FAULTS, "servers::quorum::a_frozen_follower_blocks_no_client"),
                test(
                    ENSEMBLE,
                    ZK_FAULTS,
                    "servers::quorum::without_a_quorum_claims_wait_and_a_dead_holders_lock_is_freed_afterwards",
                ),
                ignored(
                    &[
                        Store::Memory,
                        Store::File,
                        Store::Redis,
                        Store::Sentinel,
                        Store::Cluster,
                        Store::ZooKeeper,
                    ],
                    "no quorum decides",
                ),
            ],
        ),
        row(
            "31",
            "quorum lost and holder dead",
            "freed within S + t after the quorum is back",
            &[
                test(
                    ENSEMBLE,
                    ZK_FAULTS,
                    "servers::quorum::without_a_quorum_claims_wait_and_a_dead_holders_lock_is_freed_afterwards",
                ),
                ignored(REDLOCK, "a node's lease ends by itself, with a quorum or without"),
                ignored(
                    &[
                        Store::Memory,
                        Store::File,
                        Store::Redis,
                        Store::Sentinel,
                        Store::Cluster,
                        Store::ZooKeeper,
                    ],
                    "no quorum decides",
                ),
            ],
        ),
        row(
            "31b",
            "follower cut off from its leader, not from its client",
            "lost by the deadline, before the leader gives the lock on",
            &[
                test(
                    ENSEMBLE,
                    ZK_FAULTS,
                    "servers::ensemble::a_holder_whose_follower_is_cut_off_detects_its_loss_before_the_next_grant",
                ),
                ignored(
                    &[
                        Store::Memory,
                        Store::File,
                        Store::Redis,
                        Store::Sentinel,
                        Store::Cluster,
                        Store::Redlock,
                        Store::ZooKeeper,
                    ],
                    "only an ensemble has followers that keep sessions",
                ),
            ],
        ),
        row(
            "32",
            "follower frozen, an expired session's node still visible there",
            "nobody takes it for his own",
            &[
                test(
                    ENSEMBLE,
                    ZK_FAULTS,
                    "servers::quorum::a_thawed_follower_grants_no_lock_that_was_lost",
                ),
                ignored(
                    &[
                        Store::Memory,
                        Store::File,
                        Store::Redis,
                        Store::Sentinel,
                        Store::Cluster,
                        Store::Redlock,
                        Store::ZooKeeper,
                    ],
                    "only an ensemble has followers that answer reads",
                ),
            ],
        ),
    ],
};
