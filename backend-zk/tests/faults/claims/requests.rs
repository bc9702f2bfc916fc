//! The number of requests, counted on the wire, without pings and events.

use std::time::Duration;

use fencelock_testkit::proxy::Stats;
use tokio::time::sleep;

use crate::support::*;

/// The most heartbeats of a session in this time, which are counted too.
fn heartbeats(during: Duration) -> u64 {
    u64::try_from(during.as_millis() / (T / 10).as_millis()).expect("a short time") + 2
}

/// Waits until nothing but heartbeats is sent: all answers have arrived, and their effects. Waiters that queued one
/// after the other look at different times, and so a heartbeat may be sent as often as a session sends any.
async fn quiet(testbed: &Testbed) {
    until("nothing but heartbeats is sent for a while", async || {
        let (before, began) = (testbed.proxy.stats().requests, std::time::Instant::now());
        sleep(ms(300)).await;
        testbed.proxy.stats().requests - before < heartbeats(began.elapsed())
    })
    .await;
}

async fn counted(testbed: &Testbed, act: impl AsyncFnOnce()) -> (u64, Duration) {
    let (before, started) = (testbed.proxy.stats(), std::time::Instant::now());
    act().await;
    let all: Stats = testbed.proxy.stats();
    (all.requests - before.requests, started.elapsed())
}

#[track_caller]
fn assert_costs(what: &str, (requests, during): (u64, Duration), expected: u64) {
    println!("{what}: {requests} requests in {during:?}, {expected} expected");
    assert!(requests >= expected, "{what}: only {requests} requests");
    assert!(
        requests <= expected + heartbeats(during),
        "{what}: {requests} requests, not {expected}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_hold_costs_three_requests_and_a_try_on_a_held_lock_one() {
    let (testbed, near, far) = Testbed::near_and_far().await;
    release(acquire(&far, "one").await).await;
    let pairs = counted(&testbed, async || {
        for _ in 0..50 {
            release(acquire(&far, "one").await).await;
        }
    });
    assert_costs("50 pairs", pairs.await, 150);
    let guard = acquire(&near, "one").await;
    let before = testbed.nodes("one").await;
    let tries = counted(&testbed, async || {
        for _ in 0..50 {
            assert!(is_busy(&far, "one").await);
        }
    });
    assert_costs("50 tries", tries.await, 50);
    assert_eq!(testbed.nodes("one").await, before);
    release(guard).await;
    testbed.drained(&["one"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_to_the_next_in_line_costs_it_no_request() {
    let (testbed, near, far) = Testbed::near_and_far().await;
    let mut waiters = Vec::new();
    let mut guards = Vec::new();
    for at in 0..20 {
        let name = format!("lock-{at}");
        guards.push(acquire(&near, &name).await);
        waiters.push(spawn_waiter(&far, &name));
        testbed.until_queued(&name, 2).await;
    }
    until("all nodes are watched", async || testbed.watches().await.len() == 40).await;
    quiet(&testbed).await;
    let mut held = Vec::new();
    let granting = counted(&testbed, async || {
        for guard in guards {
            release(guard).await;
        }
        for waiter in waiters {
            held.push(until_granted(waiter).await);
        }
    });
    assert_costs("20 hand-offs", granting.await, 0);
    for guard in held {
        release(guard).await;
    }
    until("no watch is left", async || testbed.watches().await.is_empty()).await;
}

/// A waiter behind a node of the same client knows when that was granted, and sends no request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_offs_along_a_queue_of_one_client_cost_only_its_releases() {
    let testbed = Testbed::start().await;
    let far = testbed.behind_for_long().await;
    let mut guard = acquire(&far, "one").await;
    let mut waiters = Vec::new();
    for queued in 2..=20 {
        waiters.push(spawn_waiter(&far, "one"));
        testbed.until_queued("one", queued).await;
    }
    until("all nodes are watched", async || testbed.watches().await.len() == 20).await;
    quiet(&testbed).await;
    let passing = counted(&testbed, async || {
        for waiter in waiters {
            release(guard).await;
            guard = until_granted(waiter).await;
        }
        release(guard).await;
    });
    assert_costs("19 hand-offs and a release", passing.await, 20);
    testbed.drained(&["one"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_heartbeat_keeps_many_locks() {
    let testbed = Testbed::start().await;
    let far = testbed.behind_for_long().await;
    let mut guards = Vec::new();
    for at in 0..300 {
        guards.push(acquire(&far, &format!("lock-{at}")).await);
    }
    sleep(ms(500)).await;
    let (requests, during) = counted(&testbed, async || sleep(T).await).await;
    println!("{requests} requests in {during:?} for 300 locks");
    assert!(requests >= 1 && requests <= 5 * heartbeats(during), "{requests} in {during:?}");
    assert!(guards.iter().all(fencelock_core::Guard::is_held));
}
