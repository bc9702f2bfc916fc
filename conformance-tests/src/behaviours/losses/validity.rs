//! The holder knows the end of its validity, is notified of a loss no later, and is renewed until
//! then (invariant 2).

use fencelock_core::{ErrorKind, LostReason, lease_end};
use tokio::time::sleep;

use crate::behaviours::prelude::*;
use crate::behaviours::work::{BRIEFLY, SHORT_TTL};
use crate::time::frozen_runtime::FrozenRuntime;

const GROUP: &str = "validity";

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "is_held_is_exact", &[], &exact),
    // Fault 39
    behaviour(GROUP, "a_loss_is_reported_before_the_next_grant", &[], &reported_before),
    // Fault 47
    behaviour(GROUP, "hold_at_most_ends_a_forgotten_guard", &[], &forgotten),
    behaviour(GROUP, "expiring_comes_before_the_loss", &[], &expiring),
    behaviour(GROUP, "run_drops_the_work_at_a_loss", &[], &run_drops),
    // Fault 13
    behaviour(
        GROUP,
        "validity_counts_from_before_the_request",
        &[Need::Lease, Need::Backdoor(Backdoor::SlowReplies)],
        &slow_reply,
    ),
    // Faults 4, 13
    behaviour(GROUP, "a_reply_after_the_lease_is_no_guard", SLOW, &late_reply),
    // Faults 2, 6
    behaviour(GROUP, "a_short_freeze_loses_nothing", &[Need::Silence], &short_nap),
    // Faults 3, 6
    behaviour(
        GROUP,
        "a_frozen_holder_finds_its_lock_lost_after_the_freeze",
        &[Need::Silence],
        &frozen,
    ),
    // Fault 25
    behaviour(
        GROUP,
        "a_forgotten_grant_is_lost_and_stays_so",
        &[Need::Backdoor(Backdoor::Expire)],
        &expired,
    ),
    // Fault 10
    behaviour(GROUP, "a_holder_that_is_cut_off_is_lost_in_time", CUT, &cut_off),
    // Fault 10
    behaviour(
        GROUP,
        "a_silent_store_is_an_error_in_time",
        &[Need::Backdoor(Backdoor::CutOff)],
        &silent,
    ),
];

const SLOW: &[Need] = &[Need::Lease, Need::Backdoor(Backdoor::SlowReplies)];
const CUT: &[Need] = &[Need::Renewal, Need::Backdoor(Backdoor::CutOff)];

/// Polled in a tight loop over its end, without timers: true before, false from then on.
async fn exact(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let lease = Duration::from_millis(120);
    let lock = locks.lock(&name).fixed_lease(lease);
    let guard = context.soon("acquired", work::in_time(&lock, lease)).await;
    let until = guard.valid_until();
    let asking = async {
        loop {
            let before = locks.now();
            let held = guard.is_held();
            let after = locks.now();
            if !held {
                assert!(after >= until, "not held at {before:?}, valid until {until:?}");
                break;
            }
            assert!(before < until, "still held at {before:?}, valid until {until:?}");
            tokio::task::yield_now().await;
        }
        assert!(!guard.is_held() && guard.remaining().is_zero());
    };
    context.soon("the lease ends", asking).await;
    assert_eq!(work::until_lost(&context, &guard).await, LostReason::Expired);
}

/// By the history: no validity of the first holder overlaps with one of the next.
async fn reported_before(context: Arc<Context>) {
    let name = context.name("lock");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let locks = context.client().await;
        let name = name.clone();
        tasks.spawn(async move {
            let mut worker = crate::history::Worker::new();
            for _ in 0..3 {
                let lock = locks.lock(&name).fixed_lease(Duration::from_millis(100));
                let acquired = worker.acquire_lock(&lock, &name, How::Exclusive).await;
                // A grant that arrives after its lease is an error, never a guard.
                let Ok((guard, claim)) = acquired else { continue };
                while worker.observe(&guard, &claim) {
                    sleep(Duration::from_millis(7)).await;
                }
                guard.lost().await;
                worker.observe(&guard, &claim);
            }
            worker.into_events()
        });
    }
    let events = context.within(context.patience() * 2, "all leases end", tasks.join_all()).await;
    work::assert_history(&context, events.into_iter().flatten().collect());
}

