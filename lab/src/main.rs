//! The `fencelock-lab` command: what a store is worth.
//!
//! Each subcommand is a module of its own; this file only tells them apart.

mod bench;
mod compare;
mod conformance;
mod failure;
mod interrupt;
mod leftovers;
mod signals;
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
#[command(
    name = "fencelock-lab",
    version,
    about = "Measures, checks, compares and breaks lock stores"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Bench(bench::Options),
    Compare(compare::Options),
    Conformance(conformance::Options),
    Torture(torture::Options),
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
    let done = match cli.command {
        Command::Bench(options) => options.run(),
        Command::Compare(options) => options.run(),
        Command::Conformance(options) => options.run(),
        Command::Torture(options) => options.run(),
    };
    done.unwrap_or_else(|error| failure::failed(&error))
}

/// All threads there are.
fn runtime() -> Result<Runtime> {
    Builder::new_multi_thread().enable_all().build().map_err(|cause| {
        Error::new(fencelock::ErrorKind::Refused, "no tokio runtime could be started")
            .caused_by(cause)
    })
}
