//! The Redis store when servers and connections fail: each promise against real servers that are
//! frozen, killed, cut off, full, moved, and healed again.
//!
//! The conformance suite tests what every store must do; these are the faults that only Redis has.

mod batching;
mod cells;
mod classes;
mod clearing;
mod clock;
mod cluster;
mod connection;
mod dead;
mod dead_store;
mod endless;
mod failover;
mod fake;
mod followed;
mod limits;
mod map;
mod refusals;
mod replicas;
mod sentinel;
mod server;
mod sharing;
mod strangers;
mod support;
mod waking;
