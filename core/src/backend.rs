//! What backends share: for the authors of stores.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::time::boot_clock::BootClock;
pub use crate::types::causes::io_message;
use crate::types::error::{Error, ErrorKind, Result};
pub use crate::types::error::{closed, invalid, unreachable};

pub use crate::store::cell_watches::CellWatches;
pub use crate::store::queue::{Entry, LastNumbers, Now, Queue, QueueStep, Stage, StoreTime};
pub use crate::store::registry::{ClaimRegistry, shrink_after_burst};
pub use crate::telemetry::program;
pub use crate::time::backoff::Backoff;

/// The runtime of the caller, which carries the store's tasks.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] outside a tokio runtime, and on one without timers.
pub fn current_runtime() -> Result<Handle> {
    let runtime = Handle::try_current().map_err(|_| {
        invalid(
            "a store is connected inside a tokio runtime, which carries its renewals; there is \
             none here: call this in an async function under #[tokio::main], or in \
             Runtime::block_on",
        )
    })?;
    with_driver("enable_time", || drop(tokio::time::sleep(Duration::ZERO)))?;
    Ok(runtime)
}

/// The result of `start`, or an error if the runtime lacks the driver that its builder's `method`
/// enables: tokio reports that only by a panic.
fn with_driver<T>(method: &str, start: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(start)).map_err(|_| {
        invalid(format!(
            "a store needs the timers and the I/O of its tokio runtime; build that with \
             Builder::enable_all, which includes {method}"
        ))
    })
}

/// Starts the clock of a store that outlives the process.
///
/// # Errors
/// [`ErrorKind::Unreachable`] when the process has no file descriptor left for its timer;
/// [`ErrorKind::InvalidArgument`] on a runtime without timers or I/O.
pub fn start_clock() -> Result<BootClock> {
    with_driver("enable_io", BootClock::start)?.map_err(|cause| {
        let message = "no file descriptor is free for the store's timer (ulimit -n)";
        Error::new(ErrorKind::Unreachable, message).caused_by(cause)
    })
}
