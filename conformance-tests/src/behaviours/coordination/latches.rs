//! Latches open at the last count-down, and stay open.

use fencelock_core::{ErrorKind, Latch};
use tokio::task::JoinSet;

use crate::behaviours::prelude::*;

const GROUP: &str = "latches";
const NEEDS: &[Need] = &[Need::Cells];
const LOSE_REPLY: &[Need] = &[Need::Cells, Need::Backdoor(Backdoor::LoseReply)];

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "a_latch_opens_at_the_last_count_and_stays_open", NEEDS, &opens),
    behaviour(GROUP, "a_participant_counts_once", NEEDS, &once),
    behaviour(GROUP, "a_count_whose_reply_was_lost_counts_once", LOSE_REPLY, &lost_replies),
    behaviour(GROUP, "all_waiters_of_all_clients_are_told", NEEDS, &told),
    behaviour(GROUP, "many_count_down_at_once", NEEDS, &crowd),
    behaviour(GROUP, "another_count_is_refused_and_names_both", NEEDS, &counts),
    behaviour(GROUP, "a_removed_latch_is_told_and_begins_anew", NEEDS, &removed),
    behaviour(GROUP, "a_wait_for_a_latch_ends_in_time", NEEDS, &limits),
    behaviour(GROUP, "a_close_ends_waits_for_latches", NEEDS, &closed),
];

async fn count(context: &Context, latch: &Latch, who: &str) -> u32 {
    context.soon("it counts down", latch.count_down_as(who)).await.expect("counted")
}

async fn remove(context: &Context, latch: &Latch) {
    context.soon("it is removed", latch.remove()).await.expect("removed");
}

/// A wait for it ends at its limit.
async fn assert_not_open(context: &Context, latch: &Latch, limit: Duration) {
    let limited = latch.clone().wait_at_most(limit);
    let error = context.soon("the wait ends", limited.wait()).await.expect_err("not open");
    work::assert_kind(&error, ErrorKind::WaitTimedOut);
}

async fn opens(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let (here, there) = (one.latch("import", 3), two.latch("import", 3));
    assert_eq!(there.remaining().await.expect("an answer"), 3);
    let waiting = there.clone();
    let waiter = tokio::spawn(async move { waiting.wait().await });
    assert_eq!(count(&context, &here, "a").await, 2);
    assert_eq!(count(&context, &there, "b").await, 1);
    assert_not_open(&context, &there, Duration::from_millis(50)).await;
    assert!(!waiter.is_finished(), "it opened early");
    let last = context.soon("the last count", here.count_down()).await.expect("counted");
    assert_eq!(last, 0);
    context.soon("the waiter passes", waiter).await.expect("no panic").expect("open");
    // It stays open, for those who come late as well.
    for latch in [&here, &there] {
        context.soon("a late waiter passes", latch.wait()).await.expect("open");
        assert_eq!(count(&context, latch, "late").await, 0);
        assert_eq!(latch.remaining().await.expect("an answer"), 0);
    }
    remove(&context, &here).await;
}

async fn once(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let (here, there) = (one.latch("import", 3), two.latch("import", 3));
    for latch in [&here, &here, &there] {
        assert_eq!(count(&context, latch, "shard-1").await, 2, "it was started again");
    }
    assert_eq!(count(&context, &there, "shard-2").await, 1);
    assert_eq!(count(&context, &here, "shard-2").await, 1);
    remove(&context, &here).await;
}

async fn lost_replies(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let (here, there) = (one.latch("import", 5), two.latch("import", 5));
    for left in (0..5).rev() {
        context.inject_fault(NetworkFault::ReplyDropped).await;
        let counting = here.count_down();
        let counted = context.soon("it counts down", counting).await.expect("counted");
        context.heal().await;
        context.assert_final(counted == left, || format!("{counted} are left, not {left}"));
        assert_eq!(there.remaining().await.expect("an answer"), left);
    }
    remove(&context, &here).await;
}

