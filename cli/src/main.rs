//! The `fencelock` command: a job under a distributed lock, and what a store is worth.
//!
//! Each subcommand is a module of its own; this file only tells them apart.

mod bench;
mod compare;
mod conformance;
mod interrupt;
mod leftovers;
mod redlock;
mod run;
mod store_spec;
mod torture;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use fencelock::{Error, Result};
use tokio::runtime::{Builder, Runtime};

/// sysexits.h: the command was used wrongly. Clap's own 2 would look like a shell's.
const EX_USAGE: u8 = 64;

#[derive(Parser, Debug)]
#[command(name = "fencelock", version, about = "Locks between processes and machines")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Run(Box<run::Options>),
    Bench(bench::Options),
    Compare(compare::Options),
    Conformance(conformance::Options),
    Torture(torture::Options),
    #[command(subcommand)]
    Redlock(redlock::Options),
    #[command(hide = true, name = run::WATCHDOG)]
    Watchdog(run::WatchdogOptions),
}

fn main() -> ExitCode {
    conformance::serve_if_asked();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nobody is left to tell when the terminal itself is gone.
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(EX_USAGE),
            };
        }
    };
    if std::env::var_os("RUST_LOG").is_some() {
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_writer(std::io::stderr)
            .init();
    }
    match cli.command {
        Command::Run(options) => run::run(*options),
        Command::Bench(options) => options.run().unwrap_or_else(|error| run::failed(&error)),
        Command::Compare(options) => options.run().unwrap_or_else(|error| run::failed(&error)),
        Command::Conformance(options) => options.run().unwrap_or_else(|error| run::failed(&error)),
        Command::Torture(options) => options.run().unwrap_or_else(|error| run::failed(&error)),
        Command::Redlock(options) => options.run().unwrap_or_else(|error| run::failed(&error)),
        Command::Watchdog(options) => run::watch(options),
    }
}

/// All threads there are; `run` needs one only and makes its own.
fn runtime() -> Result<Runtime> {
    Builder::new_multi_thread().enable_all().build().map_err(|cause| {
        Error::new(fencelock::ErrorKind::Refused, "no tokio runtime could be started")
            .caused_by(cause)
    })
}
