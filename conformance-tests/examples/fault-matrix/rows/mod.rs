//! The rows, by theme.

mod bugs;
mod clocks;
mod clusters;
mod network;
mod processes;
mod resources;
mod servers;

use crate::table::{CLUSTER, Entry, Group, REDIS_FAULTS, SENTINEL, test};

pub(crate) const GROUPS: &[Group] = &[
    processes::GROUP,
    network::GROUP,
    servers::GROUP,
    clusters::GROUP,
    clocks::GROUP,
    resources::GROUP,
    bugs::GROUP,
];

const NO_SERVER: &str = "there is no server";
const NO_REDIS: &str = "a fault that only Redis servers have";

/// One test shows at a master of several all that one server may answer.
const REFUSED_UNDER_SENTINEL: Entry = test(
    SENTINEL,
    REDIS_FAULTS,
    "followed::a_temporary_refusal_by_a_master_under_sentinel_is_waited_for",
);
const REFUSED_IN_A_CLUSTER: Entry = test(
    CLUSTER,
    REDIS_FAULTS,
    "followed::a_temporary_refusal_by_a_master_of_a_cluster_is_waited_for",
);