async fn told(context: Arc<Context>) {
    let mut waiters = JoinSet::new();
    let counter = context.client().await.latch("import", 1);
    for _ in 0..3 {
        let locks = context.client().await;
        for _ in 0..40 {
            let latch = locks.latch("import", 1);
            waiters.spawn(async move { latch.wait().await });
        }
    }
    tokio::task::yield_now().await;
    context.soon("it counts down", counter.count_down()).await.expect("counted");
    let all = context.soon("all waiters pass", waiters.join_all()).await;
    assert!(all.iter().all(Result::is_ok) && all.len() == 120);
    remove(&context, &counter).await;
}

async fn crowd(context: Arc<Context>) {
    let mut tasks = JoinSet::new();
    for _ in 0..5 {
        let locks = context.client().await;
        for _ in 0..20 {
            let latch = locks.latch("import", 100);
            tasks.spawn(async move {
                let left = latch.count_down().await.expect("counted");
                latch.wait().await.expect("open");
                left
            });
        }
    }
    let all = context.within(context.patience() * 4, "all have counted", tasks.join_all()).await;
    let last = all.iter().filter(|left| **left == 0).count();
    context.assert_final(last == 1, || format!("{last} were the last"));
    remove(&context, &context.client().await.latch("import", 100)).await;
}

async fn counts(context: Arc<Context>) {
    let locks = context.client().await;
    let latch = locks.latch("import", 2);
    count(&context, &latch, "a").await;
    let other = locks.latch("import", 3);
    for error in [
        other.count_down().await.expect_err("another count"),
        other.wait().await.expect_err("another count"),
        other.remaining().await.expect_err("another count"),
    ] {
        work::assert_kind(&error, ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("a count of 2, not 3"), "{error}");
    }
    for wrong in [0, 1_025] {
        let error = locks.latch("other", wrong).count_down().await.expect_err("out of range");
        work::assert_kind(&error, ErrorKind::InvalidArgument);
    }
    assert_eq!(count(&context, &latch, "b").await, 0);
    remove(&context, &latch).await;
    let largest = locks.latch("import", 1_024);
    assert_eq!(count(&context, &largest, "a").await, 1_023);
    remove(&context, &largest).await;
}

async fn removed(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let (here, there) = (one.latch("import", 2), two.latch("import", 2));
    count(&context, &here, "a").await;
    let waiting = there.clone();
    let mut waiter = Box::pin(waiting.wait());
    // It has seen the latch once the watch on it is there.
    assert!(futures_util::poll!(&mut waiter).is_pending());
    assert_not_open(&context, &there, Duration::from_millis(100)).await;
    assert!(futures_util::poll!(&mut waiter).is_pending());
    remove(&context, &here).await;
    let error = context.soon("the waiter is told", waiter).await.expect_err("removed");
    work::assert_kind(&error, ErrorKind::Lost);
    assert_eq!(count(&context, &there, "a").await, 1, "a new round");
    remove(&context, &here).await;
}

async fn limits(context: Arc<Context>) {
    let latch = context.client().await.latch("import", 1);
    // It does not exist yet.
    assert_not_open(&context, &latch, Duration::from_millis(30)).await;
    count(&context, &latch, "a").await;
    let limited = latch.clone().wait_at_most(context.patience());
    context.soon("the wait ends", limited.wait()).await.expect("open");
    remove(&context, &latch).await;
}

async fn closed(context: Arc<Context>) {
    let locks = context.client().await;
    let latch = locks.latch("import", 1);
    let waiter = tokio::spawn(async move { latch.wait().await });
    tokio::task::yield_now().await;
    context.soon("the client closes", locks.close()).await.expect("closed");
    let ended = context.soon("the waiter is told", waiter).await.expect("no panic");
    work::assert_kind(&ended.expect_err("closed"), ErrorKind::Closed);
}
