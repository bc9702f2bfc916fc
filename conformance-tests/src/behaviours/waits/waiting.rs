//! Waiting: limits are exact, every waiter is woken, and a waiter that gives up or stops responding
//! is passed over (invariants 6 and 7).

use fencelock_core::{ErrorKind, Locks};
use tokio::time::Instant;

use crate::behaviours::prelude::*;
use crate::behaviours::work::{Lateness, SHORT_WAIT};
use crate::time::frozen_runtime::FrozenRuntime;

const GROUP: &str = "waiting";

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "a_waiter_is_woken_by_the_release", &[], &woken),
    behaviour(GROUP, "a_release_wakes_a_waiter_that_is_just_queuing", &[], &just_queuing),
    behaviour(GROUP, "a_wait_limit_ends_in_time", &[], &limit),
    // Fault 49
    behaviour(GROUP, "a_wait_limit_of_zero_is_a_try", &[], &zero),
    // Fault 49
    behaviour(GROUP, "a_tiny_wait_limit_is_kept", &[], &tiny),
    // Fault 49
    behaviour(GROUP, "an_absurdly_long_wait_limit_waits", &[], &huge),
    behaviour(GROUP, "a_try_with_a_wait_limit_waits", &[], &patient_try),
    behaviour(GROUP, "a_try_leaves_nothing_in_the_queue", &[], &try_leaves),
    behaviour(GROUP, "waiters_are_served_in_arrival_order", &[Need::Arrival], &in_order),
    behaviour(GROUP, "a_release_does_not_let_the_releaser_barge", &[Need::Arrival], &barging),
    behaviour(GROUP, "a_short_wait_does_not_disturb_other_waiters", &[], &undisturbed),
    behaviour(GROUP, "a_wait_that_timed_out_leaves_the_queue", &[], &timed_out),
    behaviour(GROUP, "no_wake_up_is_missed_under_stress", &[], &stress),
    // Faults 5, 6
    behaviour(GROUP, "a_frozen_waiter_is_passed_over", &[Need::Silence], &frozen),
];

async fn woken(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    // Holder and waiter in two clients and in one: both ways of waking.
    for (holder, waiter) in [(&one, &two), (&one, &one), (&two, &one)] {
        let mut lateness = Lateness::of_wake_ups();
        // A check that comes by chance right after the release is no wake-up.
        while lateness.on_time < 3 {
            let usual = unqueued(&context, &name, holder, waiter).await;
            let guard = context.acquire(holder, &name).await;
            let waiting = work::spawn_waiter(waiter, &name, How::Exclusive);
            context.until_queued(holder, &name, 1).await;
            let handed_on = async {
                context.release(guard).await;
                context.until_granted("the waiter is woken", waiting).await
            };
            let next = lateness.observe(usual, handed_on).await;
            context.release(next).await;
        }
    }
}

/// How long a release and an acquisition take one after the other, when no client waits.
async fn unqueued(context: &Context, name: &str, holder: &Locks, next: &Locks) -> Duration {
    let guard = context.acquire(holder, name).await;
    let started = Instant::now();
    context.release(guard).await;
    let acquiring = work::spawn_waiter(next, name, How::Exclusive);
    let next = context.until_granted("a free lock is acquired", acquiring).await;
    let took = started.elapsed();
    context.release(next).await;
    took
}

/// A release at each point of another client's attempt: before it, between its steps, and after it. A store that begins
/// to watch after it has found the lock held misses one between the two: seldom, so that this goes on for a second, and
/// from the first that is late to the end.
async fn just_queuing(context: Arc<Context>) {
    const POINTS: u32 = 8;
    let (name, one, two) = context.lock_of_two().await;
    let (mut lateness, begun) = (Lateness::of_wake_ups(), Instant::now());
    for _ in 0..16 {
        let usual = unqueued(&context, &name, &one, &two).await;
        for point in 0..POINTS {
            if begun.elapsed() > Duration::from_secs(1) && !lateness.any() {
                return;
            }
            let guard = context.acquire(&one, &name).await;
            let started = Instant::now();
            let waiting = work::spawn_waiter(&two, &name, How::Exclusive);
            // Not by a timer: those count milliseconds.
            while started.elapsed() < usual * point / POINTS {
                tokio::task::yield_now().await;
            }
            let handed_on = async {
                context.release(guard).await;
                context.until_granted("the waiter is woken", waiting).await
            };
            let next = lateness.observe(usual, handed_on).await;
            context.release(next).await;
        }
    }
}

