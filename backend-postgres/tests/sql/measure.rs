//! The figures that the design was judged by. They measure, some for minutes, so the suite leaves them
//! out; run one alone:
//!
//! ```sh
//! cargo --config conformance-tests/optimized.toml test -p fencelock-postgres --test sql -- \
//!     --ignored --nocapture --test-threads 1 measure::hot_lock
//! ```
//!
//! `SQL_SECONDS` sets how long `hot_lock` and `old_snapshot` take, `SQL_BATCHES` how many batches
//! `deadlocks` makes. Each fails when its figure is worse than what was judged.

mod deadlocks;
mod handovers;
mod hot_lock;
mod many_held;
mod old_snapshot;
mod pairs;
mod process;
mod queue;
