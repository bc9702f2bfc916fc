//! The signals that ask a program to end.
//!
//! A signal that was ignored when this program began stays so: that is how `nohup` and a shell's
//! `&` protect what they start.

use std::fs;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

const ENDING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// These signals, as they arrive.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    /// Catches those that are not ignored, from now on and for good.
    pub(crate) fn catch() -> io::Result<Signals> {
        let ignored = ignored();
        let mut streams = Vec::new();
        for signal in ENDING {
            let number = signal.as_raw();
            if ignored >> (number - 1) & 1 == 0 {
                streams.push((signal, unix::signal(SignalKind::from_raw(number))?));
            }
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
}

/// The signals that this process ignores, a bit for each. Where `/proc` cannot tell, none.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
