//! The `fencelock` command: a job under a distributed lock, and what a store is worth.
//!
//! Each subcommand is a module of its own; this file only tells them apart.

mod run;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

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
    #[command(hide = true, name = run::WATCHDOG)]
    Watchdog(run::WatchdogOptions),
}

fn main() -> ExitCode {
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
        Command::Watchdog(options) => run::watch(options),
    }
}
