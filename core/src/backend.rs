//! What backends share: for the authors of stores.

use std::path::Path;

use tokio::runtime::Handle;

use crate::time::boot_clock::BootClock;
pub use crate::types::error::invalid;
use crate::types::error::{Error, ErrorKind, Result};

pub use crate::store::queue::{Entry, LastNumbers, Queue, QueueStep, Stage};
pub use crate::store::registry::{ClaimRegistry, shrink_after_burst};
pub use crate::time::backoff::Backoff;

/// The runtime of the caller, which carries the store's tasks.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] outside a tokio runtime.
pub fn current_runtime() -> Result<Handle> {
    Handle::try_current().map_err(|cause| {
        let message = "a store is connected inside a tokio runtime, which carries its renewals; \
                       there is none here";
        invalid(message).caused_by(cause)
    })
}

/// Starts the clock of a store that outlives the process.
///
/// # Errors
/// [`ErrorKind::Unreachable`] when the process has no file descriptor left for its timer.
pub fn start_clock() -> Result<BootClock> {
    BootClock::start().map_err(|cause| {
        let message = "no file descriptor is free for the store's timer (ulimit -n)";
        Error::new(ErrorKind::Unreachable, message).caused_by(cause)
    })
}

/// Reads a certificate or a key for TLS.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] with the file's name.
pub fn read_certificate_file(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|cause| {
        let message = format!("cannot read the certificate file {}", file.display());
        invalid(message).caused_by(cause)
    })
}
