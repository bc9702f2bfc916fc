//! Converts ticks of the model for the functions under test.
//!
//! They count in microseconds and durations, the model in ticks. The two places where that matters
//! are independent, so in each a tick is the smallest step that counts: the margin of a lease, and
//! the stride of tokens.

use std::time::Duration;

use fencelock_core::{Moment, lease_end};
use fencelock_redis::redlock::token::STRIDE;

/// A tick on the clocks of validity and of age: the constant part of `lease_end`'s margin, so that
/// the margin is one tick. (The additional hundredth of a TTL is less than a tick.)
const TICK: Duration = Duration::from_millis(2);

/// A tick on the clocks of proposals: the smallest step of tokens. In reality many strides pass from
/// round to round, so that a failed round raises a token by far less than the clocks do; here by as
/// much, which is harder.
pub(crate) const TOKEN_TICK: u64 = STRIDE;

pub(crate) fn ticks(ticks: u8) -> Duration {
    TICK * u32::from(ticks)
}

pub(crate) fn moment(tick: u8) -> Moment {
    Moment::from_nanos(0) + ticks(tick)
}

/// A node's clock, in the unit of its record.
pub(crate) fn record_us(tick: u8) -> u64 {
    moment(tick).as_nanos() / 1000
}

/// A node's clock, in the unit of proposals.
pub(crate) fn token_us(tick: u8) -> u64 {
    u64::from(tick) * TOKEN_TICK
}

/// The first tick after the end of a lease requested at `sent`.
pub(crate) fn end_of_lease(sent: u8, ttl: u8) -> u8 {
    let end = lease_end(moment(sent), ticks(ttl));
    (sent..=sent + ttl)
        .find(|tick| moment(*tick) >= end)
        .expect("a lease ends before its key expires")
}
