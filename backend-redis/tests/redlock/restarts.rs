//! Nodes that come back without their data, and what keeps them out.

use crate::support::*;

/// Row 17: a majority forgets who holds. Nobody else is granted before the holder has been told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_without_its_data_grants_nothing_before_the_holder_is_notified() {
    let testbed = Testbed::new(3, QUICK).await;
    let (locks, other) = (testbed.direct(QUICK).await, testbed.direct(QUICK).await);
    let mut last = None;
    for forgetting in [&[0, 1][..], &[1, 2], &[0, 1, 2]] {
        let held = acquire(&locks, "lock").await;
        assert!(last < Some(held.fencing_token()), "nodes {forgetting:?}");
        let waiter = spawn_waiter(&other, "lock");
        until_queued(&locks, "lock", 1).await;
        for node in forgetting {
            testbed.restart(*node).await;
        }
        let next = until_granted(waiter).await;
        assert!(!held.is_held(), "two hold at once: nodes {forgetting:?} forgot");
        soon("the holder is told", held.lost()).await;
        assert!(next.fencing_token() > held.fencing_token());
        last = Some(next.fencing_token());
        drop(held);
        release(next).await;
        testbed.drained().await;
        for node in forgetting {
            testbed.open(*node).await;
        }
    }
}

/// The same timeline without the delay: so it is the delay that the test above proves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_delay_two_hold_at_once() {
    let testbed = Testbed::unknown(3).await;
    let lines = testbed.lines().await;
    let locks = testbed.without_restart_delay(Some(&lines), ms(10_000)).await;
    let other = testbed.without_restart_delay(None, ms(10_000)).await;
    let held = acquire(&locks, "lock").await;
    // It is not to plant anew what the nodes forget.
    lines.lose(&[0, 1, 2]);
    testbed.restart(0).await;
    testbed.restart(1).await;
    let mut next = None;
    until("the forgetful ones grant it", async || {
        // Anew each time: one who goes on waiting goes by the word of the node that remembers.
        next = other.lock("lock").wait_at_most(ms(300)).acquire().await.ok();
        next.is_some()
    })
    .await;
    let next = next.unwrap();
    assert!(held.is_held() && next.is_held());
    drop(held);
    release(next).await;
}

/// FLUSHALL leaves the server's run as it is. Only the record tells that its locks are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_node_is_excluded_like_a_restarted_one() {
    let testbed = Testbed::new(3, QUICK).await;
    let lines = testbed.lines().await;
    let (locks, other) = (lines.connect(QUICK).await, testbed.direct(QUICK).await);
    lines.lose(&[2]);
    let held = locks.lock("lock").fixed_lease(QUICK_TTL).acquire().await.unwrap();
    redis_command(&testbed.nodes[0], &["FLUSHALL"]).await;
    let flushed = time_us(&testbed.nodes[0]).await;
    let next = until_granted(spawn_waiter(&other, "lock")).await;
    assert!(!held.is_held(), "two hold at once");
    release(next).await;
    testbed.open(0).await;
    let opened = time_us(&testbed.nodes[0]).await;
    assert!(u128::from(opened - flushed) >= QUICK_DELAY.as_micros(), "too young");
}
