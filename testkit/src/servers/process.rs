//! One child process that cannot outlive its test by more than a moment.
//!
//! A destructor does not run when the test process is killed, and the kernel's own remedy (the
//! parent-death signal) fires at the end of the thread that started the child, which in an async
//! test can be any. So a shell waits at the end of a pipe whose other end only the test process
//! holds: the kernel closes it in any case, and the shell then kills that one process id.

use std::ffi::OsString;
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
    watchdog: Option<Child>,
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
        process.watchdog = Some(watchdog(process.id())?);
        Ok(process)
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn exited(&mut self) -> io::Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        if status.is_some() {
            self.dismiss_watchdog();
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
            self.dismiss_watchdog();
            self.child.wait()?;
        }
        self.dismiss_watchdog();
        Ok(())
    }

    fn dismiss_watchdog(&mut self) {
        if let Some(mut watchdog) = self.watchdog.take() {
            // It fails only for a process that has ended.
            let _ = watchdog.kill();
            let _ = watchdog.wait();
        }
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

fn watchdog(id: u32) -> io::Result<Child> {
    Command::new("/bin/sh")
        .args(["-c", "read -r _; kill -KILL \"$1\"", "watchdog", &id.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A signal to the test's process group must not reach the watchdog first.
        .process_group(0)
        .spawn()
}
