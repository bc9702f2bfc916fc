//! `fencelock show`, `leader`, `break` and `tidy`: a store as its operator sees it.
//!
//! `target.rs` finds the lock, `participants.rs` describes its holders and waiters, and each command
//! has a file of its own. `tidy` is about no lock, but about what is left.

mod break_lock;
mod leader;
mod participants;
mod show;
mod target;
mod tidy;

use std::process::ExitCode;

use fencelock::Result;

pub(crate) use break_lock::Options as BreakOptions;
pub(crate) use leader::Options as LeaderOptions;
pub(crate) use show::Options as ShowOptions;
pub(crate) use tidy::Options as TidyOptions;

/// The lock is free, there is no leader, or nothing was changed: an answer rather than an error.
const NO: u8 = 1;

/// Carries out a command; its exit code.
pub(crate) fn run(command: impl Future<Output = Result<ExitCode>>) -> ExitCode {
    let runtime = match fencelock_cli::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return fencelock_cli::failed(&error),
    };
    let code = runtime.block_on(command).unwrap_or_else(|error| fencelock_cli::failed(&error));
    // A thread of a store may be blocked for ever, so it is not waited for.
    runtime.shutdown_background();
    code
}
