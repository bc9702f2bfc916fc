//! The signals that people and service managers send: to be passed on, or to end the waiting.
//!
//! A signal that was ignored when this program began stays so, for us and for the command: that
//! is how `nohup` and a shell's `&` protect what they start.

use std::fs;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Signals that ask a program to end.
const ENDING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// What means something to the command only, and would end us by default; and SIGWINCH. Those of
/// faults are not among them: what they say is true of the process that gets them.
const MESSAGES: [Signal; 8] = [
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::IO,
    Signal::XCPU,
    Signal::WINCH,
];

/// What would end or stop us by default, but is neither to be passed on nor to be obeyed: a file
/// beyond its limit fails to be written all the same.
const UNHEARD: [Signal; 1] = [Signal::XFSZ];

/// What stops a program that shares a terminal.
const STOPPING: [Signal; 3] = [Signal::TSTP, Signal::TTIN, Signal::TTOU];

/// On Linux, as the C libraries number them.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;

/// Signals of a kind, as they arrive.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    /// Catches the signals that ask a program to end, permanently.
    pub(crate) fn catch() -> io::Result<Signals> {
        Signals::of(&ENDING)
    }

    /// Catches the messages for the command, permanently; and signals that cannot be passed on, which
    /// are dropped rather than ending the job: there is no safe way to send a real-time
    /// signal.
    pub(super) fn messages() -> io::Result<Signals> {
        Signals::of(&UNHEARD)?;
        for number in REAL_TIME {
            // The C library may keep some for itself.
            let _ = unix::signal(SignalKind::from_raw(number));
        }
        let messages = Signals::of(&MESSAGES)?;
        #[cfg(target_os = "linux")]
        let messages = messages.and(Signals::of(&[Signal::POWER, Signal::STKFLT])?);
        Ok(messages)
    }

    /// Catches all that can be caught but SIGCHLD, SIGCONT and those of faults.
    pub(super) fn all() -> io::Result<Signals> {
        let stopping = Signals::of(&STOPPING)?;
        Ok(Signals::catch()?.and(Signals::messages()?).and(stopping))
    }

    fn and(mut self, other: Signals) -> Signals {
        self.streams.extend(other.streams);
        self
    }

    /// Catches `wanted`, but for those that are ignored.
    pub(super) fn of(wanted: &[Signal]) -> io::Result<Signals> {
        let ignored = ignored();
        let mut streams = Vec::new();
        for &signal in wanted.iter().filter(|signal| !ignored.holds(**signal)) {
            streams.push((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
        }
        Ok(Signals { streams })
    }

    /// The next signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| {
            for (signal, stream) in &mut self.streams {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Drops what has arrived already.
    pub(super) async fn forget(&mut self) {
        tokio::select! {
            biased;
            _ = self.next() => {}
            () = std::future::ready(()) => {}
        }
    }
}

/// A set of signals, a bit for each.
#[derive(Clone, Copy)]
struct Set(u64);

impl Set {
    fn holds(self, signal: Signal) -> bool {
        self.0 >> (signal.as_raw() - 1) & 1 == 1
    }
}

/// What this process ignores. Where `/proc` cannot tell, nothing.
fn ignored() -> Set {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    Set(mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0))
}
