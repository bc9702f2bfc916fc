//! Which signals are passed on to the command, end a wait, or are dropped; and which were blocked.

use std::io;
use std::process::{Child, Command};

use fencelock_cli::signals::{ENDING, Signals, ignored, is_in};
use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Signals that have a meaning for the command only, and would end the wrapper by default; and
/// SIGWINCH. Those of faults are not among them: they concern the process that gets them.
const MESSAGES: &[Signal] = &[
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::IO,
    Signal::XCPU,
    Signal::WINCH,
    #[cfg(target_os = "linux")]
    Signal::POWER,
    #[cfg(target_os = "linux")]
    Signal::STKFLT,
];

/// Signals that stop a program that shares a terminal.
const STOPPING: [Signal; 3] = [Signal::TSTP, Signal::TTIN, Signal::TTOU];

/// On Linux, as the C libraries number them.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;

/// Catches the messages for the command, permanently. Signals that cannot be passed on are dropped
/// rather than end the job: there is no safe way to send a real-time signal, and a file beyond its
/// limit (SIGXFSZ) fails to be written all the same.
pub(super) fn messages() -> io::Result<Signals> {
    Signals::of(&[Signal::XFSZ])?;
    let ignored = ignored();
    for number in REAL_TIME.filter(|number| !is_in(ignored, *number)) {
        // The C library may keep some for itself.
        let _ = unix::signal(SignalKind::from_raw(number));
    }
    Signals::of(MESSAGES)
}

/// Catches all that can be caught but SIGCHLD, SIGCONT and those of faults, and drops them.
pub(super) fn drop_all() -> io::Result<()> {
    messages()?;
    Signals::of(&[ENDING.as_slice(), &STOPPING].concat()).map(drop)
}

/// The signals that were blocked when this program was started. It blocks none itself: with SIGCHLD blocked
/// it would not notice the command's end, and hold the lock for ever. The command gets them as they were, by
/// way of the watchdog.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocked(SigSet);

impl Blocked {
    /// Unblocks all signals in this thread, and so for the process; after those were caught that would end it.
    pub(super) fn unblock() -> io::Result<Blocked> {
        Ok(Blocked(SigSet::empty().thread_swap_mask(SigmaskHow::SIG_SETMASK)?))
    }

    /// Starts a process in which they are blocked.
    pub(super) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let ours = self.0.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let spawned = command.spawn();
        ours.thread_set_mask()?;
        spawned
    }
}
