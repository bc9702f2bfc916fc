//! The behaviour every fencelock store must show, as a suite to run against any store.
//!
//! A store's own tests are one line, in a test target with `harness = false`:
//!
//! ```no_run
//! fencelock_conformance::main(fencelock_conformance::MemoryHarness);
//! ```
//!
//! [`Harness`] connects the suite to a store, and offers backdoors to inspect the store without the
//! library or to break it; [`BEHAVIOURS`] lists the required behaviours. Each pair of store and
//! behaviour is a test of its own, which passes, fails, or is ignored with a reason. [`checker`]
//! judges recorded histories, and [`cancel_points`] drops futures where they await; both are of use
//! without the suite. Servers, proxies and deployments for such tests are in
//! `fencelock-testkit`, which depends on this crate.
//!
//! The cargo feature `suite`, on by default, is all of that. Without it, only [`NetworkFault`],
//! [`stopping`] and [`with_params`] remain: what `fencelock-testkit` needs for the tests of a service.

#[cfg(feature = "suite")]
pub mod behaviours;
#[cfg(feature = "suite")]
pub mod cancel_points;
#[cfg(feature = "suite")]
mod harness;
#[cfg(feature = "suite")]
pub mod history;
#[cfg(feature = "suite")]
mod how;
mod network_fault;
#[cfg(feature = "suite")]
mod panics;
#[cfg(feature = "suite")]
mod processes;
#[cfg(feature = "suite")]
mod run;
#[cfg(feature = "suite")]
mod seed;
pub mod stopping;
#[cfg(feature = "suite")]
mod suite;
#[cfg(feature = "suite")]
mod time;
mod url_params;

pub use network_fault::{NetworkFault, NewConnections};
pub use url_params::with_params;
#[cfg(feature = "suite")]
pub use {
    behaviours::BEHAVIOURS,
    harness::memory::MemoryHarness,
    harness::scratch::{Connect, ScratchStore},
    harness::url::UrlHarness,
    harness::{Backdoor, Harness, Params, Store},
    history::checker,
    how::How,
    processes::database::{Addition, DatabaseRegisters, OpenRegisters},
    processes::peer::process::{peer_main_if_asked, serve_if_asked},
    processes::peer::protocol::{Answer, Want},
    processes::peer::{Peer, PeerError},
    processes::register::process::RegisterServer,
    processes::register::{ProtectedRegister, Seen, Writes},
    processes::workload,
    run::{Report, RunOptions, main, main_of, run_against_url, run_suite},
    seed::fresh as fresh_seed,
    suite::context::Context,
    suite::needs::Need,
    suite::{Behaviour, Outcome, Running, Start, run_behaviour, waiting},
    time::clock::ServerClock,
    time::frozen_runtime::FrozenRuntime,
};
