//! Clocks that jump, run at other rates, or stand still.

use super::NO_SERVER;
use crate::table::*;

pub(super) const GROUP: Group = Group {
    title: "Clocks",
    rows: &[
        row(
            "33",
            "server's clock jumps by 40 s",
            "Redis: documented, the token still rises; a quorum leaves it out; ZooKeeper: no effect",
            &[
                allowed(
                    REDIS,
                    "a jump ahead ends leases too early",
                    REDIS_FAULTS,
                    "clock::a_jump_ahead_ends_a_lease_and_its_holder_is_notified",
                ),
                test(REDIS, REDIS_FAULTS, "clock::tokens_rise_whatever_the_servers_clock_does"),
                ignored(FOLLOWED, "leases are ended by each server's clock, as at redis"),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "clocks::a_node_with_a_wrong_clock_is_excluded_and_not_needed",
                ),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "clocks::a_majority_whose_clocks_disagree_is_refused_by_name",
                ),
                test(
                    ZOOKEEPER,
                    ZK_FAULTS,
                    "servers::single::a_servers_clock_that_jumps_changes_nothing",
                ),
                ignored(ENSEMBLE, "each server counts sessions as one alone does"),
                ignored(LOCAL, NO_SERVER),
            ],
        ),
        row(
            "34",
            "client's clock jumps",
            "no effect",
            &[suite("processes::a_clients_clock_that_jumps_changes_nothing")],
        ),
        row(
            "35",
            "rates of the clocks 1 % apart",
            "the margin for drift holds",
            &[
                test(
                    REDIS,
                    REDIS_FAULTS,
                    "clock::a_clock_that_runs_one_percent_fast_ends_no_lease_that_its_holder_trusts",
                ),
                ignored(FOLLOWED, "leases are ended by each server's clock, as at redis"),
                test(
                    REDLOCK,
                    REDLOCK_FAULTS,
                    "clocks::clocks_that_run_a_hundredth_too_fast_free_no_held_lock",
                ),
                ignored(
                    ZK,
                    "no machine has two monotonic clocks; the margin is 0.36 S, and row 10 measures what is left of it",
                ),
                ignored(LOCAL, "both sides have the same clock"),
            ],
        ),
        row(
            "36",
            "machine suspended",
            "lost on resume (`CLOCK_BOOTTIME`)",
            &[
                ignored(
                    &[
                        Store::Redis,
                        Store::Sentinel,
                        Store::Cluster,
                        Store::Redlock,
                        Store::ZooKeeper,
                        Store::Ensemble,
                    ],
                    "a machine cannot be suspended by its own test; `core/src/time/boot_clock.rs` reads `CLOCK_BOOTTIME`, and row 3 stops a process as a suspend would",
                ),
                ignored(
                    FILE,
                    "holders are suspended together with everybody else, and their grants have no end",
                ),
                ignored(MEMORY, "it lives on tokio's clock, which stands still with its process"),
            ],
        ),
    ],
};
