//! Futures that are dropped at any moment leave neither nodes nor watches.

use fencelock_testkit::proxy::{Close, Direction, NewConnections};
use tokio::time::{sleep, timeout};

use crate::support::*;

/// A few thousand microseconds, spread evenly.
fn some_time(round: u64) -> std::time::Duration {
    std::time::Duration::from_micros(round * 7919 % 4000)
}

/// Fault 44: zookeeper
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_cancelled_acquisitions_leave_nothing() {
    let testbed = Testbed::alone().await;
    let locks = testbed.behind_for_long().await;
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
    assert!(cancelled > 500, "only {cancelled} were under way");
    testbed.drained(&["lock-0", "lock-1", "lock-2", "lock-3", "lock-4", "lock-5", "lock-6"]).await;
    testbed.bare().await;
    release(acquire(&locks, "lock-0").await).await;
}

/// Fault 44: zookeeper
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_cancelled_waiters_leave_nothing() {
    let testbed = Testbed::alone().await;
    let (near, far) = (testbed.direct().await, testbed.behind_for_long().await);
    let guard = acquire(&near, "one").await;
    for batch in 0..10 {
        let waiters: Vec<_> = (0..100).map(|_| spawn_waiter(&far, "one")).collect();
        testbed.until_queued("one", 101).await;
        if batch % 2 == 0 {
            until("each watches the one ahead", async || testbed.watches().await.len() >= 100)
                .await;
        }
        for (round, waiter) in (0..).zip(waiters) {
            sleep(some_time(round) / 20).await;
            waiter.abort();
        }
        testbed.until_queued("one", 1).await;
    }
    assert!(guard.is_held());
    release(guard).await;
    testbed.drained(&["one"]).await;
    testbed.bare().await;
}

/// The requests of a dropped future are still carried out when the connection comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_cancelled_while_cut_off_leave_nothing_after_the_reconnect() {
    let (testbed, near, far) = Testbed::near_and_far().await;
    let kept = acquire(&far, "kept").await;
    let held = acquire(&near, "held").await;
    for cut in [false, true] {
        match cut {
            true => testbed.proxy.cut(Close::Reset, NewConnections::Refused).await.unwrap(),
            false => testbed.proxy.stall(Direction::ToServer),
        }
        for _ in 0..20 {
            for name in ["free", "held"] {
                let lock = far.lock(name);
                assert!(timeout(ms(5), lock.acquire()).await.is_err(), "no server answers");
                let lock = far.lock(name);
                assert!(timeout(ms(5), lock.try_acquire()).await.is_err(), "no server answers");
            }
        }
        testbed.proxy.heal().await.unwrap();
        until("nothing but the holder is left", async || {
            testbed.nodes("free").await.is_empty() && testbed.nodes("held").await.len() == 1
        })
        .await;
        assert!(kept.is_held() && held.is_held());
        release(acquire(&far, "free").await).await;
    }
    release(kept).await;
    release(held).await;
    testbed.drained(&["free", "held", "kept"]).await;
}