async fn limit(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let guard = context.acquire(&locks, &name).await;
    for limit in [SHORT_WAIT, SHORT_WAIT * 2] {
        let started = Instant::now();
        let lock = locks.lock(&name).wait_at_most(limit);
        let error = context.soon("the wait ends", lock.acquire()).await.expect_err("it is held");
        assert!(started.elapsed() >= limit, "ended after {:?} of {limit:?}", started.elapsed());
        work::assert_kind(&error, ErrorKind::WaitTimedOut);
    }
    assert!(guard.is_held());
    context.release(guard).await;
}

async fn zero(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let guard = context.acquire(&one, &name).await;
    let lock = two.lock(&name).wait_at_most(Duration::ZERO);
    let error = context.soon("it answers at once", lock.acquire()).await.expect_err("held");
    work::assert_kind(&error, ErrorKind::Busy);
    let tried = context.soon("it answers at once", lock.try_acquire()).await;
    assert!(tried.expect("a try answers").is_none());
    context.release(guard).await;
    let guard = context.soon("a free lock is granted", lock.acquire()).await.expect("granted");
    context.release(guard).await;
}

async fn tiny(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let guard = context.acquire(&locks, &name).await;
    let lock = locks.lock(&name).wait_at_most(Duration::from_nanos(1));
    let error = context.soon("the wait ends", lock.acquire()).await.expect_err("it is held");
    // A store across a network has not even said that it is busy by then.
    let kinds = [ErrorKind::WaitTimedOut, ErrorKind::Unreachable];
    assert!(kinds.contains(&error.kind()), "{error}");
    context.release(guard).await;
}

/// Sums of durations overflowed in other libraries (curator #1248).
async fn huge(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    for limit in [Duration::MAX, Duration::from_secs(u64::MAX), Duration::from_secs(1 << 40)] {
        let guard = context.acquire(&locks, &name).await;
        let lock = locks.lock(&name).wait_at_most(limit);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        context.until_queued(&locks, &name, 1).await;
        context.release(guard).await;
        let next =
            context.until_granted("the waiter with a very long limit is woken", waiting).await;
        context.release(next).await;
    }
}

async fn patient_try(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let guard = context.acquire(&locks, &name).await;
    let lock = locks.lock(&name).wait_at_most(SHORT_WAIT);
    let tried = context.soon("the wait ends", lock.try_acquire()).await.expect("no error");
    assert!(tried.is_none(), "a held lock was granted");
    let lock = locks.lock(&name).wait_at_most(Duration::from_secs(600));
    let waiting = tokio::spawn(async move { lock.try_acquire().await });
    context.until_queued(&locks, &name, 1).await;
    context.release(guard).await;
    let next = context.soon("the try is granted", waiting).await.expect("no panic");
    context.release(next.expect("no error").expect("granted")).await;
}

async fn try_leaves(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let guard = context.acquire(&one, &name).await;
    for _ in 0..5 {
        work::assert_busy(&context, &two, &name).await;
        work::assert_busy(&context, &one, &name).await;
    }
    context.until_queued(&one, &name, 0).await;
    context.release(guard).await;
    let free = context.soon("a try answers", two.lock(&name).try_acquire()).await;
    let guard = free.expect("no error").expect("the queue is empty, so a try succeeds");
    context.release(guard).await;
}

async fn in_order(context: Arc<Context>) {
    let name = context.name("lock");
    let clients = [context.client().await, context.client().await, context.client().await];
    let guard = context.acquire(&clients[0], &name).await;
    let (order, mut granted) = tokio::sync::mpsc::unbounded_channel();
    for index in 0..9 {
        let (lock, order) = (clients[index % 3].lock(&name), order.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await.expect("granted in turn");
            // Before the release: afterwards the order is undefined.
            let _ = order.send(index);
            guard.release().await.expect("released in turn");
        });
        context.until_queued(&clients[0], &name, index + 1).await;
    }
    context.release(guard).await;
    for expected in 0..9 {
        let index = context.soon("the next waiter is granted", granted.recv()).await;
        assert_eq!(index, Some(expected), "granted out of turn");
    }
}

