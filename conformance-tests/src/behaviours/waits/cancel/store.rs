//! The client's futures and `connect`, dropped at each await.

use fencelock_core::LostReason;
use tokio::runtime::Handle;

use super::{anywhere, assert_clean};
use crate::behaviours::prelude::*;

pub(super) async fn inspect(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let holder = context.acquire(&one, &name).await;
    let waiter = work::spawn_waiter(&two, &name, How::Exclusive);
    context.until_queued(&one, &name, 1).await;
    let make = async || {
        let (locks, name) = (two.clone(), name.clone());
        ((), async move { locks.inspect(&name).await })
    };
    anywhere(&context, make, async |(), seen| {
        // The next reply belongs to the next request.
        let again = context.soon("inspect answers", two.inspect(&name)).await;
        for seen in [seen, Some(again)].into_iter().flatten() {
            let seen = seen.expect("answers");
            assert_eq!((seen.holders.len(), seen.waiters.len()), (1, 1), "{seen:?}");
            assert_eq!(seen.holders[0].mode, holder.mode());
        }
        assert!(holder.is_held() && !waiter.is_finished());
    })
    .await;
    context.release(holder).await;
    let waiter = context.until_granted("the waiter is granted", waiter).await;
    context.release(waiter).await;
}

/// A dropped eviction may or may not have happened; a repeated one completes it, and evicts no
/// other participant.
pub(super) async fn evict(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let make = async || {
        let guard = context.acquire(&one, &name).await;
        let seen = context.soon("inspect answers", two.inspect(&name)).await.expect("answers");
        let who = seen.holders[0].id.clone();
        let (locks, name, evicted) = (two.clone(), name.clone(), who.clone());
        ((guard, who), async move { locks.evict(&name, &evicted).await })
    };
    anywhere(&context, make, async |(guard, who), evicted| {
        let evict = || context.soon("evict answers", two.evict(&name, &who));
        let again = evict().await.expect("no error");
        if let Some(evicted) = evicted {
            assert!(evicted.expect("no error"), "evict reported that there is no such participant");
            assert!(!again, "evicted twice");
        }
        let next = context.soon("a try answers", two.lock(&name).try_acquire()).await;
        let next = next.expect("no error").expect("the holder was evicted, so it is free");
        drop(guard);
        assert!(!evict().await.expect("no error"), "an old id evicted a new holder");
        assert!(next.is_held());
        work::assert_busy(&context, &one, &name).await;
        context.release(next).await;
    })
    .await;
}

pub(super) async fn close(context: Arc<Context>) {
    let (name, other) = (context.name("lock"), context.name("other"));
    let two = context.client().await;
    let kept = context.acquire(&two, &other).await;
    let make = async || {
        let locks = context.connect(&context.params()).await;
        let guard = context.acquire(&locks, &name).await;
        let closed = locks.clone();
        ((locks, guard), async move { closed.close().await })
    };
    anywhere(&context, make, async |(locks, guard), closed| {
        closed.into_iter().for_each(|closed| closed.expect("closed"));
        let again = context.soon("a repeated call closes", locks.close()).await;
        again.expect("closed");
        assert_eq!(work::until_lost(&context, &guard).await, LostReason::Closed);
        work::release_is_not_held(&context, guard).await;
        assert_clean(&context, &two, &name).await;
        assert!(kept.is_held());
    })
    .await;
    context.release(kept).await;
}

/// No connection and no task is left: each behaviour has a runtime of its own, whose tasks can be
/// counted. A completed client is usable, whatever was dropped before.
pub(super) async fn connect(context: Arc<Context>) {
    let (name, two) = context.lock_of_one().await;
    assert_clean(&context, &two, &name).await;
    let running = || (context.store().connections(), Handle::current().metrics().num_alive_tasks());
    let (connections, tasks) = running();
    let make = async || {
        let (context, params) = (context.clone(), context.params());
        ((), async move { context.store().connect(&params).await })
    };
    anywhere(&context, make, async |(), connected| {
        if let Some(connected) = connected {
            let locks = connected.expect("connected");
            assert_clean(&context, &locks, &name).await;
            drop(locks);
        }
        let what = format!("only {connections:?} connections and {tasks} tasks are left");
        context.until(&what, async || running().0 <= connections && running().1 <= tasks).await;
    })
    .await;
    assert_clean(&context, &two, &name).await;
}
