//! The forms of flock(1) that do not carry over are refused with what takes their place, rather than with
//! clap's riddle.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

const AS_RUN: &str =
    "flock's options belong to the command run, such as in: fencelock run -n NAME -- COMMAND";
const UNLOCK: &str = "-u is flock's, for the lock of an open descriptor, and not supported: the lock is released \
                      when COMMAND ends; to take it from another holder, see `fencelock break`";
const NO_FORK: &str = "-F is flock's, and not supported: fencelock stays, to renew the lock and to end COMMAND \
                       before it is lost";
const FCNTL: &str = "--fcntl is flock's, and not supported: the store decides how it locks";
const DESCRIPTOR: &str = "a number without COMMAND is flock's form for a descriptor, as in (flock 9; …) 9>FILE, and \
                          not supported: put what needs the lock into COMMAND, such as in: fencelock run NAME -- sh \
                          -c '…'";

/// The error of the arguments `all` of this program, if they are such a form.
pub(crate) fn check(mut program: clap::Command, all: &[OsString]) -> Result<(), clap::Error> {
    let Err(error) = program.clone().try_get_matches_from(all) else { return Ok(()) };
    let unknown = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(typed))) => typed,
        _ => "",
    };
    let seen = program.clone().ignore_errors(true).try_get_matches_from(all).ok();
    let has_command = seen.as_ref().is_some_and(|seen| seen.subcommand().is_some());
    let run = seen.as_ref().and_then(|seen| seen.subcommand_matches("run"));
    let name = run.and_then(|run| run.get_one::<String>("name"));
    let is_number = name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let is_run_without_its_name = || {
        let mut with_run = all.to_vec();
        with_run.insert(1, "run".into());
        program.clone().try_get_matches_from(with_run).is_ok()
    };
    let advice = match unknown {
        "-u" | "--unlock" if run.is_some() => UNLOCK,
        "-F" | "--no-fork" if run.is_some() => NO_FORK,
        "--fcntl" if run.is_some() => FCNTL,
        "" if error.kind() == ErrorKind::MissingRequiredArgument && is_number => DESCRIPTOR,
        option if option.starts_with('-') && !has_command && is_run_without_its_name() => AS_RUN,
        _ => return Ok(()),
    };
    program.build();
    let run = program.find_subcommand_mut("run").cloned();
    Err(run.unwrap_or(program).error(error.kind(), advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    enum Program {
        Run(Box<crate::run::Options>),
        Show(crate::operator::ShowOptions),
    }

    #[test]
    fn forms_that_do_not_carry_over_name_what_takes_their_place() {
        for (line, advice) in [
            ("-n job cmd", AS_RUN),
            ("--exclusive job -c cmd", AS_RUN),
            ("run -u 9", UNLOCK),
            ("run --unlock 9", UNLOCK),
            ("run -F job cmd", NO_FORK),
            ("run --no-fork job cmd", NO_FORK),
            ("run --fcntl job cmd", FCNTL),
            ("run 9", DESCRIPTOR),
            ("run -n -x 200", DESCRIPTOR),
            ("run -o --nonblocking -e 9 cmd", ""),
            ("run --nonblocking job cmd -u", ""),
            ("run 9 cmd", ""),
            ("run job", ""),
            ("run --no-such-option job cmd", ""),
            ("show -u mem:// job", ""),
            ("show -n job", ""),
        ] {
            let all: Vec<_> = format!("fencelock {line}").split(' ').map(OsString::from).collect();
            match check(<Program as clap::CommandFactory>::command(), &all) {
                Ok(()) => assert_eq!(advice, "", "{line}"),
                Err(error) => assert!(
                    !advice.is_empty() && error.to_string().contains(advice),
                    "{line}: {error}"
                ),
            }
        }
    }
}