/// Renewed at 100 ms: each renewal must leave the limit alone.
async fn forgotten(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let (ttl, limit) = (Duration::from_millis(300), Duration::from_millis(500));
    let lock = one.lock(&name).ttl(ttl).hold_at_most(limit);
    let guard = context.soon("acquired", work::in_time(&lock, ttl)).await;
    std::mem::forget(guard);
    let next = context.acquire(&two, &name).await;
    context.release(next).await;
}

async fn expiring(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let (lease, margin) = (Duration::from_millis(400), Duration::from_millis(200));
    let lock = locks.lock(&name).fixed_lease(lease);
    let guard = context.soon("acquired", work::in_time(&lock, lease)).await;
    let until = guard.valid_until();
    context.soon("the margin is reached", guard.expiring(margin)).await;
    let now = locks.now();
    assert!(now >= until - margin, "{:?} left, not {margin:?}", until.duration_since(now));
    context.soon("a wide margin is reached at once", guard.expiring(Duration::MAX)).await;
    work::until_lost(&context, &guard).await;
    context.soon("a lost guard is also expiring", guard.expiring(Duration::ZERO)).await;
}

async fn run_drops(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let lock = locks.lock(&name).hold_at_most(BRIEFLY);
    let guard = work::acquire_lock(&context, &lock).await;
    let (alive, mut dropped) = tokio::sync::oneshot::channel::<()>();
    let work = guard.run(async move {
        let _alive = alive;
        std::future::pending::<()>().await;
    });
    let error = context.soon("the work is cut short", work).await.expect_err("it was lost");
    work::assert_kind(&error, ErrorKind::Lost);
    assert!(dropped.try_recv().is_err_and(|error| error != EMPTY), "the work continues");
    let late = context.soon("a lost guard runs nothing", guard.run(async { panic!("it ran") }));
    let late: Result<(), _> = late.await;
    work::assert_kind(&late.expect_err("lost before it began"), ErrorKind::Lost);
}

const EMPTY: tokio::sync::oneshot::error::TryRecvError =
    tokio::sync::oneshot::error::TryRecvError::Empty;

/// Other libraries counted from the reply (madelson's LeaseMonitor), so that the validity was too
/// long by the round trip.
async fn slow_reply(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let (ttl, delay) = (Duration::from_secs(20), Duration::from_millis(300));
    context.inject_fault(NetworkFault::SlowReplies(delay)).await;
    let lock = locks.lock(&name).ttl(ttl);
    let guard = context.soon("acquired, late", lock.acquire()).await.expect("acquired");
    let sent = locks.now() - delay;
    assert!(
        guard.valid_until() <= lease_end(sent, ttl),
        "the lease is counted from the reply, not from the request"
    );
    context.heal().await;
    context.release(guard).await;
}

/// node-redlock #296, redlock 2.0: guards that were over before they were made.
async fn late_reply(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    context.inject_fault(NetworkFault::SlowReplies(Duration::from_millis(400))).await;
    let ttl = Duration::from_millis(200);
    for lock in [locks.lock(&name).ttl(ttl), locks.lock(&name).fixed_lease(ttl)] {
        let answer = context.soon("an answer", lock.acquire()).await;
        work::assert_kind(&answer.expect_err("the lease has ended"), ErrorKind::Lost);
    }
    context.heal().await;
}

async fn short_nap(context: Arc<Context>) {
    let name = context.name("lock");
    let frozen_runtime = FrozenRuntime::new();
    let frozen = context.client_on(&frozen_runtime).await;
    let lock = frozen.lock(&name).ttl(context.patience());
    let guard = frozen_runtime.run(async move { lock.acquire().await.expect("acquired") }).await;
    let two = context.client().await;
    // No longer than that by much: a try takes what it takes on a busy machine.
    sleep(Duration::from_millis(300)).await;
    work::assert_busy(&context, &two, &name).await;
    assert!(guard.is_held(), "lost after a freeze of 300 ms");
    let ending = frozen_runtime.run(async move {
        let released = guard.release().await;
        released.and(frozen.close().await)
    });
    context.soon("the thawed client releases", ending).await.expect("still held");
}

