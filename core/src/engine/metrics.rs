//! The metrics of a client, which the feature `metrics` turns on.
//!
//! | metric | kind | labels besides `store`, `mode` |
//! |---|---|---|
//! | `fencelock_wait_seconds` | histogram, from the call of acquire to the grant | |
//! | `fencelock_hold_seconds` | histogram, from the grant to the release or loss | |
//! | `fencelock_renewal_seconds` | histogram, one batch; no `mode` | |
//! | `fencelock_held` | gauge | |
//! | `fencelock_waiting` | gauge | |
//! | `fencelock_acquisitions_total` | counter | `outcome`: granted, busy, timed_out, failed, cancelled |
//! | `fencelock_lost_total` | counter | `reason`: expired, taken_away, hold_limit, closed |

#[cfg(feature = "metrics")]
mod recorded;
#[cfg(not(feature = "metrics"))]
#[path = "metrics/unrecorded.rs"]
mod recorded;

use crate::types::error::{Error, ErrorKind};

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

impl Outcome {
    pub(crate) fn of(error: &Error) -> Outcome {
        match error.kind() {
            ErrorKind::Busy => Outcome::Busy,
            ErrorKind::WaitTimedOut => Outcome::TimedOut,
            _ => Outcome::Failed,
        }
    }
}
