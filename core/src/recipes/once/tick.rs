//! The label of one run of a scheduled job.

use std::time::{Duration, SystemTime};

use crate::recipes::once::ranges::Ranges;
use crate::types::error::{Result, invalid};

/// One run of a scheduled job, by a number that all machines of a schedule agree on.
///
/// It only says which run is meant, never who may run it. A machine whose clock is behind asks for a tick
/// that is done, and one whose clock is ahead runs it early. Only a schedule with random delays, or
/// machines in different time zones, make different ticks of one run: choose a period that is
/// longer than that.
///
/// ```
/// use fencelock_core::Tick;
/// use std::time::{Duration, SystemTime};
/// let today = Tick::every(Duration::from_secs(86_400)); // days since 1970, in UTC
/// let this_second = Tick::at(SystemTime::now());
/// let batch = Tick::number(4711);
/// assert!(today.get() < this_second.get() && batch.get() == 4711);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tick {
    number: u64,
    period: Option<Duration>,
}

impl Tick {
    /// The number of whole periods, at least 1 s each, since 1970, by this machine's clock in UTC. Tokio's paused
    /// time does not move that clock: under it, a test takes [`Tick::number`].
    #[must_use]
    pub fn every(period: Duration) -> Tick {
        Tick { number: since_1970(SystemTime::now(), period), period: Some(period) }
    }

    /// The second of `time`.
    #[must_use]
    pub fn at(time: SystemTime) -> Tick {
        let second = Duration::from_secs(1);
        Tick { number: since_1970(time, second), period: None }
    }

    /// A number of the caller's own, such as that of a batch. Numbers should follow each other: a job remembers
    /// what is done as 128 ranges, and beyond these the numbers in the narrowest gap count as done too.
    #[must_use]
    pub fn number(n: u64) -> Tick {
        Tick { number: n, period: None }
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.number
    }

    pub(super) fn period(self) -> Option<Duration> {
        self.period
    }

    pub(super) fn check(self) -> Result<()> {
        match self.period {
            Some(period) if period < Duration::from_secs(1) => {
                Err(invalid("the period of a tick is shorter than 1s; expected 1s or longer"))
            }
            _ => Ok(()),
        }
    }

    /// Warns of a clock that may be wrong.
    pub(super) fn warn_if_far_from(self, done: &Ranges) {
        let Some(last) = done.last().filter(|_| self.period.is_some()) else { return };
        if self.number.abs_diff(last) > 1 {
            tracing::warn!(
                target: "fencelock", tick = self.number, last,
                "the tick is more than a period away from the last one that is done: was the job away, \
                 or is a clock wrong?"
            );
        }
    }
}

fn since_1970(time: SystemTime, period: Duration) -> u64 {
    // Before 1970 it is still the first one.
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let number = since.as_nanos() / period.as_nanos().max(1);
    u64::try_from(number).unwrap_or(u64::MAX)
}
