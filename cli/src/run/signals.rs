//! The signals that people and service managers send: to be passed on, or to end the waiting.
//!
//! A signal that was ignored when this program began stays so, for us and for the command: that
//! is how `nohup` and a shell's `&` protect what they start.

use std::fs;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Those signals, as they arrive.
#[derive(Debug)]
pub(super) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    /// Catches what ends a program politely, from now on and for good.
    pub(super) fn catch() -> io::Result<Signals> {
        Signals::of(&[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT])
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
    pub(super) async fn next(&mut self) -> Signal {
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
