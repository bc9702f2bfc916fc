//! Which signals are passed on to the command, end a wait, or are dropped.

use std::io;

use fencelock_cli::signals::{ENDING, Signals};
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
    for number in REAL_TIME {
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
