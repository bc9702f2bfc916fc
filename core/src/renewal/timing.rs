//! When to renew and when to check: every fraction and interval of the renewal in one place.

use std::time::Duration;

use crate::claim::hold::Hold;
use crate::store::profile::RenewalPlan;
use crate::time::moment::Moment;

/// Renewals per TTL: a lease survives two that fail.
const RENEWALS_PER_TTL: u32 = 3;
/// A renewal joins one that is due now if it is due within this part of its period.
const JOIN_WINDOW: u32 = 8;
/// A renewal that is unanswered after this part of the period is sent again.
const RESEND_AFTER: u32 = 2;
/// A renewal that failed is retried after this part of the period.
const RETRY_AFTER: u32 = 4;
/// Within this margin of expiry, a renewal is no longer attempted.
const MARGIN: Duration = Duration::from_millis(10);
/// Retry interval of a hold that is not renewed by time, but whose claim was woken.
const RETRY_UNTIMED: Duration = Duration::from_secs(1);

/// Checks due in a second or more are aligned to whole seconds, so that all waiters of a lock share
/// one request.
pub(super) const CHECK_GRID: Duration = Duration::from_secs(1);
/// The shortest interval between two checks, whatever the backend asks for.
const SHORTEST_CHECK: Duration = Duration::from_millis(1);
/// When to check again after a check that failed.
pub(super) const RECHECK: Duration = Duration::from_secs(1);

/// The time between two renewals of a lock with this `ttl`.
pub(crate) fn period(plan: RenewalPlan, ttl: Duration) -> Option<Duration> {
    match plan {
        RenewalPlan::None => None,
        RenewalPlan::ThirdOfTtl => Some(ttl / RENEWALS_PER_TTL),
        RenewalPlan::Every(period) => Some(period),
    }
}

/// How early a renewal of `hold` may be sent to join another.
pub(super) fn join_window(hold: &Hold) -> Duration {
    hold.grant.period.map_or(Duration::ZERO, |period| period / JOIN_WINDOW)
}

/// How long to wait for the answer to a renewal before sending another.
pub(super) fn resend_after(hold: &Hold) -> Duration {
    hold.grant.period.map_or(RETRY_UNTIMED, |period| period / RESEND_AFTER)
}

/// When to renew a hold whose last renewal, or attempt, was sent at `sent`: a period later, or at
/// its end where nothing is renewed by time.
pub(super) fn next_renewal(hold: &Hold, sent: Moment, now: Moment) -> Moment {
    match hold.grant.period {
        None => hold.valid_until().unwrap_or(now),
        Some(period) => before_expiry(hold, sent + period, now),
    }
}

/// When to renew again after a renewal without a useful answer.
pub(super) fn next_retry(hold: &Hold, now: Moment) -> Moment {
    let pause = hold.grant.period.map_or(RETRY_UNTIMED, |period| period / RETRY_AFTER);
    before_expiry(hold, now + pause, now)
}

/// `due`, or half-way to the end of a hold that expires before `due`.
fn before_expiry(hold: &Hold, due: Moment, now: Moment) -> Moment {
    let until = hold.valid_until().unwrap_or(now);
    let left = until.duration_since(now);
    if due < until || until == hold.grant.limit.at || left < MARGIN {
        return due.min(until);
    }
    now + left / 2
}

/// When to check a waiter, `check_after` from now.
pub(super) fn next_check(check_after: Duration, now: Moment) -> Moment {
    let at = now + check_after.max(SHORTEST_CHECK);
    if check_after < CHECK_GRID || at == Moment::NEVER {
        return at;
    }
    let past_second = Duration::from_nanos(at.as_nanos() % 1_000_000_000);
    (at - past_second).max(now + SHORTEST_CHECK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_a_second_ahead_are_aligned_to_whole_seconds() {
        let second = Moment::from_nanos(0) + Duration::from_secs(100);
        for ms in [1, 300, 999] {
            let now = second + Duration::from_millis(ms);
            let check = next_check(Duration::from_secs(1), now);
            assert_eq!(check, second + Duration::from_secs(1), "at {ms} ms");
        }
        let exact = next_check(Duration::from_millis(700), second);
        assert_eq!(exact, second + Duration::from_millis(700));
        assert_eq!(next_check(Duration::MAX, second), Moment::NEVER);
        assert!(next_check(Duration::ZERO, second) > second);
    }
}
