//! A hold is renewed until it is released, and no longer (lessons 9 to 14).

use fencelock_core::{ErrorKind, Guard};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::behaviours::prelude::*;
use crate::behaviours::work::SHORT_TTL;

const GROUP: &str = "renewal";
const NEEDS: &[Need] = &[Need::Renewal];

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "a_lock_is_kept_long_past_its_ttl", NEEDS, &kept),
    behaviour(GROUP, "a_future_that_is_not_polled_stops_no_renewal", NEEDS, &suspended),
    behaviour(GROUP, "locking_the_same_name_again_is_renewed", NEEDS, &again),
    behaviour(GROUP, "a_thousand_held_locks_are_renewed", NEEDS, &thousand),
    behaviour(GROUP, "nothing_is_renewed_after_its_release", NEEDS, &not_after),
];

/// Two and a half TTLs.
const LONG: Duration = Duration::from_millis(2500);

/// More than any store sends at once, each by itself.
const UNPOLLED: usize = 20;

/// Also when nothing but its guard is left of a client, which lives as long as its guards do.
async fn kept(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.connect(&context.params()).await, context.client().await);
    let lock = one.lock(&name).ttl(SHORT_TTL);
    let guard = work::acquire_lock(&context, &lock).await;
    drop((one, lock));
    let mut expiring = Box::pin(guard.expiring(SHORT_TTL / 10));
    let started = Instant::now();
    while started.elapsed() < LONG {
        assert!(guard.is_held(), "lost after {:?} with a healthy store", started.elapsed());
        assert!(expiring.as_mut().now_or_never().is_none(), "expiring, with a healthy store");
        work::assert_busy(&context, &two, &name).await;
        sleep(Duration::from_millis(50)).await;
    }
    drop(expiring);
    context.release(guard).await;
}

/// redisson #6844, #7272: renewals were lost, or continued for ever, between unlock and lock.
///
/// The arm of a `select!` with a long handler, or `join!` with work that does not yield, leaves a future
/// whose request is in flight unpolled. Until it is polled again, a single one cost its client every lock.
async fn suspended(context: Arc<Context>) {
    let (held, busy, third) = (context.name("held"), context.name("busy"), context.name("third"));
    let names: Vec<String> =
        (0..UNPOLLED).map(|index| context.name(&format!("free {index}"))).collect();
    let (locks, other) = (context.client().await, context.client().await);
    let lock = locks.lock(&held).ttl(SHORT_TTL);
    let guard = work::acquire_lock(&context, &lock).await;
    let released = context.acquire(&locks, &context.name("released")).await;
    let holder = context.acquire(&other, &busy).await;
    let mut unpolled: Vec<BoxFuture<'_, ()>> = vec![Box::pin(async {
        released.release().await.expect("released");
    })];
    for name in names.iter().chain(std::iter::repeat_n(&busy, UNPOLLED)) {
        let lock = locks.lock(name).ttl(SHORT_TTL);
        unpolled.push(Box::pin(async move {
            match lock.acquire().await {
                Ok(guard) => guard.release().await.expect("released"),
                Err(error) => work::assert_kind(&error, ErrorKind::Lost),
            }
        }));
    }
    unpolled.retain_mut(|future| future.as_mut().now_or_never().is_none());
    let started = Instant::now();
    while started.elapsed() < LONG {
        assert!(guard.is_held(), "lost after {:?} beside futures at rest", started.elapsed());
        work::assert_busy(&context, &other, &held).await;
        let brief = context.acquire(&locks, &third).await;
        context.release(brief).await;
        sleep(Duration::from_millis(50)).await;
    }
    context.release(guard).await;
    context.release(holder).await;
    context.soon("each continues when it is polled", join_all(unpolled)).await;
}

async fn again(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let lock = locks.lock(&name).ttl(SHORT_TTL);
    for round in 0..50 {
        let guard = work::acquire_lock(&context, &lock).await;
        if round % 2 == 0 {
            context.release(guard).await;
        } else {
            // Its release in the background overtakes no other request.
            drop(guard);
        }
    }
    let guard = work::acquire_lock(&context, &lock).await;
    let started = Instant::now();
    while started.elapsed() < LONG {
        assert!(guard.is_held(), "lost after {:?}", started.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    context.release(guard).await;
}

async fn thousand(context: Arc<Context>) {
    let locks = context.client().await;
    // Enough for a quorum of five on a machine that is busy or pauses for a while.
    let ttl = SHORT_TTL * 10;
    let mut tasks = JoinSet::new();
    for index in 0..1000 {
        let lock = locks.lock(context.name(&format!("lock {index}"))).ttl(ttl);
        tasks.spawn(async move { lock.acquire().await.expect("acquired") });
    }
    let bound = context.patience() * 2;
    let guards: Vec<Guard> = context.within(bound, "all are acquired", tasks.join_all()).await;
    let ends: Vec<_> = guards.iter().map(Guard::valid_until).collect();
    let renewed = async || {
        assert!(guards.iter().all(Guard::is_held), "one of a thousand was lost");
        guards.iter().zip(&ends).all(|(guard, end)| guard.valid_until() > *end + ttl / 2)
    };
    context.until("each was renewed past its TTL", renewed).await;
    let mut tasks = JoinSet::new();
    for guard in guards {
        tasks.spawn(async move { guard.release().await.expect("released") });
    }
    context.within(bound, "all are released", tasks.join_all()).await;
}

/// Observed for longer than a TTL, by the harness's backdoor if it has one.
async fn not_after(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let lock = one.lock(&name).ttl(SHORT_TTL);
    let guard = work::acquire_lock(&context, &lock).await;
    sleep(SHORT_TTL / 2).await;
    context.release(guard).await;
    let dropped = work::acquire_lock(&context, &lock).await;
    drop(dropped);
    let next = context.acquire(&two, &name).await;
    context.release(next).await;
    let started = Instant::now();
    while started.elapsed() < SHORT_TTL {
        let seen = context.soon("inspect answers", two.inspect(&name)).await.expect("answers");
        assert!(seen.holders.is_empty(), "a released lock came back: {:?}", seen.holders);
        sleep(Duration::from_millis(20)).await;
    }
}
