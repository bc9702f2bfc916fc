//! The Postgres store when servers, connections and poolers fail: each promise against real servers that are
//! ended, frozen, cut off, full, promoted, and healed again.
//!
//! The conformance suite tests what every store must do; these are the faults that only this store has.

mod clock;
mod connection;
mod failover;
mod guarded;
mod pooler;
mod refusals;
mod rows;
mod server;
mod settings;
mod strangers;
mod support;
mod tls;
mod unpolled;
