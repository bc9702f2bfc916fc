//! What the programs `fencelock` and `fencelock-lab` have in common: arguments, exit codes, messages
//! and signals.

pub mod signals;

use std::ffi::OsString;
use std::fs::Permissions;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use fencelock::backend::url::StoreUrl;
use fencelock::{Error, ErrorKind, Result};
use tempfile::{Builder, NamedTempFile};

/// sysexits.h: the command was used wrongly. Clap's own 2 would look like a shell's.
pub const EX_USAGE: u8 = 64;
/// sysexits.h: the store did not answer.
pub const EX_UNAVAILABLE: u8 = 69;
/// sysexits.h: the lock is busy.
pub const EX_TEMPFAIL: u8 = 75;
/// sysexits.h: an invalid URL, or a refusal of the store.
pub const EX_CONFIG: u8 = 78;
/// The lock was lost. After the last code of sysexits.h.
pub const LOST: u8 = 79;

/// This program's arguments. An error, once help, the version or a usage error was printed.
///
/// # Errors
/// The exit code.
pub fn arguments<Cli: clap::Parser>() -> std::result::Result<Cli, ExitCode> {
    let arguments = without_help_of_help(&Cli::command(), std::env::args_os().collect());
    Cli::try_parse_from(arguments).map_err(|mut error| {
        suggest_a_subcommand(&mut error, &Cli::command());
        hide_passwords(&mut error);
        // Printing fails only when the terminal itself is gone.
        let _ = error.print();
        if error.use_stderr() { ExitCode::from(EX_USAGE) } else { ExitCode::SUCCESS }
    })
}

/// Names the subcommand that was meant. Clap suggests none for letters that changed places in a short
/// word, such as `rnu`.
fn suggest_a_subcommand(error: &mut clap::Error, program: &clap::Command) {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else {
        return;
    };
    let is_meant = |name: &&str| strsim::damerau_levenshtein(typed, name) == 1;
    let visible = program.get_subcommands().filter(|it| !it.is_hide_set());
    if let Some(meant) = visible.map(clap::Command::get_name).find(is_meant) {
        let meant = ContextValue::Strings(vec![meant.to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, meant);
    }
}

/// A store's URL in the place of another argument is shown as every URL is: without its password.
fn hide_passwords(error: &mut clap::Error) {
    for place in
        [ContextKind::InvalidArg, ContextKind::InvalidValue, ContextKind::InvalidSubcommand]
    {
        if let Some(ContextValue::String(typed)) = error.get(place)
            && typed.contains("://")
        {
            let shown =
                StoreUrl::parse(typed).map_or_else(|_| "***".to_owned(), |url| url.to_string());
            error.insert(place, ContextValue::String(shown));
        }
    }
}

/// The arguments without a `--help` after `help`, which clap takes for a command's name.
fn without_help_of_help(program: &clap::Command, mut arguments: Vec<OsString>) -> Vec<OsString> {
    let mut command = program;
    for at in 1..arguments.len() {
        if arguments[at] == "help" && command.has_subcommands() {
            let after = arguments.split_off(at + 1);
            arguments.extend(after.into_iter().filter(|it| it != "--help" && it != "-h"));
            break;
        }
        let Some(below) = command.find_subcommand(&arguments[at]) else { break };
        command = below;
    }
    arguments
}

/// A runtime on all cores.
///
/// # Errors
/// [`ErrorKind::Refused`] when the system refuses a thread or a descriptor.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|cause| {
        Error::new(ErrorKind::Refused, "no tokio runtime could be started").caused_by(cause)
    })
}

/// Reports why a command failed; its exit code.
pub fn failed(error: &Error) -> ExitCode {
    say(&chain(error));
    ExitCode::from(match error.kind() {
        ErrorKind::Busy | ErrorKind::WaitTimedOut => EX_TEMPFAIL,
        ErrorKind::InvalidArgument
        | ErrorKind::Refused
        | ErrorKind::Unsupported
        | ErrorKind::Foreign => EX_CONFIG,
        ErrorKind::Lost | ErrorKind::NotHeld => LOST,
        _ => EX_UNAVAILABLE,
    })
}

/// An error and its causes, each said once.
#[must_use]
pub fn chain(error: &Error) -> String {
    format!("{error:#}")
}

/// Whether a log on standard error may have colours: on a terminal, unless its user declines them
/// (<https://no-color.org>).
#[must_use]
pub fn has_colours() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty())
}

/// Writes one line to standard error. A failure to write is ignored.
pub fn say(message: &str) {
    let _ = writeln!(io::stderr(), "fencelock: {}", one_line(message));
}

/// A message of several lines as one line. It may repeat what a server said, so other control characters
/// are replaced too: a terminal would carry them out.
#[must_use]
pub fn one_line(message: &str) -> String {
    message.replace(char::is_control, " ")
}

/// Replaces `file` by one with this content. Readers see the whole new file or the old one.
///
/// # Errors
/// Those of the file system.
pub fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    let mut new = new_beside(file)?;
    new.write_all(content)?;
    new.persist(file)?;
    Ok(())
}

/// A temporary file in the directory of `file`, with the permissions of any new file.
///
/// # Errors
/// Those of the file system.
pub fn new_beside(file: &Path) -> io::Result<NamedTempFile> {
    let directory = match file.parent() {
        Some(directory) if directory != Path::new("") => directory,
        _ => Path::new("."),
    };
    // Less what the umask takes away.
    Builder::new()
        .prefix(".fencelock-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_without_escape_sequences() {
        assert_eq!(one_line("a\r\nb\u{1b}[2J\u{9b}31mc"), "a  b [2J 31mc");
    }

    #[test]
    fn a_cause_that_the_error_repeats_is_shown_once() {
        let refused = || io::Error::other("connection refused");
        let says = |message: &str| Error::new(ErrorKind::Unreachable, message).caused_by(refused());
        assert_eq!(
            chain(&says("no connection (connection refused)")),
            "store unreachable: no connection (connection refused)"
        );
        assert_eq!(
            chain(&says("no connection")),
            "store unreachable: no connection: connection refused"
        );
    }
}
