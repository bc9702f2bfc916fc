//! Futures that are dropped, at any moment, leave neither nodes nor watches.

use fencelock_conformance::proxy::{Close, Direction, NewConnections};
use tokio::time::{sleep, timeout};

use crate::support::*;

/// A few thousand microseconds, spread evenly.
fn some_time(round: u64) -> std::time::Duration {
    std::time::Duration::from_micros(round * 7919 % 4000)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_acquisitions_cancelled_on_their_way_leave_nothing() {
    let rig = Rig::alone().await;
    let locks = rig.behind().await;
    let tasks = (0..1000).map(|round| {
        let lock = locks.lock(format!("lock-{}", round % 7));
        tokio::spawn(async move {
            sleep(some_time(round * 31)).await;
            timeout(some_time(round), lock.acquire()).await.is_err()
        })
    });
    let mut cancelled = 0;
    for task in tasks.collect::<Vec<_>>() {
        cancelled += u32::from(soon("a task ends", task).await.unwrap());
    }
    assert!(cancelled > 500, "only {cancelled} were on their way");
    rig.drained(&["lock-0", "lock-1", "lock-2", "lock-3", "lock-4", "lock-5", "lock-6"]).await;
    rig.bare().await;
    give_back(hold(&locks, "lock-0").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_cancelled_leave_nothing() {
    let rig = Rig::alone().await;
    let (near, far) = (rig.patient().await, rig.behind().await);
    let guard = hold(&near, "one").await;
    for batch in 0..10 {
        let waiters: Vec<_> = (0..100).map(|_| wait_for(&far, "one")).collect();
        rig.queued("one", 101).await;
        if batch % 2 == 0 {
            until("each watches the one before it", async || rig.watches().await.len() >= 100)
                .await;
        }
        for (round, waiter) in (0..).zip(waiters) {
            sleep(some_time(round) / 20).await;
            waiter.abort();
        }
        rig.queued("one", 1).await;
    }
    assert!(guard.is_held());
    give_back(guard).await;
    rig.drained(&["one"]).await;
    rig.bare().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_timed_out_leaves_nothing() {
    let rig = Rig::start().await;
    let locks = rig.direct().await;
    let guard = hold(&locks, "one").await;
    // Long enough to be in the queue by then on a busy machine.
    let lock = locks.lock("one").wait_at_most(ms(2000));
    let error = soon("the wait ends", lock.acquire()).await.unwrap_err();
    assert_kind(&error, fencelock_core::ErrorKind::WaitTimedOut);
    rig.queued("one", 1).await;
    until("only the holder is watched", async || rig.watches().await.len() <= 1).await;
    give_back(guard).await;
    rig.drained(&["one"]).await;
}

/// The requests of a dropped future are still carried out when the connection comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_cancelled_while_cut_off_leaves_nothing_when_the_connection_is_back() {
    let rig = Rig::start().await;
    let (near, far) = (rig.patient().await, rig.behind_for_long().await);
    let kept = hold(&far, "kept").await;
    let held = hold(&near, "held").await;
    for cut in [false, true] {
        match cut {
            true => rig.proxy.cut(Close::Reset, NewConnections::Refused).await.unwrap(),
            false => rig.proxy.stall(Direction::ToServer),
        }
        for _ in 0..20 {
            for name in ["free", "held"] {
                let lock = far.lock(name);
                assert!(timeout(ms(5), lock.acquire()).await.is_err(), "nobody answers");
                let lock = far.lock(name);
                assert!(timeout(ms(5), lock.try_acquire()).await.is_err(), "nobody answers");
            }
        }
        rig.proxy.heal().await.unwrap();
        until("nothing but the holder is left", async || {
            rig.nodes("free").await.is_empty() && rig.nodes("held").await.len() == 1
        })
        .await;
        assert!(kept.is_held() && held.is_held());
        give_back(hold(&far, "free").await).await;
    }
    give_back(kept).await;
    give_back(held).await;
    rig.drained(&["free", "held", "kept"]).await;
}
