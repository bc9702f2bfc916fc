//! What the life cycle and the keeper promise whatever a store does, one directed test for each.
//!
//! The store is a [`scripted`] one, which answers what a test tells it to, or the memory store.
//! Time is tokio's paused clock wherever a single runtime is enough. The simulation in
//! conformance-tests meets the same code with chance; here are the cases that chance meets too
//! seldom and that somebody once got wrong.

// A helper that cannot go on fails its test, which is all it should do.
#![allow(clippy::unwrap_used)]

mod clearing;
mod closing;
mod connecting;
mod holding;
mod looking;
mod renewal;
mod runtimes;
mod scripted;
mod silence;
mod types;
mod urls;
