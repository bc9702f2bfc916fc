//! Many claims of one client at once, whose lists and deletes share requests.

use fencelock_core::{ErrorKind, Guard, Locks, Result};
use fencelock_testkit::proxy::Direction;
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::support::*;

const CLAIMS: usize = 300;

/// Acquires all locks at once.
async fn acquire_all(locks: &Locks) -> Vec<Guard> {
    let acquiring = (0..CLAIMS).map(|n| spawn_waiter(locks, &format!("lock-{n}")));
    let all = within(PATIENCE, "all locks are held", join_all(acquiring)).await;
    all.into_iter().map(|joined| joined.expect("no panic").expect("granted")).collect()
}

/// Releases all locks at once.
async fn release_all(guards: Vec<Guard>) -> Vec<Result<()>> {
    let releasing = guards.into_iter().map(|guard| tokio::spawn(guard.release()));
    let all = within(PATIENCE, "all releases are answered", join_all(releasing)).await;
    all.into_iter().map(|joined| joined.expect("no panic")).collect()
}

async fn all_drained(testbed: &Testbed) {
    let names: Vec<String> = (0..CLAIMS).map(|n| format!("lock-{n}")).collect();
    testbed.drained(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn many_claims_share_requests() {
    let testbed = Testbed::start().await;
    let far = testbed.behind_for_long().await;
    release_all(acquire_all(&far).await).await;
    let (before, started) = (testbed.proxy.stats().requests, Instant::now());
    let guards = acquire_all(&far).await;
    until("all are watched", async || testbed.watches().await.len() == CLAIMS).await;
    let acquired = testbed.proxy.stats().requests;
    for released in release_all(guards).await {
        released.unwrap();
    }
    let deletes = testbed.proxy.stats().requests - acquired;
    // Each was created and watched by a request of its own.
    let lists = acquired - before - 2 * CLAIMS as u64;
    println!("{lists} requests for {CLAIMS} lists, {deletes} for the deletes");
    let beats = u64::try_from(started.elapsed().as_millis() / (T / 10).as_millis()).unwrap() + 2;
    // One thread: nearly all requests are queued before the first answer is read. Claims list
    // together when their creations are answered together; with a slow disk fewer are.
    assert!((1..CLAIMS as u64 / 2 + beats).contains(&lists), "{lists}");
    assert!((1..CLAIMS as u64 / 5 + beats).contains(&deletes), "{deletes}");
    all_drained(&testbed).await;
}

/// Only the release of that node's claim fails, although a transaction fails as a whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_deleted_by_hand_does_not_affect_the_claims_in_its_batch() {
    let (testbed, locks) = Testbed::near().await;
    let guards = acquire_all(&locks).await;
    for n in (0..CLAIMS).step_by(10) {
        let [node] = &testbed.nodes(&format!("lock-{n}")).await[..] else { panic!("one node") };
        testbed.client.delete(node, None).await.unwrap();
    }
    for (n, released) in release_all(guards).await.into_iter().enumerate() {
        match released {
            Ok(()) => assert_ne!(n % 10, 0, "released without a node"),
            Err(error) => {
                assert_kind(&error, ErrorKind::NotHeld);
                assert_eq!(n % 10, 0, "{error}");
            }
        }
    }
    all_drained(&testbed).await;
}

/// Lesson 5, with many claims at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_cancelled_in_a_batch_leave_nothing() {
    let testbed = Testbed::start().await;
    let locks = testbed.behind_for_long().await;
    let delay = ms(4);
    testbed.proxy.delay(Direction::ToServer, delay);
    for round in 0..10u32 {
        let acquiring: Vec<_> =
            (0..CLAIMS).map(|n| spawn_waiter(&locks, &format!("lock-{n}"))).collect();
        // From before the first is sent to after the last is answered.
        tokio::time::sleep(delay * round).await;
        cancel_every_other(acquiring).await;
    }
    testbed.proxy.heal().await.unwrap();
    all_drained(&testbed).await;
}

/// Rows 10 and 19: however many requests wait for a call, each claim fails in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_claims_that_are_cut_off_fail_in_time_and_leave_nothing() {
    let testbed = Testbed::start().await;
    let url = testbed.url(&testbed.proxy.addr().to_string(), "unreachable_after=8s");
    let far = connect(&url).await;
    let guards = acquire_all(&far).await;
    testbed.proxy.black_hole(Direction::ToServer);
    let cut = far.now();
    let waiting: Vec<_> = (0..CLAIMS).map(|n| spawn_waiter(&far, &format!("other-{n}"))).collect();
    let lost = join_all(guards.iter().map(Guard::lost));
    soon("all holders are notified", lost).await;
    guards.iter().for_each(|guard| assert_ends_in_time(guard, cut, T));
    for waiter in within(PATIENCE, "all waiters fail", join_all(waiting)).await {
        assert_kind(&waiter.unwrap().unwrap_err(), ErrorKind::Unreachable);
    }
    testbed.proxy.heal().await.unwrap();
    drop(guards);
    for guard in acquire_all(&far).await {
        release(guard).await;
    }
    all_drained(&testbed).await;
}
