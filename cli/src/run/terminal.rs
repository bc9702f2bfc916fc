//! The terminal's foreground: this program's process group, or the command's own.
//!
//! A group that is not in the foreground is stopped by its first read (SIGTTIN), and would hold
//! the lock for ever. So the command gets the terminal, and returns it when it stops or ends, as with
//! a shell.

use std::fs::File;
use std::io::{self, IsTerminal};

use nix::sys::signal::{SigSet, SigmaskHow, Signal as NixSignal};
use nix::unistd::{getpgrp, getsid};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The controlling terminal.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: File,
    /// The command gets the terminal as soon as it starts. In a pipeline it gets it when it
    /// asks: `fencelock run … | less` has a reader of keys already.
    at_once: bool,
    wanted: bool,
    lent_to: Option<Pid>,
}

impl Terminal {
    /// The controlling terminal, if there is one.
    pub(super) fn controlling() -> Option<Terminal> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        let at_once = io::stdin().is_terminal() && io::stdout().is_terminal();
        Some(Terminal { tty, at_once, wanted: at_once, lent_to: None })
    }

    /// Whether this program is in the foreground.
    pub(super) fn is_ours(&self) -> bool {
        self.foreground().is_some_and(|foreground| Some(foreground) == our_group())
    }

    fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(&self.tty).ok()
    }

    /// Whether Ctrl-Z reaches this program rather than the command.
    pub(super) fn is_shared(&self) -> bool {
        !self.at_once
    }

    /// Whether the command has it, because it was lent.
    pub(super) fn is_lent(&self) -> bool {
        self.lent_to.is_some()
    }

    /// The command asked for the terminal, by a read or a change of its settings.
    pub(super) fn wanted(&mut self) {
        self.wanted = true;
    }

    /// Makes `group` the foreground group, if it wants to be and ours is. Returns whether it is now.
    pub(super) fn lend(&mut self, group: Pid) -> bool {
        match self.foreground() {
            Some(foreground) if foreground == group => true,
            Some(foreground) if self.wanted && Some(foreground) == our_group() => {
                let lent = self.give_to(group).is_ok();
                if lent {
                    self.lent_to = Some(group);
                }
                lent
            }
            _ => false,
        }
    }

    /// Takes a lent terminal back, unless the shell has taken it meanwhile. Returns whether it was
    /// lent.
    pub(super) fn take_back(&mut self) -> bool {
        let Some(group) = self.lent_to.take() else { return false };
        let ours_to_take = match self.foreground() {
            // The command may have lent it to another group, which has ended.
            Some(foreground) => foreground == group || !exists(foreground),
            None => true,
        };
        if let (true, Some(ours)) = (ours_to_take, our_group()) {
            // A terminal that hung up needs no foreground group.
            let _ = self.give_to(ours);
        }
        true
    }

    /// From the background this stops the caller by SIGTTOU, unless it is blocked.
    fn give_to(&self, group: Pid) -> io::Result<()> {
        let mut quiet = SigSet::empty();
        quiet.add(NixSignal::SIGTTOU);
        let before = quiet.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let given = tcsetpgrp(&self.tty, group);
        before.thread_set_mask()?;
        Ok(given?)
    }

    /// Stops this program and its job as Ctrl-Z does; returns when it is continued. The kernel does not
    /// stop a job that no shell would ever continue. Other processes of the job, such as the calling
    /// script, stop too; they are `signalled` already if the terminal sent Ctrl-Z to the job.
    pub(super) fn stop_our_job(&self, signalled: bool) {
        // Signals to ourselves are always allowed.
        if !signalled {
            let _ = rustix::process::kill_current_process_group(Signal::TSTP);
        }
        if self.is_shared() {
            // SIGTSTP is caught here. SIGTTIN is not, and unlike SIGSTOP it spares jobs that no shell
            // would continue.
            let _ = rustix::process::kill_process(getpid(), Signal::TTIN);
        }
    }
}

/// Ends this process by Ctrl-C's own signal, if it came from the terminal. The calling shell sees 130
/// either way, but a script stops only if its command died of the signal. Does nothing if no other
/// process shares the terminal.
pub(super) fn die_for_the_shell(signal: Signal) {
    let alone = getsid(None).is_ok_and(|leader| leader == nix::unistd::getpid());
    if !alone && Terminal::controlling().is_some_and(|terminal| terminal.is_ours()) {
        // If it fails, the exit code remains.
        let _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
    }
}

/// Our process group. `None` in a container when its leader is outside, whom the kernel calls 0
/// there (pid_namespaces(7)). The same holds for the session's leader; rustix's types have no 0.
fn our_group() -> Option<Pid> {
    Pid::from_raw(getpgrp().as_raw())
}

fn exists(group: Pid) -> bool {
    rustix::process::test_kill_process_group(group) != Err(Errno::SRCH)
}
