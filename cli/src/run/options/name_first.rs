//! A lock's NAME comes before `--`.
//!
//! Without this check, `fencelock run -- COMMAND…` with a forgotten NAME would take the command for the
//! name, and its first argument for the command.

use std::ffi::OsString;

use clap::error::ErrorKind;

/// The commands that run a job.
const COMMANDS: [&str; 3] = ["run", "once", "elect"];

/// The error of `arguments` of this program in which `--` comes before the NAME of a command that runs a
/// job.
pub(crate) fn check(
    mut program: clap::Command,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<(), clap::Error> {
    let all: Vec<OsString> = arguments.into_iter().collect();
    let Some(dashes) = all.iter().position(|one| one == "--") else { return Ok(()) };
    let before = &all[..dashes];
    // Other errors, such as a misspelt option, are reported first.
    let is_complete = match program.clone().try_get_matches_from(&all) {
        Ok(_) => true,
        Err(error) => {
            error.kind() == ErrorKind::MissingRequiredArgument && before.len() + 1 < all.len()
        }
    };
    if !is_complete {
        return Ok(());
    }
    // COMMAND is missing here.
    let Ok(seen) = program.clone().ignore_errors(true).try_get_matches_from(before) else {
        return Ok(());
    };
    let Some((command, seen)) = seen.subcommand() else { return Ok(()) };
    if !COMMANDS.contains(&command) || seen.contains_id("name") {
        return Ok(());
    }
    program.build();
    let advice = format!(
        "the lock's NAME comes before --, such as in: fencelock {command} nightly-report -- COMMAND"
    );
    let mut job = program.find_subcommand_mut(command).cloned().unwrap_or(program);
    Err(job.error(ErrorKind::MissingRequiredArgument, advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Program {
        #[command(subcommand)]
        command: Command,
    }

    #[derive(clap::Subcommand)]
    enum Command {
        Run(Box<crate::run::Options>),
        Once(Box<crate::run::OnceOptions>),
        Elect(Box<crate::run::ElectOptions>),
        Other { words: Vec<String> },
    }

    #[test]
    fn a_name_after_the_dashes_is_an_error_and_nothing_else_is() {
        let check = |line: &str| {
            let arguments = line.split_whitespace().map(OsString::from);
            check(<Program as clap::CommandFactory>::command(), arguments)
        };
        for line in [
            "fencelock run -- echo hi",
            "fencelock run -n -E 3 -- echo hi",
            "fencelock run --url redis://host -- job",
            "fencelock run -c true -- job",
            "fencelock once -- echo hi",
            "fencelock once --per 1d -- echo hi",
            "fencelock elect --words me -- serve",
        ] {
            let error = check(line).expect_err(line).to_string();
            assert!(error.contains("NAME comes before --"), "{line}: {error}");
        }
        for line in [
            "fencelock run job -- echo hi",
            "fencelock run -w 3 job -- echo -- hi",
            "fencelock run job echo -- hi",
            "fencelock run job --",
            "fencelock run --",
            "fencelock run --no-such-option job -- true",
            "fencelock other -- a b",
            "fencelock run job",
            "fencelock once --per 1d job -- echo hi",
            "fencelock elect job -- serve",
        ] {
            assert!(check(line).is_ok(), "{line}");
        }
    }
}
