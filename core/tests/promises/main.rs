//! What the core guarantees whatever a store does, one directed test for each guarantee.
//!
//! The store is a [`scripted`] one, which answers as a test demands, or the memory store. Time is
//! tokio's paused clock wherever a single runtime is enough. The simulation in conformance-tests
//! covers the same code at random; these are the cases that are too rare there and were wrong once.

// A helper that fails should fail its test.
#![allow(clippy::unwrap_used)]

mod cells;
mod checking;
mod clearing;
mod closing;
mod connecting;
mod expired;
mod handoffs;
mod holding;
mod lossy;
#[cfg(feature = "metrics")]
mod metrics;
mod observing;
mod options;
mod panics;
mod program;
mod recipes;
mod renewal;
mod runtimes;
#[allow(dead_code)] // The simulation of conformance-tests uses the rest of it.
mod scripted;
mod sharing;
mod silence;
mod types;
mod urls;
