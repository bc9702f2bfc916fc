//! Extreme options are typed errors or are applied exactly; they never panic or overflow (lesson
//! 22).

use fencelock_core::{ErrorKind, Lock, Operation, lease_end};

use crate::behaviours::prelude::*;

const GROUP: &str = "options";

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    // Fault 49
    behaviour(GROUP, "absurd_times_are_refused", &[], &times),
    // Fault 49
    behaviour(GROUP, "extreme_times_within_the_range_work", &[], &extremes),
    // Fault 49
    behaviour(GROUP, "absurd_permits_are_refused", &[], &permits),
    behaviour(GROUP, "any_label_is_fine", &[], &labels),
];

const TEN_YEARS: Duration = Duration::from_secs(10 * 365 * 86_400);

async fn assert_refused(context: &Context, lock: Lock, what: &str) {
    let error = context.soon("an answer", lock.acquire()).await.expect_err(what);
    work::assert_kind(&error, ErrorKind::InvalidArgument);
    assert_eq!(error.operation(), Some(Operation::Acquire));
    assert!(!error.is_retryable());
    assert!(error.to_string().contains("expected"), "does not say what is expected: {error}");
    let error = context.soon("an answer", lock.try_acquire()).await.expect_err(what);
    work::assert_kind(&error, ErrorKind::InvalidArgument);
}

async fn times(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let absurd = [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_millis(99),
        TEN_YEARS,
        Duration::from_secs(u64::MAX),
        Duration::MAX,
    ];
    for ttl in absurd {
        assert_refused(&context, locks.lock(&name).ttl(ttl), "an absurd TTL").await;
        assert_refused(&context, locks.lock(&name).fixed_lease(ttl), "an absurd lease").await;
    }
    for limit in [Duration::ZERO, Duration::from_nanos(1), TEN_YEARS, Duration::MAX] {
        assert_refused(&context, locks.lock(&name).hold_at_most(limit), "an absurd limit").await;
    }
    // Of several the first is reported.
    let lock = locks.lock(&name).ttl(Duration::ZERO).hold_at_most(Duration::ZERO).permits(0);
    let error = context.soon("an answer", lock.acquire()).await.expect_err("all of it is absurd");
    assert!(error.to_string().contains("TTL"), "not the first mistake: {error}");
    assert!(work::is_free(&context, &locks, &name, How::Exclusive).await);
}

async fn extremes(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    // A session's validity never exceeds the session, for any TTL.
    let is_lease = context.profile().liveness == fencelock_core::Liveness::Lease;
    let (longest, day) = (context.longest_ttl(), Duration::from_secs(86_400));
    for lock in [
        locks.lock(&name).ttl(longest),
        locks.lock(&name).fixed_lease(longest),
        locks.lock(&name).ttl(longest).hold_at_most(day * 365),
        locks.lock(&name).ttl(longest).hold_at_most(day).wait_at_most(Duration::MAX),
    ] {
        let guard = work::acquire_lock(&context, &lock).await;
        assert!(guard.is_held());
        assert!(!is_lease || guard.remaining() > longest / 2, "not as long as asked for");
        let most = lease_end(locks.now(), longest);
        assert!(!is_lease || guard.valid_until() <= most, "valid for {:?}", guard.remaining());
        context.release(guard).await;
    }
    let lock = locks.lock(&name).hold_at_most(Duration::from_millis(1));
    match context.soon("an answer", lock.acquire()).await {
        Ok(guard) => {
            work::until_lost(&context, &guard).await;
        }
        // It ended before the answer was read.
        Err(error) => work::assert_kind(&error, ErrorKind::Lost),
    }
}

async fn permits(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    for (n, limit) in [(0, 0), (0, 1), (1, 0), (2, 1), (u32::MAX, 1), (0, u32::MAX)] {
        let lock = locks.semaphore(&name, limit).permits(n);
        assert_refused(&context, lock, "permits that can never be granted").await;
    }
    assert_refused(&context, locks.semaphore(&name, 0), "a limit of 0").await;
    assert_refused(&context, locks.lock(&name).permits(1), "permits of a plain lock").await;
    assert_refused(&context, locks.rw_lock(&name).read().permits(1), "a reader's permits").await;
}

async fn labels(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let long = "ü".repeat(10_000);
    for text in ["", "\0\n\t", "a:b|c,d{e}", "\u{202e}", "'; --", "%s%n", &long] {
        let lock = locks.lock(&name).label(text);
        let guard = work::acquire_lock(&context, &lock).await;
        let seen = context.soon("inspect answers", locks.inspect(&name)).await.expect("answers");
        let label = seen.holders.first().and_then(|holder| holder.label.clone());
        if let Some(label) = label {
            assert!(label.as_str().len() <= 120 && !label.as_str().contains(char::is_control));
        }
        context.release(guard).await;
    }
}
