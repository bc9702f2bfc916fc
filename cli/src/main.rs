//! The `fencelock` command: runs jobs under distributed locks.
//!
//! Each subcommand has a module of its own; this file only dispatches to them.

mod config;
mod lab;
mod lock_name;
mod log;
mod manual;
mod operator;
mod output;
mod run;
mod stores;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use fencelock_cli::EX_USAGE;

const LAB: &str =
    "The commands bench, compare, conformance and torture run the program fencelock-lab.";

#[derive(Parser)]
#[command(name = "fencelock", version, about = "Locks between processes and machines", after_help = LAB)]
struct Cli {
    #[command(flatten)]
    log: log::Options,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<run::Options>),
    Once(Box<run::OnceOptions>),
    Elect(Box<run::ElectOptions>),
    Leader(operator::LeaderOptions),
    Show(operator::ShowOptions),
    Break(operator::BreakOptions),
    Tidy(operator::TidyOptions),
    #[command(flatten)]
    OfOneStore(stores::Options),
    Completions(manual::CompletionsOptions),
    Man(manual::ManOptions),
}

fn main() -> ExitCode {
    let code = run::watch_if_asked().or_else(lab::run_if_asked).or_else(stores::refuse_if_missing);
    if let Some(code) = code {
        return code;
    }
    let all: Vec<_> = std::env::args_os().collect();
    let check = run::from_flock::check(Cli::command(), &all)
        .and_then(|()| run::name_first::check(Cli::command(), all));
    if let Err(error) = check {
        // Printing fails only when the terminal itself is gone.
        let _ = error.print();
        return ExitCode::from(EX_USAGE);
    }
    let cli: Cli = match fencelock_cli::arguments() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let warnings = match &cli.command {
        Command::Run(options) => Some(options.wants_warnings()),
        Command::Once(options) => Some(options.wants_warnings()),
        Command::Elect(options) => Some(options.wants_warnings()),
        _ => None,
    };
    let reports = run::Reports::default();
    log::start(cli.log, warnings.unwrap_or(false), warnings.and(Some(&reports)));
    let code = match cli.command {
        Command::Run(options) => run::run(*options, reports.clone()),
        Command::Once(options) => run::once(*options, reports.clone()),
        Command::Elect(options) => run::elect(*options, reports.clone()),
        Command::Leader(options) => operator::run(options.run()),
        Command::Show(options) => operator::run(options.run()),
        Command::Break(options) => operator::run(options.run()),
        Command::Tidy(options) => operator::run(options.run()),
        Command::OfOneStore(options) => {
            options.run().unwrap_or_else(|error| fencelock_cli::failed(&error))
        }
        Command::Completions(options) => manual::run(options.run(&Cli::command())),
        Command::Man(options) => manual::run(options.run(Cli::command())),
    };
    reports.flush_within(run::WRITTEN_WITHIN);
    code
}
