//! Holders that go on over nodes that come back empty, and those that must not.

use fencelock_core::LostReason;

use crate::support::*;

/// A hold that a machine which stalls for a second does not end.
const ROLLING: &str = "ttl=3s&restart_delay=4200ms&clock_tolerance=500ms";

/// Each node has forgotten the lock once; it is planted anew on each before the next one forgets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_survives_the_restart_of_all_nodes_one_by_one() {
    let testbed = Testbed::new(3, ROLLING).await;
    let (locks, other) = (testbed.direct(ROLLING).await, testbed.direct(ROLLING).await);
    let held = acquire(&locks, "lock").await;
    let reading = soon("a reader", locks.rw_lock("shared").read().acquire()).await.unwrap();
    let token = held.fencing_token();
    for node in 0..3 {
        testbed.held_everywhere("lock", &[]).await;
        testbed.restart(node).await;
        testbed.open(node).await;
        testbed.held_everywhere("lock", &[]).await;
        until("the readers' lock is planted too", async || {
            redis_command(&testbed.nodes[node], &["EXISTS", &key("shared")]).await == "1"
        })
        .await;
        assert!(held.is_held() && reading.is_held(), "lost with node {node}");
        assert!(is_busy(&other, "lock").await && is_busy(&other, "shared").await);
    }
    // The token came with it: whoever is next gets a larger one from any majority.
    for node in &testbed.nodes {
        let token = redis_command(node, &["GET", &token_key("lock")]).await;
        assert!(token.parse::<u64>().unwrap() >= token.get(), "{token} after {token:?}");
    }
    release(held).await;
    release(reading).await;
    let next = acquire(&other, "lock").await;
    assert!(next.fencing_token() > token);
    release(next).await;
    testbed.drained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_lock_is_lost_at_the_next_renewal_and_does_not_come_back() {
    let testbed = Testbed::new(3, LONG).await;
    let (locks, other) = (testbed.direct(LONG).await, testbed.direct(LONG).await);
    let held = locks.lock("lock").ttl(ms(3000)).acquire().await.unwrap();
    testbed.held_everywhere("lock", &[]).await;
    for node in &testbed.nodes {
        redis_command(node, &["DEL", &key("lock")]).await;
    }
    soon("the holder is told", held.lost()).await;
    assert!(!held.is_held());
    assert_eq!(testbed.leftovers().await, [], "a lost lock came back");
    let next = acquire(&other, "lock").await;
    assert!(next.fencing_token() > held.fencing_token());
    // What the late one gives back is not the next one's.
    drop(held);
    assert!(is_busy(&locks, "lock").await);
    release(next).await;
    testbed.drained().await;
}

/// A person may take it away from some nodes only: what a node had in this life is not planted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_deleted_on_a_minority_stays_deleted_there() {
    let ttl = ms(1500);
    let testbed = Testbed::new(3, LONG).await;
    let locks = testbed.direct(LONG).await;
    let held = locks.lock("lock").ttl(ttl).acquire().await.unwrap();
    testbed.held_everywhere("lock", &[]).await;
    // All three have confirmed it in a renewal.
    until_renewed(&locks, &held, ttl).await;
    until_renewed(&locks, &held, ttl).await;
    redis_command(&testbed.nodes[1], &["DEL", &key("lock")]).await;
    for _ in 0..3 {
        until_renewed(&locks, &held, ttl).await;
        testbed.held_everywhere("lock", &[1]).await;
    }
    release(held).await;
    testbed.drained().await;
}

/// The third answer to the round that granted it was perhaps not waited for: that node must not be
/// taken for one that never had it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_deleted_on_a_majority_does_not_come_back() {
    let testbed = Testbed::new(3, LONG).await;
    let locks = testbed.direct(LONG).await;
    for round in 0..8 {
        let name = format!("lock {round}");
        let held = locks.lock(&name).ttl(ms(3000)).acquire().await.unwrap();
        testbed.held_everywhere(&name, &[]).await;
        for node in &testbed.nodes[1..] {
            redis_command(node, &["DEL", &key(&name)]).await;
        }
        let reason = within(ms(2500), "the holder is told", held.lost()).await;
        assert_eq!(reason, LostReason::TakenAway);
    }
    testbed.drained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evicted_lock_is_lost_at_once_everywhere() {
    let testbed = Testbed::new(3, LONG).await;
    let (locks, other) = (testbed.direct(LONG).await, testbed.direct(LONG).await);
    let held = acquire(&locks, "lock").await;
    let waiter = spawn_waiter(&other, "lock");
    until_queued(&other, "lock", 1).await;
    let seen = other.inspect("lock").await.unwrap();
    assert_eq!(seen.holders.len(), 1);
    assert!(other.evict("lock", &seen.holders[0].id).await.unwrap());
    // Its next renewal is 20 s away.
    let reason = within(ms(15_000), "the holder is told", held.lost()).await;
    assert!(!matches!(reason, LostReason::Expired), "{reason:?}");
    let next = until_granted(waiter).await;
    assert!(next.fencing_token() > held.fencing_token());
    drop(held);
    release(next).await;
    testbed.drained().await;
}
