//! The `fencelock-lab` command: what a store can do, and at what cost.
//!
//! Each subcommand has a module of its own; this file only dispatches to them.

mod bench;
mod compare;
mod conformance;
mod costs;
mod interrupt;
mod leftovers;
mod postgres_client;
mod registers;
mod store_spec;
mod torture;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    Costs(costs::Options),
    Torture(torture::Options),
}

fn main() -> ExitCode {
    conformance::serve_if_asked();
    let cli: Cli = match fencelock_cli::arguments() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    if std::env::var_os("RUST_LOG").is_some() {
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_writer(std::io::stderr)
            .with_ansi(fencelock_cli::has_colours())
            .init();
    }
    let done = match cli.command {
        Command::Bench(options) => options.run(),
        Command::Compare(options) => options.run(),
        Command::Conformance(options) => options.run(),
        Command::Costs(options) => options.run(),
        Command::Torture(options) => options.run(),
    };
    done.unwrap_or_else(|error| fencelock_cli::failed(&error))
}