/// `is_held` is false at the first check after the freeze, whichever task runs first.
async fn frozen(context: Arc<Context>) {
    let name = context.name("lock");
    let frozen_runtime = FrozenRuntime::new();
    let frozen = context.client_on(&frozen_runtime).await;
    let ttl = SHORT_TTL / 2;
    let lock = frozen.lock(&name).ttl(ttl);
    let guard = frozen_runtime.run(async move { work::in_time(&lock, ttl).await }).await;
    let until = guard.valid_until();
    let two = context.client().await;
    let lock = two.lock(&name);
    let bound = context.silence_frees_within(ttl);
    let next = context.within(bound, "the frozen holder's lock is free", lock.acquire()).await;
    let granted = two.now();
    let next = next.expect("granted");
    assert!(granted >= until, "granted while the frozen holder's validity lasted");
    let thawing = frozen_runtime.run(async move {
        let held_at_first_check = guard.is_held();
        let reason = guard.lost().await;
        drop(guard);
        (held_at_first_check, reason, frozen.close().await)
    });
    let (held, _reason, closed) =
        context.soon("the thawed holder is notified of the loss", thawing).await;
    assert!(!held, "the thawed holder still reports it as held");
    closed.expect("closed");
    assert!(next.is_held());
    context.release(next).await;
}

/// A renewal must not recreate a deleted lock (redis-semaphore #175, redlock-rb #36).
async fn expired(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let lock = one.lock(&name).ttl(SHORT_TTL);
    let guard = work::acquire_lock(&context, &lock).await;
    context.store().expire(&name).await.expect("the store forgets it");
    work::until_lost(&context, &guard).await;
    work::release_is_not_held(&context, guard).await;
    assert!(!context.store().is_locked(&name).await.expect("inspected"), "it was recreated");
    let next = context.soon("a try answers", two.lock(&name).try_acquire()).await;
    let next = next.expect("no error").expect("the store forgot the holder, so it is free");
    // Now the release itself finds out.
    context.store().expire(&name).await.expect("the store forgets it");
    work::release_is_not_held(&context, next).await;
}

async fn cut_off(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let lock = locks.lock(&name).ttl(SHORT_TTL);
    let guard = work::acquire_lock(&context, &lock).await;
    context.inject_fault(NetworkFault::CutOff).await;
    let bound = context.silence_frees_within(SHORT_TTL);
    let until = guard.valid_until();
    context.within(bound, "the holder is notified without the store", guard.lost()).await;
    // A renewal that was under way at the cut may still have been answered.
    assert!(locks.now() >= until, "lost before its validity ended, without an answer of the store");
    context.heal().await;
    work::release_is_not_held(&context, guard).await;
    let guard = context.acquire(&locks, &name).await;
    context.release(guard).await;
}

async fn silent(context: Arc<Context>) {
    let name = context.name("lock");
    let bound = Duration::from_secs(1);
    let locks = context.client_with(|params| params.unreachable_after = bound).await;
    context.inject_fault(NetworkFault::CutOff).await;
    let lock = locks.lock(&name);
    let error = context.soon("a silent store is an error", lock.acquire()).await;
    let error = error.expect_err("nothing can be acquired while cut off");
    work::assert_kind(&error, ErrorKind::Unreachable);
    assert!(error.to_string().contains("1s"), "the bound is not named: {error}");
    context.heal().await;
    // On a busy machine the new connection may take longer than the bound, too.
    let acquired_again = async || match locks.lock(&name).acquire().await {
        Ok(_dropped) => true,
        Err(error) => {
            work::assert_kind(&error, ErrorKind::Unreachable);
            false
        }
    };
    context.until("it can be acquired again", acquired_again).await;
}
