//! The ZooKeeper store when servers, connections and sessions fail: each guarantee against real
//! servers that are cut off, frozen, killed and healed again.
//!
//! The conformance suite tests what every store must do; here are the faults that only ZooKeeper
//! has.

#![allow(clippy::unwrap_used)]

mod cells;
mod claims;
mod connections;
mod foreign;
mod fuzzing;
mod garbage;
mod leak;
mod servers;
mod support;
