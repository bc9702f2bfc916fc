//! `fencelock bench`, `compare`, `conformance` and `torture`: commands of `fencelock-lab`, a program
//! of its own, which replaces this one.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use fencelock_cli::EX_USAGE;

const COMMANDS: [&str; 4] = ["bench", "compare", "conformance", "torture"];

const PROGRAM: &str = "fencelock-lab";

/// The code of `fencelock run` for a command that cannot be executed.
const CANNOT_EXECUTE: u8 = 126;

/// Executes `fencelock-lab` with the arguments of this program, if the first is one of its commands.
/// Returns if it is not, or with the exit code if that program is missing.
///
/// All arguments are passed as they are, also `--help` and `--`, so this comes before they are parsed.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    // `help bench` is `bench --help`.
    if arguments.len() == 2 && arguments[0] == "help" {
        arguments = vec![arguments.remove(1), "--help".into()];
    }
    let command = arguments.first()?.to_str()?;
    if !COMMANDS.contains(&command) {
        return None;
    }
    let error = execute(&arguments);
    if error.kind() == io::ErrorKind::NotFound {
        eprintln!(
            "fencelock: {command} is a command of {PROGRAM}, which is neither next to this program nor \
             on PATH; run `cargo run -p {PROGRAM} -- {command} ...` in the repository, or install it from \
             there: `cargo install --locked --profile measure --path lab`"
        );
        return Some(ExitCode::from(EX_USAGE));
    }
    eprintln!("fencelock: cannot execute {PROGRAM}: {error}");
    Some(ExitCode::from(CANNOT_EXECUTE))
}

/// Replaces this process by the program next to this one, or else the one on PATH. Process id, exit
/// code and signals are its own then. Returns only with an error.
fn execute(arguments: &[OsString]) -> io::Error {
    if let Ok(this) = std::env::current_exe() {
        let error = Command::new(this.with_file_name(PROGRAM)).args(arguments).exec();
        if error.kind() != io::ErrorKind::NotFound {
            return error;
        }
    }
    Command::new(PROGRAM).args(arguments).exec()
}
