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

pub mod behaviours;
pub mod cancel_points;
mod harness;
pub mod history;
mod how;
mod panics;
mod processes;
mod seed;
mod suite;
mod time;

pub use behaviours::BEHAVIOURS;
pub use harness::memory::MemoryHarness;
pub use harness::network_fault::{NetworkFault, NewConnections};
pub use harness::scratch::{Connect, ScratchStore};
pub use harness::url::UrlHarness;
pub use harness::{Backdoor, Harness, Params, Store};
pub use history::checker;
pub use how::How;
pub use processes::peer::process::peer_main_if_asked;
pub use processes::peer::protocol::{Answer, Want};
pub use processes::peer::{Peer, PeerError};
pub use processes::register::process::RegisterServer;
pub use processes::register::{ProtectedRegister, Seen, Writes};
pub use processes::{stopping, workload};
pub use seed::fresh as fresh_seed;
pub use suite::context::Context;
pub use suite::needs::Need;
pub use suite::run::{AfterFailure, Report, RunOptions, main, main_of, run_against_url, run_suite};
pub use suite::{Behaviour, Outcome, Running, run_behaviour, waiting};
pub use time::clock::ServerClock;
pub use time::frozen_runtime::FrozenRuntime;
