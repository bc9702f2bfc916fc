//! Renewals come in time and in few requests, whatever the store's answers are like.

use std::future::pending;

use fencelock_core::{Guard, Locks, RenewOutcome};
use tokio::time::{sleep, timeout};

use crate::scripted::{Call, Many, SECOND, Script, TTL, granted, ms, refused_connection, renewed};

fn renewal(call: &Call) -> bool {
    matches!(call, Call::Renew(_))
}

#[tokio::test(start_paused = true)]
async fn a_thousand_holds_that_are_rung_together_are_renewed_together() {
    let (store, locks) = Script::new().connect();
    let guards = hold_many(&locks, 1_000).await;
    assert!(store.claims().iter().all(|claim| claim.wake()));
    let all = |call: &Call| matches!(call, Call::Renew(1_000));
    timeout(SECOND, store.until(1, all)).await.unwrap();
    assert_eq!(store.count(renewal), 1, "one request");
    assert!(guards.iter().all(Guard::is_held));
}

async fn hold_many(locks: &Locks, n: usize) -> Vec<Guard> {
    let mut guards = Vec::with_capacity(n);
    for number in 0..n {
        guards.push(locks.lock(format!("n{number}")).acquire().await.unwrap());
    }
    guards
}

#[tokio::test(start_paused = true)]
async fn a_hanging_renewal_is_asked_again_before_the_end() {
    let hangs_once = |asked: Many| async move {
        match asked.n {
            0 => pending().await,
            _ => renewed(&asked),
        }
    };
    let (store, locks) = Script::new().renewals(hangs_once).connect();
    let guard = locks.lock("a").acquire().await.unwrap();
    let end = guard.valid_until();
    store.until(2, renewal).await;
    assert!(store.now() < end);
    assert!(timeout(10 * TTL, guard.lost()).await.is_err(), "it was renewed after all");
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_was_long_under_way_is_renewed_in_time() {
    for delay in [500, 640, 660, 700, 900] {
        let slow = move |asked| async move {
            sleep(ms(delay)).await;
            granted(&asked)
        };
        let (store, locks) = Script::new().attempts(slow).connect();
        let guard = locks.lock("a").ttl(SECOND).acquire().await.unwrap();
        // Believed from before it was asked for, so that most of the validity is over by now.
        assert!(guard.remaining() <= SECOND - ms(delay), "{delay} ms");
        assert!(timeout(10 * SECOND, guard.lost()).await.is_err(), "after {delay} ms");
        let renewals = store.count(renewal);
        assert!(renewals <= 40, "{renewals} renewals in ten seconds after {delay} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_rings_with_every_error_is_not_asked_in_a_loop() {
    let disconnected = |asked: Many| async move {
        for claim in &asked.of {
            claim.wake();
            // The ring may be heard before the error is.
            tokio::task::yield_now().await;
        }
        asked.of.iter().map(|_| refused_connection()).collect()
    };
    let lease = Script::new().renewals(disconnected);
    let session = Script::new().session(ms(400)).renewals(disconnected);
    for (script, per_second) in [(lease, 2), (session, 12)] {
        let (store, locks) = script.connect();
        let guard = locks.lock("a").acquire().await.unwrap();
        store.until(1, renewal).await;
        let before = store.count(renewal);
        sleep(5 * SECOND).await;
        let asked = store.count(renewal) - before;
        assert!(asked <= 5 * per_second, "{asked} in five seconds");
        assert!(asked >= 1, "it is asked again");
        assert!(guard.is_held(), "the old end stands");
    }
}

#[tokio::test(start_paused = true)]
async fn rings_without_end_cost_one_renewal_at_a_time() {
    let slow = |asked: Many| async move {
        sleep(ms(100)).await;
        renewed(&asked)
    };
    let (store, locks) = Script::new().renewals(slow).connect();
    let _guard = locks.lock("a").acquire().await.unwrap();
    for _ in 0..1_000 {
        assert!(store.claims()[0].wake());
        sleep(ms(1)).await;
    }
    let asked = store.count(renewal);
    assert!((9..=11).contains(&asked), "{asked} renewals of 100 ms in a second");
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_that_is_rung_ends_when_it_would_have() {
    // A store that extends what it should only have looked at does not move the holder's end.
    let extends = |asked: Many| async move {
        assert!(asked.of.iter().all(|claim| claim.is_fixed_lease()));
        renewed(&asked)
    };
    let (store, locks) = Script::new().renewals(extends).connect();
    let guard = locks.lock("a").fixed_lease(10 * SECOND).acquire().await.unwrap();
    let end = guard.valid_until();
    sleep(9 * SECOND).await;
    assert!(store.claims()[0].wake());
    store.until(1, renewal).await;
    tokio::task::yield_now().await;
    assert_eq!(guard.valid_until(), end);
    guard.lost().await;
    assert!(store.now() >= end && store.now().duration_since(end) <= ms(2));
    assert_eq!(store.count(renewal), 1);
}

#[tokio::test(start_paused = true)]
async fn a_ring_finds_out_at_once_that_a_fixed_lease_was_taken_away() {
    let taken =
        |asked: Many| async move { asked.of.iter().map(|_| Ok(RenewOutcome::Lost)).collect() };
    let (store, locks) = Script::new().renewals(taken).connect();
    let guard = locks.lock("a").fixed_lease(10 * SECOND).acquire().await.unwrap();
    let granted = store.now();
    assert!(store.claims()[0].wake());
    guard.lost().await;
    assert_eq!(store.now(), granted);
}
