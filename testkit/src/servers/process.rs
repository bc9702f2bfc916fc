//! What cannot outlive its test by more than a moment: one child process, or a directory.
//!
//! A destructor does not run when the test process is killed, and the kernel's own remedy (the
//! parent-death signal) fires at the end of the thread that started the child, which in an async
//! test can be any. So a shell waits at the end of a pipe whose other end only the test process
//! holds: the kernel closes it in any case, and the shell then kills that one process id, or deletes
//! that one directory.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use fencelock_conformance::stopping::has_stopped;
use rustix::process::{Pid, Signal, kill_process};

#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    /// None once the child is gone, whose id then may be another process's.
    watchdog: Option<Watchdog>,
}

impl Process {
    pub(super) fn spawn(command: &Invocation, log: &Path) -> io::Result<Self> {
        let log = File::options().append(true).create(true).open(log)?;
        let child = Command::new(&command.program)
            .args(&command.args)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Out of the terminal's reach: an interrupt is the test's to handle.
            .process_group(0)
            .spawn()?;
        let mut process = Self { child, watchdog: None };
        process.watchdog = Some(Watchdog::that_kills(process.id())?);
        Ok(process)
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn exited(&mut self) -> io::Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        if status.is_some() {
            self.watchdog = None;
        }
        Ok(status)
    }

    /// Sends a signal; never to another process that has got the id in the meantime, as the id
    /// stays the child's until it is waited for.
    pub(super) fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if self.exited()?.is_some() {
            return Err(gone());
        }
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Whether a stop signal has taken effect, on all threads.
    pub(super) fn is_stopped(&mut self) -> io::Result<bool> {
        if self.exited()?.is_some() {
            return Err(gone());
        }
        has_stopped(Pid::from_child(&self.child))
    }

    /// Kills it and waits for its end, which takes no longer than the kernel needs.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        if self.child.try_wait()?.is_none() {
            self.child.kill()?;
            self.watchdog = None;
            self.child.wait()?;
        }
        self.watchdog = None;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("cannot end the server with the process id {}: {error}", self.id());
        }
    }
}

/// What to run.
#[derive(Debug)]
pub(super) struct Invocation {
    pub(super) program: OsString,
    pub(super) args: Vec<OsString>,
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "it is not running")
}

/// A shell that acts at the end of this process, however it ends. Dropping it dismisses it.
#[derive(Debug)]
pub(crate) struct Watchdog(Child);

impl Watchdog {
    fn that_kills(id: u32) -> io::Result<Watchdog> {
        Watchdog::spawn("kill -KILL \"$1\"", id.to_string().as_ref())
    }

    /// Deletes a directory, of a server that another watchdog kills.
    pub(crate) fn that_deletes(directory: &Path) -> io::Result<Watchdog> {
        // The search path of a test may be of any kind. A server may still write while it is killed.
        let script = "PATH=$PATH:/usr/bin:/bin; sleep 1; rm -rf \"$1\"";
        Watchdog::spawn(script, directory.as_os_str())
    }

    fn spawn(script: &str, argument: &OsStr) -> io::Result<Watchdog> {
        let watchdog = Command::new("/bin/sh")
            .args(["-c", &format!("read -r _; {script}"), "watchdog"])
            .arg(argument)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A signal to the test's process group must not reach the watchdog first.
            .process_group(0)
            .spawn()?;
        Ok(Watchdog(watchdog))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // It fails only for a process that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
