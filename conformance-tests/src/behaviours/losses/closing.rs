//! Closing a client ends all its holds and waits, in all its handles, and those of no other client.

use fencelock_core::{ErrorKind, LostReason};
use futures_util::FutureExt;

use crate::behaviours::prelude::*;

const GROUP: &str = "closing";

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "a_close_ends_the_waits", &[], &waiters),
    behaviour(GROUP, "what_is_held_is_lost_and_released_by_a_close", &[], &held),
    behaviour(GROUP, "close_can_be_called_again", &[], &again),
    behaviour(GROUP, "close_waits_for_releases_under_way", &[], &drains),
    behaviour(GROUP, "a_close_waits_for_no_future_that_is_not_polled", &[], &unpolled),
    behaviour(GROUP, "a_close_leaves_other_clients_alone", &[], &others),
    behaviour(GROUP, "a_client_dropped_unclosed_leaves_nothing", &[], &dropped),
];

async fn waiters(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let holder = context.acquire(&one, &name).await;
    let waiters = [(); 3].map(|()| work::spawn_waiter(&two, &name, How::Exclusive));
    context.until_queued(&one, &name, 3).await;
    context.soon("a client with waiters closes", two.close()).await.expect("closed");
    for waiter in waiters {
        let ended = context.soon("a waiter is notified", waiter).await.expect("no panic");
        work::assert_kind(&ended.expect_err("closed"), ErrorKind::Closed);
    }
    context.until_queued(&one, &name, 0).await;
    assert!(holder.is_held());
    context.release(holder).await;
}

async fn held(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let guard = context.acquire(&one, &name).await;
    let next = work::spawn_waiter(&two, &name, How::Exclusive);
    context.until_queued(&two, &name, 1).await;
    context.soon("a client that holds closes", one.close()).await.expect("closed");
    assert!(!guard.is_held(), "held after its store was closed");
    assert_eq!(work::until_lost(&context, &guard).await, LostReason::Closed);
    work::release_is_not_held(&context, guard).await;
    let next = context.until_granted("the next one is granted", next).await;
    context.release(next).await;
}

async fn again(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let guard = context.acquire(&locks, &name).await;
    let (first, second) =
        context.soon("both end", async { tokio::join!(locks.close(), locks.close()) }).await;
    first.and(second).expect("closed twice at once");
    context.soon("it ends", locks.close()).await.expect("closed a third time");
    drop(guard);
}

async fn drains(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let names: Vec<String> = (0..50).map(|index| context.name(&format!("lock {index}"))).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(context.acquire(&one, name).await);
    }
    drop(guards);
    context.soon("the client closes", one.close()).await.expect("closed");
    for name in &names {
        let tried = context.soon("a try answers", two.lock(name).try_acquire()).await;
        let guard = tried.expect("no error").expect("close returned before a release was done");
        context.release(guard).await;
    }
}

/// Their requests are in flight, and they cannot release what these leave.
async fn unpolled(context: Arc<Context>) {
    let (released, free, busy) =
        (context.name("released"), context.name("free"), context.name("busy"));
    let (one, two) = (context.client().await, context.client().await);
    let guard = context.acquire(&one, &released).await;
    let holder = context.acquire(&two, &busy).await;
    let mut release = Box::pin(guard.release());
    let released_at_once = release.as_mut().now_or_never();
    let mut acquires = Vec::new();
    for name in [&free, &busy] {
        let lock = one.lock(name);
        let mut acquire = Box::pin(async move { lock.acquire().await });
        match acquire.as_mut().now_or_never() {
            Some(answer) => drop(answer.expect("acquired")),
            None => acquires.push(acquire),
        }
    }
    context.soon("the client closes", one.close()).await.expect("closed");
    context.until_queued(&two, &busy, 0).await;
    for name in [&released, &free] {
        let tried = context.soon("a try answers", two.lock(name).try_acquire()).await;
        let guard = tried.expect("no error").expect("close returned before a release was done");
        context.release(guard).await;
    }
    for acquire in acquires {
        let error = context.soon("it ends", acquire).await.expect_err("closed");
        work::assert_kind(&error, ErrorKind::Closed);
    }
    if released_at_once.is_none() {
        // Its answer had arrived, or the client was closed before it did.
        drop(context.soon("it ends", release).await);
    }
    context.release(holder).await;
}

async fn others(context: Arc<Context>) {
    let (name, waited) = (context.name("held"), context.name("waited"));
    let (one, two, three) =
        (context.client().await, context.client().await, context.client().await);
    let guard = context.acquire(&two, &name).await;
    let holder = context.acquire(&three, &waited).await;
    let waiter = work::spawn_waiter(&two, &waited, How::Exclusive);
    context.until_queued(&three, &waited, 1).await;
    context.soon("another client closes", one.close()).await.expect("closed");
    assert!(guard.is_held());
    context.release(holder).await;
    let waiter = context.until_granted("another client's waiter is granted", waiter).await;
    context.release(waiter).await;
    context.release(guard).await;
}

/// Its guards and waiters are dropped with it, in any order.
async fn dropped(context: Arc<Context>) {
    let (name, other) = (context.name("lock"), context.name("other"));
    let locks = context.connect(&context.params()).await;
    let guard = context.acquire(&locks, &name).await;
    let waiter = work::spawn_waiter(&locks, &name, How::Exclusive);
    context.until_queued(&locks, &name, 1).await;
    let forgotten = context.acquire(&locks, &other).await;
    drop(locks);
    drop(guard);
    let waiter = context.until_granted("its own waiter is granted", waiter).await;
    drop(forgotten);
    drop(waiter);
}
