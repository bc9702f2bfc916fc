//! `fencelock run`, `once` and `elect`: a command under a lock, for each tick of a schedule, or on the
//! leader.
//!
//! Three processes: this one, the wrapper, holds the lock and follows the command; the watchdog, the
//! same program in a process group of its own, starts the command and kills it when the wrapper is
//! gone or out of time; the command leads a third group. They are in [`process`].
//!
//! [`job`] is one run from start to end, [`supervise`] its middle: from the command's start to its end.
//! The three commands differ in their [`options`], of which each makes a [`plan`], and in what is held:
//! [`grant`]. The rest is one idea per file: [`environment`], [`waiting`], [`store`], [`terminal`],
//! [`signals`], [`exit`], [`status`], [`reports`].

mod environment;
mod exit;
mod grant;
mod job;
mod options;
mod plan;
mod process;
mod reports;
mod signals;
mod status;
mod store;
mod supervise;
mod terminal;
mod waiting;

use std::process::ExitCode;
use std::time::Duration;

use fencelock_cli::say;

use exit::{Codes, Outcome};
use plan::Plan;

pub(crate) use options::Options;
pub(crate) use options::elect::Options as ElectOptions;
pub(crate) use options::once::Options as OnceOptions;
pub(crate) use options::{from_flock, name_first};
pub(crate) use reports::Reports;

/// The watchdog's first argument, before `--` and the command. Not for users, so no subcommand of clap's.
const WATCHDOG: &str = "__watchdog";

/// How long at most the end waits until the messages are written.
pub(crate) const WRITTEN_WITHIN: Duration = Duration::from_secs(3);

/// Runs the command under the lock and returns the exit code.
pub(crate) fn run(options: Options, reports: Reports) -> ExitCode {
    start(options.codes(), options.plan(reports))
}

/// Runs the command if this tick of its schedule is not done, and returns the exit code.
pub(crate) fn once(options: OnceOptions, reports: Reports) -> ExitCode {
    start(options.codes(), options.plan(reports))
}

/// Runs the command whenever this process leads, and returns the exit code.
pub(crate) fn elect(options: ElectOptions, reports: Reports) -> ExitCode {
    start(options.codes(), options.plan(reports))
}

fn start(codes: Codes, plan: Result<Plan, Outcome>) -> ExitCode {
    in_one_thread(async {
        if let Err(cause) = process::orphans::reap_in_background() {
            say(&format!("cannot follow processes: {cause}"));
            return exit::EX_OSERR;
        }
        Box::pin(job::run(codes, plan)).await
    })
}

/// The watchdog's whole life, if this process is one.
pub(crate) fn watch_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let is_watchdog = arguments.next().is_some_and(|command| command == WATCHDOG);
    is_watchdog.then(|| in_one_thread(process::watchdog::watch(arguments.skip(1).collect())))
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
