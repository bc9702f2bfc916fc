//! The bounds of the timeouts that a user sets.

use std::ops::RangeInclusive;
use std::time::Duration;

use fencelock_core::Result;
use fencelock_core::backend::invalid;

/// A shorter one expires at each pause of a server, a longer one keeps a dead connection.
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

/// Checks the timeout that the parameter `name` sets.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](fencelock_core::ErrorKind::InvalidArgument) when it is out of its bounds.
pub fn check_timeout(name: &str, given: Duration) -> Result<()> {
    match TIMEOUTS.contains(&given) {
        true => Ok(()),
        false => Err(invalid(format!("{name} must be 10ms to 1m"))),
    }
}
