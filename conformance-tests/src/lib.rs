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
pub mod checker;
mod clock;
mod context;
mod frozen_runtime;
mod harness;
pub mod history;
mod needs;
mod panics;
mod peer;
mod register;
mod run;
mod seed;
mod stall_detector;
pub mod stopping;
mod suite;
pub mod waiting;
pub mod workload;

pub use behaviours::BEHAVIOURS;
pub use clock::ServerClock;
pub use context::Context;
pub use frozen_runtime::FrozenRuntime;
pub use harness::memory::MemoryHarness;
pub use harness::network_fault::NetworkFault;
pub use harness::scratch::{Connect, ScratchStore};
pub use harness::url::UrlHarness;
pub use harness::{Backdoor, Harness, Params, Store};
pub use needs::Need;
pub use peer::process::peer_main_if_asked;
pub use peer::protocol::{Answer, How, Want};
pub use peer::{Peer, PeerError};
pub use register::process::RegisterServer;
pub use register::{ProtectedRegister, Seen, Writes};
pub use run::{AfterFailure, Report, RunOptions, main, main_of, run_against_url, run_suite};
pub use seed::fresh as fresh_seed;
pub use suite::{Behaviour, Outcome, Running, run_behaviour};
