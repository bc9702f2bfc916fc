//! Safety checks of waiters: together where possible, at their own time where a backend asks for it,
//! and without polling the waiters.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fencelock_core::batching::Priority;
use fencelock_core::memory::Memory;
use fencelock_core::{Moment, Settings};
use tokio::time::sleep;

use crate::scripted::{
    Call, Many, One, SECOND, Script, Scripted, TTL, again, is_attempt, ms, waiting,
};

fn checks(store: &Scripted) -> Vec<(Moment, Vec<u64>)> {
    let check = |(at, call)| match call {
        Call::Check(ids) => Some((at, ids)),
        _ => None,
    };
    store.timed_calls().into_iter().filter_map(check).collect()
}

#[tokio::test(start_paused = true)]
async fn waiters_that_came_at_different_times_are_checked_together_once_a_second() {
    let queues = |_| async { waiting(SECOND) };
    let (store, locks) = Script::new().attempts(queues).connect();
    for _ in 0..40 {
        let lock = locks.lock("a");
        tokio::spawn(async move { lock.acquire().await });
        sleep(ms(137)).await;
    }
    sleep(10 * SECOND).await;
    let times: Vec<Moment> = checks(&store).into_iter().map(|(at, _)| at).collect();
    assert!(times.len() >= 12, "all waiters are checked: {}", times.len());
    for pair in times.windows(2) {
        // Timers may fire a millisecond apart.
        assert!(
            pair[1].duration_since(pair[0]) >= SECOND - ms(2),
            "{:?}",
            pair[1].duration_since(pair[0])
        );
    }
    assert_eq!(checks(&store).pop().unwrap().1.len(), 40);
}

#[tokio::test(start_paused = true)]
async fn short_checks_happen_at_their_own_times() {
    const AFTER: [u64; 4] = [20, 80, 140, 200];
    let queues = |asked: One| async move {
        let after = asked.of.name().as_str().parse().unwrap();
        waiting(ms(after))
    };
    let rarely = |asked: Many| async move { again(&asked, 100 * SECOND) };
    let (store, locks) = Script::new().attempts(queues).checks(rarely).connect();
    let started = store.now();
    for after in AFTER {
        let lock = locks.lock(after.to_string());
        tokio::spawn(async move { lock.acquire().await });
    }
    sleep(SECOND).await;
    let checks = checks(&store);
    assert_eq!(checks.len(), AFTER.len(), "{checks:?}");
    for ((at, _), after) in checks.iter().zip(AFTER) {
        let took = at.duration_since(started);
        assert!(took >= ms(after) && took <= ms(after + 2), "{after} ms: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_asks_for_constant_checks_is_limited() {
    let queues = |_| async { waiting(ms(0)) };
    let at_once = |asked: Many| async move { again(&asked, ms(0)) };
    let (store, locks) = Script::new().attempts(queues).checks(at_once).connect();
    tokio::spawn(async move { locks.lock("a").acquire().await });
    sleep(SECOND).await;
    let checks = checks(&store).len();
    assert!((100..=1_000).contains(&checks), "{checks} checks in a second");
}

#[tokio::test(start_paused = true)]
async fn idle_waiters_of_the_memory_store_are_not_polled() {
    const WAITERS: usize = 2_000;
    let store = Memory::new();
    let locks = store.locks(Settings::default()).unwrap();
    let holder = locks.lock("a").acquire().await.unwrap();
    let polls = Arc::new(AtomicUsize::new(0));
    let waiters: Vec<_> = (0..WAITERS)
        .map(|_| {
            let (lock, polls) = (locks.lock("a"), polls.clone());
            tokio::spawn(async move {
                let mut acquiring = pin!(lock.acquire());
                let counted = poll_fn(|cx| {
                    polls.fetch_add(1, Ordering::Relaxed);
                    acquiring.as_mut().poll(cx)
                });
                counted.await
            })
        })
        .collect();
    // Renewals and a check every two seconds happen without polling the waiters.
    sleep(TTL).await;
    let polled = polls.load(Ordering::Relaxed);
    assert!(polled <= WAITERS + WAITERS / 10, "{polled} polls of {WAITERS} waiters");
    assert!(holder.is_held() && waiters.iter().all(|waiter| !waiter.is_finished()));

    // A hand-off wakes one of them.
    holder.release().await.unwrap();
    let first = waiters.into_iter().next().unwrap().await.unwrap().unwrap();
    let woken = polls.load(Ordering::Relaxed) - polled;
    assert!(first.is_held() && woken <= 10, "{woken} polls for one hand-off");
}

/// After a gap every waiter is woken: their attempts must not stand before the releases, and the grants, of others.
#[tokio::test(start_paused = true)]
async fn only_the_attempt_of_a_claim_that_a_message_named_goes_first() {
    let attempts = |asked: One| async move {
        let expected = if asked.n == 2 { Priority::Held } else { Priority::Attempt };
        assert_eq!(asked.of.priority(), expected, "{}", asked.n);
        waiting(TTL)
    };
    let (store, locks) = Script::new().attempts(attempts).connect();
    tokio::spawn(async move { locks.lock("a").acquire().await });
    for asked in 1..4 {
        store.until(asked, is_attempt).await;
        sleep(ms(1)).await;
        assert!(if asked == 2 { store.claim(0).wake_for_grant() } else { store.claim(0).wake() });
    }
    store.until(4, is_attempt).await;
}
