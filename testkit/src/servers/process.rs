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
use std::time::{Duration, Instant};

use fencelock_conformance::stopping::has_stopped;
use rustix::process::{Pid, Signal, kill_process};

mod tree;

use tree::children;
#[cfg(feature = "stores")]
pub(crate) use tree::cpu_ticks;

#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    end_in_order: Signal,
    end_at_once: Signal,
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
        let Invocation { end_in_order, end_at_once, .. } = *command;
        let mut process = Self { child, end_in_order, end_at_once, watchdog: None };
        process.watchdog = Some(Watchdog::that_ends(process.id(), end_at_once)?);
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

    /// Asks it to end, for which it has time.
    pub(super) fn end_in_order(&mut self) -> io::Result<()> {
        self.signal(self.end_in_order)
    }

    /// Sends a signal to it and its children. When it is stopped it starts no more of them, and those that
    /// end keep their ids, as it does not wait for them.
    pub(super) fn signal_all(&mut self, signal: Signal) -> io::Result<()> {
        if signal == Signal::STOP {
            self.signal(signal)?;
        }
        for child in children(self.id())? {
            match kill_process(child.id, signal) {
                Err(rustix::io::Errno::SRCH) | Ok(()) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if signal == Signal::STOP { Ok(()) } else { self.signal(signal) }
    }

    /// Whether a stop signal has taken effect, on all threads, and on its children.
    pub(super) fn is_stopped(&mut self) -> io::Result<bool> {
        if self.exited()?.is_some() {
            return Err(gone());
        }
        if !has_stopped(Pid::from_child(&self.child))? {
            return Ok(false);
        }
        for child in children(self.id())? {
            // One that was started while it was being stopped has got no signal yet.
            if !child.is_stopped {
                let _ = kill_process(child.id, Signal::STOP);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Ends it at once and waits for its end, which takes no longer than the kernel needs, or than the
    /// server needs to end its other processes.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        const PATIENCE: Duration = Duration::from_secs(10);
        const PAUSE: Duration = Duration::from_millis(2);
        if self.child.try_wait()?.is_none() && self.end_at_once != Signal::KILL {
            self.signal(self.end_at_once)?;
            // Stopped processes do not hear of their end. It fails if it has ended already.
            let _ = self.signal_all(Signal::CONT);
            let deadline = Instant::now() + PATIENCE;
            while self.child.try_wait()?.is_none() && Instant::now() < deadline {
                std::thread::sleep(PAUSE);
            }
        }
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
    /// What ends it in order.
    pub(super) end_in_order: Signal,
    /// What ends it like a crash: SIGKILL, except for a server whose other processes and shared memory would
    /// survive that.
    pub(super) end_at_once: Signal,
}

impl Invocation {
    pub(super) fn new(program: OsString, args: Vec<OsString>) -> Invocation {
        Invocation { program, args, end_in_order: Signal::TERM, end_at_once: Signal::KILL }
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "it is not running")
}

/// A shell that acts at the end of this process, however it ends. Dropping it dismisses it.
#[derive(Debug)]
pub(crate) struct Watchdog(Child);

impl Watchdog {
    fn that_ends(id: u32, signal: Signal) -> io::Result<Watchdog> {
        // A stopped process would not hear of it.
        let script = format!("kill -{} \"$1\"; kill -CONT \"$1\"", signal.as_raw());
        Watchdog::spawn(&script, id.to_string().as_ref())
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
