//! Servers, or other programs, whose wall clock jumps, while other clocks continue.
//!
//! The program runs with a shim before the C library, which adds to the time what stands in a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

/// How to start a program as on a machine that booted so much earlier, as its first arguments; `None` where this
/// machine gives no process a time namespace of its own.
pub(crate) fn booted_earlier(by: Duration) -> Option<Command> {
    let unshare = |rights: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(rights).args(["--time", "--kill-child", "--boottime"]);
        unshare.arg(by.as_secs().to_string());
        unshare
    };
    // By root, or by a user that may be root in a namespace of its own.
    let works = |rights: &&&[&str]| {
        let tried = unshare(rights).arg("true").stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    };
    [&[][..], &["--map-root-user"]].iter().find(works).map(|rights| unshare(rights))
}

/// Moves the wall clock of the servers that are started by its [`program`](ServerClock::program).
#[derive(Debug)]
pub struct ServerClock {
    program: PathBuf,
    offset: File,
    // The servers have it mapped; they may outlive the name.
    _directory: TempDir,
}

impl ServerClock {
    /// A clock that is right, for servers started instead of `server`.
    ///
    /// # Errors
    /// When the shim cannot be built: there is no C compiler.
    pub fn of(server: &str) -> io::Result<ServerClock> {
        // Servers that refuse to be root run as another user, who must read it, and mark its use.
        let mode = std::fs::Permissions::from_mode;
        let mut directory = tempfile::Builder::new();
        let directory = directory.prefix("fencelock-clock-").permissions(mode(0o711)).tempdir()?;
        let file = |name: &str| directory.path().join(name);
        std::fs::write(file("offset"), [0; 16])?;
        std::fs::set_permissions(file("offset"), mode(0o666))?;
        std::fs::write(file("shim.c"), include_str!("clock/shim.c"))?;
        build(&file("shim.c"), &file("shim.so"))?;
        let script = format!(
            "#!/bin/sh\nLD_PRELOAD={} CLOCK_OFFSET={} exec {server} \"$@\"\n",
            file("shim.so").display(),
            file("offset").display()
        );
        let program = file("server");
        write_program(&program, &script)?;
        std::fs::set_permissions(file("shim.so"), mode(0o755))?;
        let offset = File::options().read(true).write(true).open(file("offset"))?;
        Ok(ServerClock { program, offset, _directory: directory })
    }

    /// What to start.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Puts the clock to so many seconds after the right time, now.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn is_ahead_by(&self, seconds: i64) -> io::Result<()> {
        self.is_ahead_by_micros(seconds * 1_000_000)
    }

    /// Moves the clock in the smallest steps, so that it runs at another rate.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn is_ahead_by_micros(&self, micros: i64) -> io::Result<()> {
        self.offset.write_all_at(&micros.to_ne_bytes(), 0)
    }

    /// Whether a program that has this clock was started. A step of a clock that no program has
    /// proves nothing.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn is_in_use(&self) -> io::Result<bool> {
        let mut mark = [0; 8];
        self.offset.read_exact_at(&mut mark, 8)?;
        Ok(mark != [0; 8])
    }

    /// Whether there is a C compiler for the shim.
    #[must_use]
    pub fn is_possible() -> bool {
        let compiler = Command::new("cc").arg("--version").stdout(Stdio::null()).status();
        compiler.is_ok_and(|status| status.success())
    }
}

/// Writes a program, by a process of its own: what this one has open for writing is also open for a moment in each
/// child that another thread starts, and until then the program cannot be executed ("text file busy").
fn write_program(path: &Path, script: &str) -> io::Result<()> {
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let written = Command::new("sh").args(["-c", write]).arg(path).arg(script).status()?;
    match written.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("sh cannot write {}", path.display()))),
    }
}

/// Every machine that links Rust has a C compiler.
fn build(source: &Path, shim: &Path) -> io::Result<()> {
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([shim, source])
        .arg("-ldl")
        .status()?;
    if built.success() { Ok(()) } else { Err(io::Error::other("cc cannot build the shim")) }
}
