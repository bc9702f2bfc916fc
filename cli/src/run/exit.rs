//! How a run can end: what it says, and the exit code.
//!
//! The codes are sysexits.h's, and high enough not to be taken for the command's own; flock's 1
//! for "busy" looks like a command that failed.

use std::fmt;
use std::io;

use fencelock::{Error, ErrorKind};
use fencelock_cli::{EX_CONFIG, EX_TEMPFAIL, EX_UNAVAILABLE, EX_USAGE, LOST, chain};
use rustix::io::Errno;
use rustix::process::Signal;

use super::process::ipc::End;

const EX_DATAERR: u8 = 65;
const EX_NOINPUT: u8 = 66;
const EX_SOFTWARE: u8 = 70;
pub(super) const EX_OSERR: u8 = 71;
const CANNOT_EXECUTE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// How a run ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The command ended, and the lock was held until then.
    Ended(End),
    /// The lock was lost, or the command was ended before that.
    Lost {
        message: String,
        /// Reported when it happened.
        reported: bool,
        /// The user had asked the command to end.
        quit_asked: bool,
    },
    /// Not granted: busy, or the wait timed out.
    Busy(String),
    /// The tick of a schedule was run already.
    Done(String),
    /// A signal ended the waiting.
    Interrupted(Signal),
    /// The command cannot be executed.
    CannotExecute(String, io::Error),
    /// Invalid options.
    Usage(String),
    /// An invalid URL, or one for another store.
    Configuration(String),
    /// Refused by the store.
    Refused(String),
    /// The store did not answer.
    Unreachable(String),
    /// The system refused something that every run needs.
    System(&'static str, io::Error),
    /// The watchdog was killed, so the command was killed too.
    Unwatched,
}

impl Outcome {
    pub(super) fn usage(why: impl fmt::Display) -> Outcome {
        Outcome::Usage(why.to_string())
    }

    pub(super) fn configuration(why: impl fmt::Display) -> Outcome {
        Outcome::Configuration(why.to_string())
    }

    /// An error of the connection, where a bad argument means a bad URL.
    pub(super) fn of_connect(error: &Error) -> Outcome {
        match error.kind() {
            ErrorKind::InvalidArgument => Outcome::configuration(chain(error)),
            _ => Outcome::of_acquire(error),
        }
    }

    /// A loss that has not been reported.
    pub(super) fn lost(message: String) -> Outcome {
        Outcome::Lost { message, reported: false, quit_asked: false }
    }

    /// An error of the acquisition, where it means a bad option.
    pub(super) fn of_acquire(error: &Error) -> Outcome {
        let message = chain(error);
        match error.kind() {
            ErrorKind::Busy | ErrorKind::WaitTimedOut => Outcome::Busy(message),
            ErrorKind::InvalidArgument => Outcome::Usage(message),
            ErrorKind::Refused => Outcome::Refused(message),
            ErrorKind::Unsupported | ErrorKind::Foreign => Outcome::Configuration(message),
            ErrorKind::Lost | ErrorKind::NotHeld | ErrorKind::Stale => Outcome::lost(message),
            _ => Outcome::Unreachable(message),
        }
    }

    /// SIGINT or SIGQUIT, as Ctrl-C and Ctrl-\\ send them, if one of them ended it.
    pub(super) fn keyboard_signal(&self) -> Option<Signal> {
        let number = match self {
            Outcome::Ended(End::Killed(signal)) => *signal,
            Outcome::Interrupted(signal) => signal.as_raw(),
            _ => return None,
        };
        [Signal::INT, Signal::QUIT].into_iter().find(|signal| signal.as_raw() == number)
    }