/// `flock` gives half of the grants to the last releaser.
async fn barging(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    for _ in 0..20 {
        let guard = context.acquire(&one, &name).await;
        let waiting = work::spawn_waiter(&two, &name, How::Exclusive);
        context.until_queued(&one, &name, 1).await;
        let releasing = async {
            guard.release().await.expect("released");
            one.lock(&name).try_acquire().await.expect("a try answers")
        };
        let barged = context.soon("the releaser tries again", releasing).await;
        assert!(barged.is_none(), "the releaser was granted before the waiter");
        let next = context.until_granted("the waiter is granted", waiting).await;
        context.release(next).await;
    }
}

/// In redisson one subscriber's timeout failed the others' (PR #6047).
async fn undisturbed(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let guard = context.acquire(&locks, &name).await;
    let before = work::spawn_waiter(&locks, &name, How::Exclusive);
    context.until_queued(&locks, &name, 1).await;
    let short = locks.lock(&name).wait_at_most(SHORT_WAIT);
    let short = tokio::spawn(async move { short.acquire().await });
    let after = work::spawn_waiter(&locks, &name, How::Exclusive);
    let ended = context.soon("the short wait ends", short).await.expect("no panic");
    work::assert_kind(&ended.expect_err("it is held"), ErrorKind::WaitTimedOut);
    context.until_queued(&locks, &name, 2).await;
    context.release(guard).await;
    // Whichever is granted first: not every store promises an order.
    let served = async |waiter| {
        let guard = context.until_granted("a queued waiter is granted", waiter).await;
        context.release(guard).await;
    };
    tokio::join!(served(before), served(after));
}

async fn timed_out(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let guard = context.acquire(&one, &name).await;
    for how in work::single_modes(&context) {
        let lock = how.lock(&two, &name).wait_at_most(SHORT_WAIT);
        let tried = context.soon("the wait ends", lock.try_acquire()).await;
        assert!(tried.expect("no error").is_none());
    }
    context.until_queued(&one, &name, 0).await;
    context.release(guard).await;
    assert!(
        work::is_free(&context, &two, &name, How::Exclusive).await,
        "a dead waiter is ahead in the queue"
    );
}

/// A missed wake-up costs half a second until the next waiter check, or a lease: 300 hand-offs would show it, also of
/// a store that cannot notify, and looks every 100 ms. Of a server for which there is little processor time each may
/// take 200 ms.
async fn stress(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let clients = (0..10).map(|index| if index % 2 == 0 { one.clone() } else { two.clone() });
    let started = Instant::now();
    let events = work::contend(&context, clients.collect(), &name, 30, |_| How::Exclusive).await;
    work::assert_history(&context, events);
    let took = started.elapsed();
    assert!(took < 4 * context.patience(), "300 hand-offs took {took:?}: wake-ups are missed");
}

/// Invariant 7: seconds at most, never the lease of a lock it never used.
async fn frozen(context: Arc<Context>) {
    let name = context.name("lock");
    let frozen_runtime = FrozenRuntime::new();
    let client = context.client_on(&frozen_runtime).await;
    let locks = context.client().await;
    let guard = context.acquire(&locks, &name).await;
    let ttl = Duration::from_secs(600).min(context.longest_ttl());
    let lock = client.lock(&name).ttl(ttl);
    let (observer, observed) = (locks.clone(), name.clone());
    let (waiting, acquired) = tokio::sync::oneshot::channel();
    let queued = frozen_runtime.run(async move {
        tokio::spawn(async move { waiting.send(lock.acquire().await) });
        while observer.inspect(&observed).await.expect("inspect answers").waiters.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    context.soon("the waiter is queued before it freezes", queued).await;
    let next_waiter = work::spawn_waiter(&locks, &name, How::Exclusive);
    context.until_queued(&locks, &name, 2).await;
    context.release(guard).await;
    let bound = context.silence_frees_within(Duration::ZERO);
    let next =
        context.within(bound, "the waiter after the frozen one is granted", next_waiter).await;
    let next = next.expect("no panic").expect("granted");
    // Its turn comes once it resumes, unless its session ended meanwhile.
    let thawing = tokio::spawn(async move {
        let late = frozen_runtime.run(async move { acquired.await.expect("no panic") }).await;
        (frozen_runtime, late)
    });
    context.release(next).await;
    let (frozen_runtime, late) =
        context.soon("the thawed waiter gets an answer", thawing).await.expect("ok");
    let ending = frozen_runtime.run(async move {
        drop(late);
        client.close().await
    });
    context.soon("the thawed client closes", ending).await.expect("closed");
}
