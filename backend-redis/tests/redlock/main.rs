//! Locks on a majority of real servers, while servers and connections fail: a test for each promise of
//! `redlock://`.
//!
//! `steps` drives single nodes through the scripts alone, and `admin` does what an operator does with a set of
//! nodes; all other tests use a user's clients, on nodes
//! that are killed, frozen, cut off, filled, moved in time, and healed again.

#![allow(clippy::unwrap_used)]

mod admin;
mod away;
mod clocks;
mod contention;
#[path = "../faults/dead.rs"]
mod dead;
mod dead_store;
mod endless;
mod exclusion;
mod extension;
mod majority;
mod refusing;
mod restarts;
mod rules;
#[path = "../faults/shared.rs"]
mod shared;
mod steps;
mod support;
