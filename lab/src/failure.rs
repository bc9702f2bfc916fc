//! Why a command failed: one line on standard error, and the exit code that `fencelock run` has for
//! such an error.

use std::error::Error as _;
use std::process::ExitCode;

use fencelock::{Error, ErrorKind};

// Of sysexits.h, but for LOST.
const EX_UNAVAILABLE: u8 = 69;
const EX_TEMPFAIL: u8 = 75;
const EX_CONFIG: u8 = 78;
const LOST: u8 = 79;

/// Prints the error and its causes.
pub(crate) fn failed(error: &Error) -> ExitCode {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    let causes: String = causes.map(|cause| format!(": {cause}")).collect();
    let line = format!("{error}{causes}").replace(['\n', '\r'], " ");
    eprintln!("fencelock: {line}");
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
