//! The Redis store when servers and connections fail: each promise against real servers that are
//! frozen, killed, cut off, full, moved, and healed again.
//!
//! The conformance suite tests what every store must do; these are the faults that only Redis has. With them
//! in one program, which is linked once: what the scripts do in the server (`scripts`), other libraries on the
//! same keys (`foreign`), permissions and encryption (`security`), and input of any kind (`fuzzing`,
//! `garbage`).

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
mod foreign;
mod fuzzing;
mod garbage;
mod limits;
mod map;
mod refusals;
mod replicas;
mod scripts;
mod security;
mod sentinel;
mod server;
mod shared;
mod sharing;
mod strangers;
mod support;
mod waking;
