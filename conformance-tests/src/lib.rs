//! The behaviour every fencelock store must show, as a suite to run against any store.
//!
//! A store's own tests are one line, in a test target with `harness = false`:
//!
//! ```no_run
//! fencelock_conformance::main(fencelock_conformance::MemoryHarness);
//! ```
//!
//! [`Harness`] tells the suite how to connect to a store, and by which back doors it can look at
//! the store from behind or break it; [`BEHAVIOURS`] is the list of what is demanded. Each pair of
//! store and behaviour is a test of its own, which passes, fails, or is ignored with a reason.
//! [`checker`] judges recorded histories, [`proxy`] breaks connections, [`servers`] are real servers
//! on demand, and [`cancel_points`] drops futures where they await; all four are of use without the suite,
//! and so are the [`helpers`] of a fault test, and tests that need a machine [`netns`].
//! [`torture`] runs for as long as one likes, on servers that [`deployments`] start and break.

pub mod behaviours;
pub mod cancel_points;
pub mod checker;
mod context;
pub mod deployments;
mod frozen_runtime;
pub mod fuzzing;
mod harness;
pub mod helpers;
pub mod history;
mod needs;
pub mod netns;
mod panics;
mod peer;
pub mod proxy;
mod register;
mod run;
mod seed;
pub mod servers;
mod stall_detector;
mod stopping;
mod suite;
pub mod torture;

pub use behaviours::BEHAVIOURS;
pub use context::Context;
pub use frozen_runtime::FrozenRuntime;
pub use harness::memory::MemoryHarness;
pub use harness::scratch::{Connect, ScratchStore};
pub use harness::url::UrlHarness;
pub use harness::{Backdoor, Harness, Params, Store};
pub use needs::Need;
pub use peer::process::peer_main_if_asked;
pub use peer::protocol::{How, Want};
pub use peer::{Peer, PeerError};
pub use register::{ProtectedRegister, Seen, Writes};
pub use run::{AfterFailure, Report, RunOptions, main, main_of, run_against_url, run_suite};
pub use seed::fresh as fresh_seed;
pub use suite::{Behaviour, Outcome, Running, run_behaviour};