    /// The outcome's name in the status file.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Outcome::Ended(End::Exited(_)) => "exited",
            Outcome::Ended(End::Killed(_)) => "killed",
            Outcome::Lost { .. } => "lost",
            Outcome::Busy(_) => "busy",
            Outcome::Done(_) => "done",
            Outcome::Interrupted(_) => "interrupted",
            Outcome::CannotExecute(..) => "cannot_execute",
            Outcome::Usage(_) => "usage",
            Outcome::Configuration(_) | Outcome::Refused(_) => "configuration",
            Outcome::Unreachable(_) => "unreachable",
            Outcome::System(..) => "system",
            Outcome::Unwatched => "unwatched",
        }
    }

    /// Whether the command was not run, for a lock that is busy or a tick that is done.
    pub(super) fn is_a_skip(&self) -> bool {
        matches!(self, Outcome::Busy(_) | Outcome::Done(_))
    }

    pub(super) fn was_reported(&self) -> bool {
        matches!(self, Outcome::Lost { reported: true, .. })
    }

    /// The message for standard error, if any.
    pub(super) fn message(&self) -> Option<String> {
        match self {
            Outcome::Ended(_) | Outcome::Interrupted(_) => None,
            Outcome::Lost { message, .. }
            | Outcome::Busy(message)
            | Outcome::Done(message)
            | Outcome::Usage(message)
            | Outcome::Configuration(message)
            | Outcome::Refused(message)
            | Outcome::Unreachable(message) => Some(message.clone()),
            Outcome::CannotExecute(command, cause) => {
                let hint = match cause.raw_os_error() {
                    Some(code) if code == Errno::NOEXEC.raw_os_error() => {
                        "; a script needs a first line such as #!/bin/sh"
                    }
                    _ => "",
                };
                Some(format!("cannot execute {command:?}: {cause}{hint}"))
            }
            Outcome::System(doing, cause) => Some(format!("{doing}: {cause}")),
            Outcome::Unwatched => {
                Some("the watchdog was killed, so the command was killed too".to_owned())
            }
        }
    }
}

/// How outcomes map to exit codes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Codes {
    pub(super) flock: bool,
    pub(super) busy: Option<u8>,
    pub(super) skip_ok: bool,
}

impl Codes {
    pub(super) fn of(self, outcome: &Outcome) -> u8 {
        match outcome {
            Outcome::Ended(End::Exited(code)) => low_byte(*code),
            Outcome::Ended(End::Killed(signal)) => low_byte(128 + signal),
            Outcome::Interrupted(signal) => low_byte(128 + signal.as_raw()),
            // flock never loses a lock, so it has no code of its own for that.
            Outcome::Lost { .. } => LOST,
            Outcome::Busy(_) | Outcome::Done(_) if self.skip_ok => 0,
            Outcome::Busy(_) | Outcome::Done(_) => {
                self.busy.unwrap_or(if self.flock { 1 } else { EX_TEMPFAIL })
            }
            Outcome::CannotExecute(..) if self.flock => EX_UNAVAILABLE,
            Outcome::CannotExecute(_, cause) => match cause.kind() {
                io::ErrorKind::NotFound => NOT_FOUND,
                _ => CANNOT_EXECUTE,
            },
            Outcome::Usage(_) => EX_USAGE,
            Outcome::Refused(_) if self.flock => EX_NOINPUT,
            Outcome::Configuration(_) if self.flock => EX_DATAERR,
            Outcome::Refused(_) | Outcome::Configuration(_) => EX_CONFIG,
            Outcome::Unreachable(_) if self.flock => EX_OSERR,
            Outcome::Unreachable(_) => EX_UNAVAILABLE,
            Outcome::System(..) => EX_OSERR,
            Outcome::Unwatched => EX_SOFTWARE,
        }
    }

    /// Whether a skip is expected and not reported: with `--skip-ok`, by default of `fencelock once`, and
    /// like flock's `-n`.
    pub(super) fn are_silent(self) -> bool {
        self.skip_ok || self.flock
    }
}

fn low_byte(code: i32) -> u8 {
    code.to_le_bytes()[0]
}
