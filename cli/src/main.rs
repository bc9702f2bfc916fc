//! The `fencelock` command: runs jobs under distributed locks.
//!
//! Each subcommand has a module of its own; this file only dispatches to them.

mod lab;
mod log;
mod redlock;
mod run;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use fencelock::{Error, Result};
use tokio::runtime::{Builder, Runtime};

/// sysexits.h: the command was used wrongly. Clap's own 2 would look like a shell's.
const EX_USAGE: u8 = 64;

const LAB: &str = "The commands bench, compare, conformance and torture are those of fencelock-lab, \
                   which they run.";

#[derive(Parser, Debug)]
#[command(name = "fencelock", version, about = "Locks between processes and machines", after_help = LAB)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Run(Box<run::Options>),
    #[command(subcommand)]
    Redlock(redlock::Options),
    #[command(hide = true, name = run::WATCHDOG)]
    Watchdog(run::WatchdogOptions),
}

fn main() -> ExitCode {
    if let Some(code) = lab::run_if_asked() {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Printing fails only when the terminal itself is gone.
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(EX_USAGE),
            };
        }
    };
    log::start();
    match cli.command {
        Command::Run(options) => run::run(*options),
        Command::Redlock(options) => options.run().unwrap_or_else(|error| run::failed(&error)),
        Command::Watchdog(options) => run::watch(options),
    }
}

/// A runtime on all cores; `run` needs only one thread and builds its own.
fn runtime() -> Result<Runtime> {
    Builder::new_multi_thread().enable_all().build().map_err(|cause| {
        Error::new(fencelock::ErrorKind::Refused, "no tokio runtime could be started")
            .caused_by(cause)
    })
}
