//! Nodes that come back without their data, and what excludes them.

use crate::support::*;

/// Row 17: a majority loses its data. No other client is granted before the holder is notified.
/// Fault 17: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_without_its_data_grants_nothing_before_the_holder_is_notified() {
    let quorum = TestQuorum::new(3, QUICK).await;
    let (locks, other) = (quorum.direct(QUICK).await, quorum.direct(QUICK).await);
    let mut last = None;
    for forgetting in [&[0, 1][..], &[0, 1, 2]] {
        let held = acquire(&locks, "lock").await;
        assert!(last < Some(held.fencing_token()), "nodes {forgetting:?}");
        let waiter = spawn_waiter(&other, "lock");
        until_queued(&locks, "lock", 1).await;
        for node in forgetting {
            quorum.restart(*node).await;
        }
        let next = until_granted(waiter).await;
        assert!(!held.is_held(), "two hold at once: nodes {forgetting:?} lost their data");
        soon("the holder is notified", held.lost()).await;
        assert!(next.fencing_token() > held.fencing_token());
        last = Some(next.fencing_token());
        drop(held);
        release(next).await;
        quorum.drained().await;
        for node in forgetting {
            quorum.open(*node).await;
        }
    }
}

/// The same timeline without the delay, which shows that the test above depends on the delay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_delay_two_hold_at_once() {
    let quorum = TestQuorum::unknown(3).await;
    let lines = quorum.lines().await;
    let locks = quorum.without_restart_delay(Some(&lines), ms(10_000)).await;
    let other = quorum.without_restart_delay(None, ms(10_000)).await;
    let held = acquire(&locks, "lock").await;
    // It must not reinstall what the nodes lose.
    lines.lose(&[0, 1, 2]);
    quorum.restart(0).await;
    quorum.restart(1).await;
    let mut next = None;
    until("the nodes without data grant it", async || {
        // A new claim each time: a waiter would follow the reply of the node that kept its data.
        next = other.lock("lock").wait_at_most(ms(300)).acquire().await.ok();
        next.is_some()
    })
    .await;
    let next = next.unwrap();
    assert!(held.is_held() && next.is_held());
    drop(held);
    release(next).await;
}

/// FLUSHALL does not change the server's run. Only the incarnation record shows that its locks are
/// gone.
/// Fault 25: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_node_is_excluded_like_a_restarted_one() {
    let quorum = TestQuorum::new(3, QUICK).await;
    let lines = quorum.lines().await;
    let (locks, other) = (lines.connect(QUICK).await, quorum.direct(QUICK).await);
    lines.lose(&[2]);
    let held = locks.lock("lock").fixed_lease(QUICK_TTL).acquire().await.unwrap();
    redis_command(&quorum.nodes[0], &["FLUSHALL"]).await;
    let flushed = time_us(&quorum.nodes[0]).await;
    let next = until_granted(spawn_waiter(&other, "lock")).await;
    assert!(!held.is_held(), "two hold at once");
    release(next).await;
    quorum.open(0).await;
    let opened = time_us(&quorum.nodes[0]).await;
    assert!(u128::from(opened - flushed) >= QUICK_DELAY.as_micros(), "too early");
}
