//! Ctrl-C and its like, for commands that have something to put in order at their end.

use std::sync::{Arc, OnceLock};

use fencelock::{Error, ErrorKind, Result};
use rustix::process::Signal;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::run::Signals;

/// The first signal that means to end this program stops its work in order; the second ends it at
/// once. One that was ignored at the start, as `nohup` has it, stays so.
pub(crate) struct Interrupts {
    stop: CancellationToken,
    caught: Arc<OnceLock<Signal>>,
}

impl Interrupts {
    /// Catches them, on a thread of `runtime`, for as long as that lives.
    pub(crate) fn catch(runtime: &Runtime) -> Result<Interrupts> {
        let _entered = runtime.enter();
        let mut signals = Signals::catch().map_err(|cause| {
            Error::new(ErrorKind::Refused, "signals cannot be caught").caused_by(cause)
        })?;
        let interrupts = Interrupts { stop: CancellationToken::new(), caught: Arc::default() };
        let (stop, caught) = (interrupts.stop.clone(), interrupts.caught.clone());
        runtime.spawn(async move {
            // The first one is the one that the program ends by.
            let _ = caught.set(signals.next().await);
            eprintln!(
                "fencelock: stopping; what the run made is removed. A second signal ends at once"
            );
            stop.cancel();
            end_by(signals.next().await);
        });
        Ok(interrupts)
    }

    /// Cancelled by the first signal.
    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Ends this program by the signal that came, if one did, as it would have without us: a shell
    /// sees that, and a script of it stops too.
    pub(crate) fn end_if_caught(&self) {
        if let Some(signal) = self.caught.get() {
            end_by(*signal);
        }
    }
}

fn end_by(signal: Signal) {
    // An error is of a signal that does not exist.
    let _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
}
