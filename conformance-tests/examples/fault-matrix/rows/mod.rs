//! The rows, by theme.

mod bugs;
mod clocks;
mod clusters;
mod network;
mod processes;
mod resources;
mod servers;

use crate::table::Group;

pub(crate) const GROUPS: &[Group] = &[
    processes::GROUP,
    network::GROUP,
    servers::GROUP,
    clusters::GROUP,
    clocks::GROUP,
    resources::GROUP,
    bugs::GROUP,
];

/// What speaks for a server that is one of several, where its fault is not tried again.
const AS_REDIS: &str = "a server's answers are read, and its connection kept, by the same code as \
     redis; only the way to the server differs";
const NO_SERVER: &str = "there is no server";
const NO_REDIS: &str = "a fault that only Redis servers have";
