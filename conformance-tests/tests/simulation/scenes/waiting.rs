//! Directed tests of waiting: wake-ups during attempts, late waiter checks, silence,
//! and giving up at any poll.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{
    AttemptOutcome, Error, ErrorKind, Guard, LostReason, ReleaseOutcome, Residue, Result,
    WaiterCheck,
};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::scenes::scripted::{
    self, Call, One, SECOND, Scripted, Step, TTL, granted, holding, in_the_end, is_attempt,
    is_check, is_release, unreachable,
};
use crate::world::gate::AtMostPolls;

const FOREVER: Duration = Duration::MAX;

fn waiting(check_after: Duration) -> Step<AttemptOutcome> {
    Step::Now(scripted::waiting(check_after))
}

/// A claim is queued by its first attempt, and granted its lock by the next.
fn queues_first(store: &Scripted, check_after: Duration) {
    store.on_attempt(move |asked| match asked.nth {
        0 => waiting(check_after),
        _ => Step::Now(granted(&asked)),
    });
}

fn acquire(store: &Arc<Scripted>) -> JoinHandle<Result<Guard>> {
    let lock = store.locks().lock("a");
    tokio::spawn(async move { in_the_end(lock.acquire()).await })
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_during_an_attempt_is_not_lost() {
    let store = Scripted::leases();
    store.on_attempt(|asked| match asked.nth {
        // The answer was true when it was given: the hand-off came just after.
        0 => Step::After(SECOND, scripted::waiting(FOREVER)),
        _ => Step::Now(granted(&asked)),
    });
    let acquiring = acquire(&store);
    store.until(1, is_attempt).await;
    assert!(store.claim(0).wake());
    let asked = store.now();
    let guard = acquiring.await.unwrap().unwrap();
    assert_eq!(store.now().duration_since(asked), SECOND);
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_between_the_grant_and_the_hold_renews_the_hold() {
    let store = Scripted::leases();
    store.on_attempt(|asked| {
        // An external delete, noticed after the server's answer and before core has it.
        assert!(asked.of.wake());
        Step::Now(granted(&asked))
    });
    store.on_renew(|_| Step::Now(Ok(fencelock_core::RenewOutcome::Lost)));
    let guard = store.locks().lock("a").acquire().await.unwrap();
    let granted = store.now();
    assert_eq!(guard.lost().await, LostReason::TakenAway);
    assert_eq!(store.now(), granted);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_attempts_only_when_woken() {
    let store = Scripted::leases();
    store.on_attempt(|_| waiting(FOREVER));
    let acquiring = acquire(&store);
    sleep(1_000 * SECOND).await;
    assert_eq!((store.count(is_attempt), store.count(is_check)), (1, 0), "waiting costs nothing");
    for wake_ups in 1..4 {
        assert!(store.claim(0).wake());
        store.until(1 + wake_ups, is_attempt).await;
    }
    sleep(SECOND).await;
    assert_eq!(store.count(is_attempt), 4);
    assert!(!acquiring.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_stale_check_does_not_delay_a_loss() {
    for answer in
        [Ok(WaiterCheck::Again(60 * SECOND)), Ok(WaiterCheck::Attempt), Err(unreachable())]
    {
        for delay in [100, 1_500, 2_900, 2_968, 3_100] {
            let store = Scripted::leases();
            queues_first(&store, SECOND);
            let answer = answer.clone();
            store.on_check(move |_| {
                Step::After(Duration::from_millis(delay), answer.clone().map(|check| vec![check]))
            });
            store.on_renew(|_| Step::Never);
            let acquiring = acquire(&store);
            store.until(1, is_check).await;
            // Its hand-off overtakes the check.
            assert!(store.claim(0).wake());
            let guard = acquiring.await.unwrap().unwrap();
            let end = guard.valid_until();
            assert_eq!(in_the_end(guard.lost()).await, LostReason::Expired);
            let late = store.now().duration_since(end);
            assert!(store.now() >= end && late <= Duration::from_millis(2), "{late:?} late");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_check_waiters_is_retried() {
    let store = Scripted::leases();
    queues_first(&store, SECOND);
    store.on_check(|asked| match asked.n {
        0 => Step::Panic,
        _ => Step::Now(Ok(vec![WaiterCheck::Attempt])),
    });
    let guard = acquire(&store).await.unwrap().unwrap();
    assert!(guard.is_held() && store.count(is_check) == 2);
}

#[tokio::test(start_paused = true)]
async fn a_check_with_too_few_results_is_unknown_for_the_other_waiters() {
    let store = Scripted::leases();
    queues_first(&store, SECOND);
    // The second check returns more results than there are waiters.
    store.on_check(|asked| {
        Step::Now(Ok(vec![WaiterCheck::Attempt; if asked.n == 0 { 1 } else { 3 }]))
    });
    let locks = store.locks();
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            let lock = locks.lock("a");
            tokio::spawn(async move { in_the_end(lock.acquire()).await })
        })
        .collect();
    for waiter in waiters {
        assert!(waiter.await.unwrap().unwrap().is_held());
    }
    let mut calls = store.calls();
    calls.retain(is_check);
    let id = |n: usize| store.claim(n).id();
    assert_eq!(calls, [Call::Check(vec![id(0), id(1)]), Call::Check(vec![id(1)])]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_attempt_leaves_nothing() {
    let (store, locks, held) = holding("other").await;
    store.on_attempt(|_| Step::Panic);
    let lock = locks.lock("a");
    let failed = tokio::spawn(async move { lock.acquire().await }).await.unwrap_err();
    assert!(failed.is_panic());
    let claim = store.claim(1);
    store.until(1, is_release).await;
    assert!(store.calls().contains(&Call::Release(claim.id())) && !claim.wake());
    sleep(10 * SECOND).await;
    assert!(held.is_held(), "renewals continue");
}

#[tokio::test(start_paused = true)]
async fn dropped_at_any_poll_it_is_released() {
    // Attempts that answer late, with a wait and a renewal of the wait between them.
    let script = |asked: One| match asked.nth {
        0 => Step::After(SECOND, scripted::waiting(SECOND)),
        1 => Step::Now(Err(unreachable())),
        2 => Step::After(SECOND, scripted::waiting(FOREVER)),
        _ => Step::After(SECOND, granted(&asked)),
    };
    let mut polls = 0;
    loop {
        polls += 1;
        let store = Scripted::leases();
        store.on_attempt(script);
        store.on_check(|_| Step::Now(Ok(vec![WaiterCheck::Attempt])));
        let locks = store.locks();
        let lock = locks.lock("a");
        let waking = {
            let store = store.clone();
            tokio::spawn(async move {
                store.until(3, is_attempt).await;
                sleep(2 * SECOND).await;
                store.claim(0).wake();
            })
        };
        let acquired = AtMostPolls::new(lock.acquire(), polls).await;
        waking.abort();
        let granted = acquired.is_some();
        drop(acquired);
        let dropped = store.now();
        store.until(1, is_release).await;
        assert_eq!(store.now(), dropped, "at once, after {polls} polls");
        let claim = store.claim(0);
        assert!(!claim.wake() && claim.is_over());
        locks.close().await.unwrap();
        assert_eq!(store.count(is_release), 1);
        if granted {
            break;
        }
    }
    assert!(polls > 6, "{polls} polls are not every await");
}

/// Fault 4: memory, redis, sentinel, cluster, redlock, zookeeper, zookeeper-3, postgres, postgres-sync, pgbouncer
#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_too_late_is_an_error_and_is_released() {
    let store = Scripted::leases();
    // The promise counts from before the request, and the answer took all of it.
    store.on_attempt(|asked| Step::After(TTL, granted(&asked)));
    let error = store.locks().lock("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    store.until(1, is_release).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_try_is_cleaned_up_if_it_left_something() {
    for (rest, releases) in [(Residue::Nothing, 0), (Residue::Perhaps, 1)] {
        let store = Scripted::leases();
        store.on_attempt(move |_| Step::Now(Ok(AttemptOutcome::Busy { rest })));
        let locks = store.locks();
        assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
        assert!(!store.claim(0).wake());
        locks.close().await.unwrap();
        assert_eq!(store.count(is_release), releases);
    }
}

#[tokio::test(start_paused = true)]
async fn retries_slow_down_from_20_ms_to_a_second() {
    let store = Scripted::leases();
    store.on_attempt(|_| Step::Now(Err(unreachable())));
    let error = store.locks().lock("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("unreachable_after=5s"), "{error}");
    let times = store.times(is_attempt);
    let pauses: Vec<Duration> = times.windows(2).map(|two| two[1].duration_since(two[0])).collect();
    assert!(pauses[0] >= Duration::from_millis(10) && pauses[0] <= Duration::from_millis(21));
    assert!(pauses.iter().all(|pause| *pause <= SECOND), "{pauses:?}");
    assert!(pauses.len() < 20, "{pauses:?}");
    store.until(1, is_release).await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_help_is_not_tried_again() {
    let store = Scripted::leases();
    let refused = Error::new(ErrorKind::Refused, "no permission");
    store.on_attempt(move |_| Step::Now(Err(refused.clone())));
    let error = store.locks().lock("a").acquire().await.unwrap_err();
    assert_eq!((error.kind(), store.count(is_attempt)), (ErrorKind::Refused, 1));
    store.until(1, is_release).await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_is_waited_for_so_long() {
    let silent = Step::Never;
    for (step, checks) in [(silent, false), (waiting(SECOND), true)] {
        let store = Scripted::leases();
        let asked = store.now();
        store.on_attempt(move |asked| if asked.nth == 0 { step.clone() } else { Step::Never });
        store.on_check(|_| Step::Now(Ok(Vec::new())));
        let error = in_the_end(store.locks().lock("a").acquire()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "checks: {checks}");
        let waited = store.now().duration_since(asked);
        assert!(waited >= 5 * SECOND && waited <= 8 * SECOND, "{waited:?}, checks: {checks}");
        store.until(1, is_release).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_of_one_waiter_keeps_the_wake_ups_of_the_others() {
    let store = Scripted::leases();
    store.on_release(|_| Step::Now(Ok(ReleaseOutcome::Removed)));
    queues_first(&store, FOREVER);
    let locks = store.locks();
    let (first, second) = (locks.lock("a"), locks.lock("a"));
    let first = tokio::spawn(async move { first.acquire().await });
    store.until(1, is_attempt).await;
    let second = tokio::spawn(async move { second.acquire().await });
    store.until(2, is_attempt).await;
    // Woken and dropped at the same time: the release must make the store pass the wake-up on.
    assert!(store.claim(0).wake());
    first.abort();
    store.until(1, is_release).await;
    assert!(!store.claim(0).wake() && store.claim(1).wake());
    let guard = timeout(SECOND, second).await.unwrap().unwrap().unwrap();
    assert!(guard.is_held());
}
