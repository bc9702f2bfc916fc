//! The metrics of a client, which the feature `metrics` turns on.

#[cfg(feature = "metrics")]
mod descriptions;
#[cfg(feature = "metrics")]
mod recorded;
#[cfg(not(feature = "metrics"))]
#[path = "metrics/unrecorded.rs"]
mod recorded;

use crate::types::error::{Error, ErrorKind, Result};

pub(crate) use recorded::Metrics;

/// How an acquisition ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted,
    Busy,
    TimedOut,
    Failed,
    Cancelled,
}

/// What gave an acquisition its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantedBy {
    Store,
    /// The turn before it, of the same process.
    HandOff,
}

impl Outcome {
    pub(crate) fn of<T>(result: &Result<T>) -> Outcome {
        match result.as_ref().map_err(Error::kind) {
            Ok(_) => Outcome::Granted,
            Err(ErrorKind::Busy) => Outcome::Busy,
            Err(ErrorKind::WaitTimedOut) => Outcome::TimedOut,
            Err(_) => Outcome::Failed,
        }
    }
}
