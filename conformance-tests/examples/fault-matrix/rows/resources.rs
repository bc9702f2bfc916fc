//! Memory, disks, processors, descriptors and permissions that run out.

use super::{NO_REDIS, NO_SERVER, REFUSED_IN_A_CLUSTER, REFUSED_UNDER_SENTINEL};
use crate::table::*;

pub(super) const GROUP: Group = Group {
    title: "Resources and rights",
    rows: &[
        row(
            "37",
            "maxmemory, eviction policy",
            "full: a typed error, the release works; a policy that evicts: told at connect",
            &[
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "refusals::a_full_server_refuses_claims_and_nothing_else",
                ),
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "refusals::a_server_that_may_evict_locks_is_reported_in_the_profile",
                ),
                REFUSED_UNDER_SENTINEL,
                REFUSED_IN_A_CLUSTER,
                test(REDLOCK, REDLOCK_FAULTS, "away::full_nodes_do_not_vote_and_are_freed"),
                ignored(LOCAL, NO_SERVER),
                ignored(ZK, NO_REDIS),
            ],
        ),
        row(
            "38",
            "disk full",
            "a typed error, retried; ZooKeeper: the server ends, as row 31",
            &[
                test(REDIS, REDIS_FAULTS, "refusals::a_server_that_cannot_save_is_waited_for"),
                test(REDIS, "backend-redis/tests/netns", "a_full_disk_is_waited_for"),
                REFUSED_UNDER_SENTINEL,
                REFUSED_IN_A_CLUSTER,
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "refusing::nodes_that_cannot_save_are_not_waited_for",
                ),
                test(
                    FILE,
                    "backend-file/tests/netns",
                    "a_full_disk_is_an_error_and_what_is_held_stays",
                ),
                test(
                    ZOOKEEPER,
                    "backend-zk/tests/netns",
                    "a_server_that_ends_on_a_full_disk_is_retried",
                ),
                ignored(
                    ENSEMBLE,
                    "a server with a full disk ends, and is a dead one: rows 30 and 31",
                ),
                ignored(MEMORY, "there is no disk"),
            ],
        ),
        row(
            "39",
            "processor starved",
            "lost early, never late",
            &[
                suite("processes::a_starved_holder_never_overlaps_another"),
                suite("validity::a_loss_is_reported_before_the_next_grant"),
            ],
        ),
        row(
            "40",
            "no room for connections, no descriptors left",
            "a typed error, work goes on afterwards",
            &[
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "refusals::a_server_at_its_limit_of_clients_is_reported_and_waited_for",
                ),
                test(
                    REDIS,
                    "backend-redis/tests/netns",
                    "without_a_free_descriptor_the_error_says_so_and_what_is_held_stays",
                ),
                REFUSED_UNDER_SENTINEL,
                REFUSED_IN_A_CLUSTER,
                test(
                    SENTINEL,
                    "backend-redis/tests/netns",
                    "under_sentinel_without_a_free_descriptor_the_error_says_so_and_what_is_held_stays",
                ),
                test(
                    CLUSTER,
                    "backend-redis/tests/netns",
                    "in_a_cluster_without_a_free_descriptor_the_error_says_so_and_what_is_held_stays",
                ),
                test(
                    REDLOCK,
                    "backend-redis/tests/netns",
                    "a_quorum_without_a_free_descriptor_says_so_and_what_is_held_stays",
                ),
                test(
                    FILE,
                    FILE_SINGLE_PROCESS,
                    "without_a_free_descriptor_the_error_says_so_and_what_is_held_stays",
                ),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "servers::single::a_server_at_its_connection_limit_is_retried",
                ),
                test(
                    ZOOKEEPER,
                    "backend-zk/tests/netns",
                    "without_a_free_descriptor_the_error_says_so_and_holds_stay",
                ),
                ignored(ENSEMBLE, "each connection is to one server, as at zookeeper"),
                ignored(MEMORY, "there are no connections"),
            ],
        ),
        row(
            "41",
            "wrong password, no permission",
            "an error at once, not retried",
            &[
                suite("errors::no_secret_is_ever_shown"),
                test(REDIS, REDIS_FAULTS, "refusals::a_wrong_password_is_final_at_once"),
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "strangers::an_acl_that_denies_something_is_final_at_once",
                ),
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "strangers::a_waiter_fails_at_once_when_it_loses_its_permission",
                ),
                test(
                    REDIS,
                    REDIS_SECURITY,
                    "passwords::a_wrong_password_is_refused_and_never_shown",
                ),
                test(SENTINEL, REDIS_SECURITY, "acl::the_rules_for_sentinel_suffice"),
                test(
                    CLUSTER,
                    REDIS_SECURITY,
                    "acl::the_rules_for_a_cluster_suffice_and_each_is_needed",
                ),
                test(REDLOCK, REDLOCK_ADMIN, "acl::the_documented_rules_suffice_and_all_are_used"),
                test(FILE, FILE_DIRECTORIES, "without_permissions_the_error_says_what_to_do"),
                test(
                    ZK,
                    ZK_FAULTS,
                    "connections::rights::the_locks_of_a_login_are_closed_to_others",
                ),
                test(ZK, ZK_FAULTS, "connections::rights::a_root_is_created_or_found"),
            ],
        ),
    ],
};
