//! Catching signals.
//!
//! A signal that was ignored when this program began stays so, for this program and for what it
//! starts: that is how `nohup` and a shell's `&` protect their commands.

use std::fs;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Signals that ask a program to end.
pub const ENDING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// Some kinds of signals, as they arrive.
#[derive(Debug)]
pub struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    /// Catches those of `wanted` that are not ignored, permanently.
    ///
    /// # Errors
    /// Those of the system.
    pub fn of(wanted: &[Signal]) -> io::Result<Signals> {
        let ignored = ignored();
        let mut streams = Vec::new();
        for &signal in wanted.iter().filter(|signal| !is_in(ignored, signal.as_raw())) {
            streams.push((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
        }
        Ok(Signals { streams })
    }

    /// The next signal.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn next(&mut self) -> Signal {
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

    /// Discards what has already arrived.
    pub async fn discard_pending(&mut self) {
        tokio::select! {
            biased;
            _ = self.next() => {}
            () = std::future::ready(()) => {}
        }
    }
}

/// Whether the signal with this `number` is in `mask`.
#[must_use]
pub fn is_in(mask: u64, number: i32) -> bool {
    mask >> (number - 1) & 1 == 1
}

/// The signals that this process ignores, one bit each; none where `/proc` is missing.
#[must_use]
pub fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
