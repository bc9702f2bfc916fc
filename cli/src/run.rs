//! `fencelock run`: a command under a lock.
//!
//! Three processes: this one, the wrapper, holds the lock and follows the command; the watchdog, the
//! same program in a process group of its own, starts the command and kills it when the wrapper is
//! gone or out of time; the command leads a third group. They are in [`process`].
//!
//! [`job`] is one run from start to end, [`supervise`] its middle: from the command's start to its end.
//! The rest is one idea per file: [`options`], [`help`], [`name_first`], [`environment`], [`waiting`],
//! [`store`], [`terminal`], [`signals`], [`exit`], [`status`].

mod environment;
mod exit;
mod help;
mod job;
pub(crate) mod name_first;
mod options;
mod process;
mod signals;
mod status;
mod store;
mod supervise;
mod terminal;
mod waiting;

use std::process::ExitCode;

use fencelock_cli::say;

pub(crate) use options::Options;
pub(crate) use process::watchdog::Options as WatchdogOptions;

/// The hidden subcommand of the watchdog.
pub(crate) const WATCHDOG: &str = "__watchdog";

/// Runs the command under the lock and returns the exit code.
pub(crate) fn run(options: Options) -> ExitCode {
    in_one_thread(async {
        if let Err(cause) = process::orphans::reap_in_background() {
            say(&format!("cannot follow processes: {cause}"));
            return exit::EX_OSERR;
        }
        job::run(options).await
    })
}

/// The watchdog's whole life.
pub(crate) fn watch(options: WatchdogOptions) -> ExitCode {
    in_one_thread(process::watchdog::watch(options))
}

/// One thread is enough, and starts faster than several; it is never blocked for long.
fn in_one_thread(work: impl Future<Output = u8>) -> ExitCode {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(work);
            // A thread of a store may be blocked for ever, so it is not waited for.
            runtime.shutdown_background();
            ExitCode::from(code)
        }
        Err(error) => {
            say(&format!("cannot start: {error}"));
            ExitCode::from(exit::EX_OSERR)
        }
    }
}
