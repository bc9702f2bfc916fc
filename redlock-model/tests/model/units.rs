//! How a tick of the model is told to the functions that the model is about.
//!
//! They count in microseconds and durations, the model in ticks. The two places where that matters
//! are not tied to each other, so each has the unit in which one tick is the least step that
//! counts: the margin of a lease, and the stride of tokens.

use std::time::Duration;

use fencelock_core::{Moment, lease_end};
use fencelock_redis::redlock::token::STRIDE;

/// A tick on the clocks of validity and of age: the constant part of `lease_end`'s margin, so that
/// the margin is one tick. (The hundredth of a TTL besides is less than a tick.)
const TICK: Duration = Duration::from_millis(2);

/// A tick on the clocks that proposals are from: as small as tokens can tell. In reality many
/// strides pass from round to round, so that a failed round lifts a token by far less than the
/// clocks do; here by as much, which is worse.
pub(crate) const TOKEN_TICK: u64 = STRIDE;

pub(crate) fn ticks(ticks: u8) -> Duration {
    TICK * u32::from(ticks)
}

pub(crate) fn moment(tick: u8) -> Moment {
    Moment::from_nanos(0) + ticks(tick)
}

/// A node's clock, as its record's age is told.
pub(crate) fn record_us(tick: u8) -> u64 {
    moment(tick).as_nanos() / 1000
}

/// The same, as proposals are made from it.
pub(crate) fn token_us(tick: u8) -> u64 {
    u64::from(tick) * TOKEN_TICK
}

/// The first tick at which a lease is over that was asked for at `sent`.
pub(crate) fn end_of_lease(sent: u8, ttl: u8) -> u8 {
    let end = lease_end(moment(sent), ticks(ttl));
    (sent..=sent + ttl).find(|tick| moment(*tick) >= end).expect("a lease ends before its key")
}
