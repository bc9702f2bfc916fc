//! Ctrl-C and other signals that end a command, for those that clean up before.

use std::sync::{Arc, OnceLock};

use fencelock::{Error, ErrorKind, Result};
use fencelock_cli::say;
use fencelock_cli::signals::{ENDING, Signals};
use rustix::process::Signal;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// The first signal that asks this program to end stops its work in order; the second ends it at
/// once.
pub(crate) struct Interrupts {
    stop: CancellationToken,
    caught: Arc<OnceLock<Signal>>,
}

impl Interrupts {
    /// Catches the signals, on a thread of `runtime`, for as long as that lives.
    pub(crate) fn catch(runtime: &Runtime) -> Result<Interrupts> {
        let _entered = runtime.enter();
        let mut signals = Signals::of(&ENDING).map_err(|cause| {
            Error::new(ErrorKind::Refused, "signals cannot be caught").caused_by(cause)
        })?;
        let interrupts = Interrupts { stop: CancellationToken::new(), caught: Arc::default() };
        let (stop, caught) = (interrupts.stop.clone(), interrupts.caught.clone());
        runtime.spawn(async move {
            // The program ends by the first one.
            let _ = caught.set(signals.next().await);
            say("stopping; what the run made is removed. A second signal ends at once");
            stop.cancel();
            end_by(signals.next().await);
        });
        Ok(interrupts)
    }

    /// Cancelled by the first signal.
    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Ends this program by the signal that was caught, if any, so that the calling script stops too.
    pub(crate) fn end_if_caught(&self) {
        if let Some(signal) = self.caught.get() {
            end_by(*signal);
        }
    }
}

fn end_by(signal: Signal) {
    // It fails only for a signal that does not exist.
    let _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
}
