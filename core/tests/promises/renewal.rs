//! Renewals are sent in time and in few requests, whatever the store answers.

use fencelock_core::{Guard, Liveness, Locks, RenewOutcome, RenewalPlan};
#[cfg(feature = "metrics")]
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::time::{sleep, timeout};

use crate::scripted::{One, SECOND, Script, granted, is_renewal, ms, refused_connection, renewed};

#[cfg(feature = "metrics")]
#[tokio::test(start_paused = true)]
async fn a_thousand_holds_that_are_woken_together_are_renewed_together() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let (store, locks) = Script::new().connect();
    let guards = hold_many(&locks, 1_000).await;
    let woken = store.now();
    assert!(store.claims().iter().all(|claim| claim.wake()));
    timeout(SECOND, store.until(1_000, is_renewal)).await.unwrap();
    assert_eq!(store.now(), woken, "at once");
    sleep(SECOND).await;
    assert_eq!(store.count(is_renewal), 1_000, "and each once");
    assert_eq!(batches(&snapshotter), 1);
    assert!(guards.iter().all(Guard::is_held));
}

/// The number of renewal batches in the histogram.
#[cfg(feature = "metrics")]
fn batches(snapshotter: &Snapshotter) -> usize {
    let seen = snapshotter.snapshot().into_vec();
    let records = seen.into_iter().map(|(key, _, _, value)| match value {
        DebugValue::Histogram(records) if key.key().name() == "fencelock_renewal_seconds" => {
            records.len()
        }
        _ => 0,
    });
    records.sum()
}

#[tokio::test(start_paused = true)]
async fn a_hundred_renewals_are_in_flight_and_each_answer_counts_at_once() {
    let slow_first = |asked: One| async move {
        sleep(if asked.n < 99 { 5 * SECOND } else { ms(10) }).await;
        renewed(&asked)
    };
    let (store, locks) = Script::new().renewals(slow_first).connect();
    let guards = hold_many(&locks, 300).await;
    store.until(1, is_renewal).await;
    tokio::task::yield_now().await;
    assert_eq!(store.count(is_renewal), 100);
    let ends: Vec<_> = guards.iter().map(Guard::valid_until).collect();
    sleep(4 * SECOND).await;
    // The others were sent one by one while 99 slow ones were in flight.
    assert_eq!(store.count(is_renewal), 300);
    assert!(guards[99..].iter().zip(&ends[99..]).all(|(guard, end)| guard.valid_until() > *end));
    assert!(guards[..99].iter().zip(&ends).all(|(guard, end)| guard.valid_until() == *end));
    sleep(2 * SECOND).await;
    assert!(guards.iter().zip(&ends).all(|(guard, end)| guard.valid_until() > *end));
}

async fn hold_many(locks: &Locks, n: usize) -> Vec<Guard> {
    let mut guards = Vec::with_capacity(n);
    for number in 0..n {
        guards.push(locks.lock(format!("n{number}")).acquire().await.unwrap());
    }
    guards
}

#[tokio::test(start_paused = true)]
async fn a_grant_whose_reply_was_late_is_renewed_in_time() {
    for delay in [500, 640, 660, 700, 900] {
        let slow = move |asked| async move {
            sleep(ms(delay)).await;
            granted(&asked)
        };
        let (store, locks) = Script::new().attempts(slow).connect();
        let guard = locks.lock("a").ttl(SECOND).acquire().await.unwrap();
        // The validity counts from before the request, so most of it has passed.
        assert!(guard.remaining() <= SECOND - ms(delay), "{delay} ms");
        assert!(timeout(10 * SECOND, guard.lost()).await.is_err(), "after {delay} ms");
        let renewals = store.count(is_renewal);
        assert!(renewals <= 40, "{renewals} renewals in ten seconds after {delay} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_wakes_with_every_error_is_not_asked_in_a_loop() {
    let disconnected = |asked: One| async move {
        asked.of.wake();
        // The wake-up may be handled before the error.
        tokio::task::yield_now().await;
        refused_connection()
    };
    let lease = Script::new().renewals(disconnected);
    let session = Script::new()
        .liveness(Liveness::Session(4 * SECOND), RenewalPlan::Every(ms(400)))
        .renewals(disconnected);
    for (script, per_second) in [(lease, 2), (session, 12)] {
        let (store, locks) = script.connect();
        let guard = locks.lock("a").acquire().await.unwrap();
        store.until(1, is_renewal).await;
        let before = store.count(is_renewal);
        sleep(5 * SECOND).await;
        let asked = store.count(is_renewal) - before;
        assert!(asked <= 5 * per_second, "{asked} in five seconds");
        assert!(asked >= 1, "the renewal is retried");
        assert!(guard.is_held(), "the old end stands");
    }
}

#[tokio::test(start_paused = true)]
async fn endless_wake_ups_cost_one_renewal_at_a_time() {
    let slow = |asked: One| async move {
        sleep(ms(100)).await;
        renewed(&asked)
    };
    let (store, locks) = Script::new().renewals(slow).connect();
    let _guard = locks.lock("a").acquire().await.unwrap();
    for _ in 0..1_000 {
        assert!(store.claim(0).wake());
        sleep(ms(1)).await;
    }
    let asked = store.count(is_renewal);
    assert!((9..=11).contains(&asked), "{asked} renewals of 100 ms in a second");
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_that_is_woken_ends_at_the_same_time() {
    // A store that extends what it should only have checked does not move the holder's end.
    let extends = |asked: One| async move {
        assert!(asked.of.is_fixed_lease());
        renewed(&asked)
    };
    let (store, locks) = Script::new().renewals(extends).connect();
    let guard = locks.lock("a").fixed_lease(10 * SECOND).acquire().await.unwrap();
    let end = guard.valid_until();
    sleep(9 * SECOND).await;
    assert!(store.claim(0).wake());
    store.until(1, is_renewal).await;
    tokio::task::yield_now().await;
    assert_eq!(guard.valid_until(), end);
    guard.lost().await;
    assert!(store.now() >= end && store.now().duration_since(end) <= ms(2));
    assert_eq!(store.count(is_renewal), 1);
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_detects_at_once_that_a_fixed_lease_was_taken_away() {
    let taken = |_| async { Ok(RenewOutcome::Lost) };
    let (store, locks) = Script::new().renewals(taken).connect();
    let guard = locks.lock("a").fixed_lease(10 * SECOND).acquire().await.unwrap();
    let granted = store.now();
    assert!(store.claim(0).wake());
    guard.lost().await;
    assert_eq!(store.now(), granted);
}
