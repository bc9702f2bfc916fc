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

use crate::scenes::scripted::{Call, SECOND, Scripted, Step, TTL, in_the_end, unreachable};
use crate::world::gate::AtMostPolls;

const FOREVER: Duration = Duration::MAX;

fn attempt(call: Call) -> bool {
    matches!(call, Call::Attempt(_))
}

fn release(call: Call) -> bool {
    matches!(call, Call::Release(_))
}

fn check(call: Call) -> bool {
    matches!(call, Call::Check(_))
}

fn waiting(check_after: Duration) -> Step<AttemptOutcome> {
    Step::Now(Ok(AttemptOutcome::Waiting { check_after }))
}

fn acquire(store: &Arc<Scripted>) -> JoinHandle<Result<Guard>> {
    let lock = store.locks().lock("a");
    tokio::spawn(async move { in_the_end(lock.acquire()).await })
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_during_an_attempt_is_not_lost() {
    let store = Scripted::leases();
    store.on_attempt(|store, claim, n| match n {
        // The answer was true when it was given: the hand-off came just after.
        0 => Step::After(SECOND, Ok(AttemptOutcome::Waiting { check_after: FOREVER })),
        _ => Step::Now(Ok(store.grant(&claim))),
    });
    let acquiring = acquire(&store);
    store.until(1, attempt).await;
    assert!(store.claim(0).wake());
    let asked = store.now();
    let guard = acquiring.await.unwrap().unwrap();
    assert_eq!(store.now().duration_since(asked), SECOND);
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_between_the_grant_and_the_hold_renews_the_hold() {
    let store = Scripted::leases();
    store.on_attempt(|store, claim, _| {
        let grant = store.grant(&claim);
        // An external delete, noticed after the server's answer and before core has it.
        assert!(claim.wake());
        Step::Now(Ok(grant))
    });
    store.on_renew(|_, _, _| Step::Now(Ok(fencelock_core::RenewOutcome::Lost)));
    let guard = store.locks().lock("a").acquire().await.unwrap();
    let granted = store.now();
    assert_eq!(guard.lost().await, LostReason::TakenAway);
    assert_eq!(store.now(), granted);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_attempts_only_when_woken() {
    let store = Scripted::leases();
    store.on_attempt(|_, _, _| waiting(FOREVER));
    let acquiring = acquire(&store);
    sleep(1_000 * SECOND).await;
    assert_eq!((store.count(attempt), store.count(check)), (1, 0), "waiting costs nothing");
    for wake_ups in 1..4 {
        assert!(store.claim(0).wake());
        store.until(1 + wake_ups, attempt).await;
    }
    sleep(SECOND).await;
    assert_eq!(store.count(attempt), 4);
    assert!(!acquiring.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_stale_check_does_not_delay_a_loss() {
    for answer in
        [Ok(WaiterCheck::Again(60 * SECOND)), Ok(WaiterCheck::Attempt), Err(unreachable())]
    {
        for delay in [100, 1_500, 2_900, 2_968, 3_100] {
            let store = Scripted::leases();
            store.on_attempt(|store, claim, n| match n {
                0 => waiting(SECOND),
                _ => Step::Now(Ok(store.grant(&claim))),
            });
            let answer = answer.clone();
            store.on_check(move |_, _| {
                Step::After(Duration::from_millis(delay), answer.clone().map(|check| vec![check]))
            });
            store.on_renew(|_, _, _| Step::Never);
            let acquiring = acquire(&store);
            store.until(1, check).await;
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
    store.on_attempt(|store, claim, n| match n {
        0 => waiting(SECOND),
        _ => Step::Now(Ok(store.grant(&claim))),
    });
    store.on_check(|_, n| match n {
        0 => Step::Panic,
        _ => Step::Now(Ok(vec![WaiterCheck::Attempt])),
    });
    let guard = acquire(&store).await.unwrap().unwrap();
    assert!(guard.is_held() && store.count(check) == 2);
}

#[tokio::test(start_paused = true)]
async fn a_check_with_too_few_results_is_unknown_for_the_other_waiters() {
    let store = Scripted::leases();
    store.on_attempt(|store, claim, n| match n {
        0 => waiting(SECOND),
        _ => Step::Now(Ok(store.grant(&claim))),
    });
    // The second check returns more results than there are waiters.
    store.on_check(|_, n| Step::Now(Ok(vec![WaiterCheck::Attempt; if n == 0 { 1 } else { 3 }])));
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
    let checks: Vec<_> =
        store.calls().into_iter().filter(|call| matches!(call, Call::Check(_))).collect();
    assert_eq!(checks, [Call::Check(2), Call::Check(1)]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_attempt_leaves_nothing() {
    let store = Scripted::leases();
    let locks = store.locks();
    let held = locks.lock("other").acquire().await.unwrap();
    store.on_attempt(|_, _, _| Step::Panic);
    let lock = locks.lock("a");
    let failed = tokio::spawn(async move { lock.acquire().await }).await.unwrap_err();
    assert!(failed.is_panic());
    let claim = store.claim(1);
    store.until(1, release).await;
    assert!(store.calls().contains(&Call::Release(claim.id())) && !claim.wake());
    sleep(10 * SECOND).await;
    assert!(held.is_held(), "renewals continue");
}

#[tokio::test(start_paused = true)]
async fn dropped_at_any_poll_it_is_released() {
    // Attempts that answer late, with a wait and a renewal of the wait between them.
    let script = |store: &Scripted, claim: Arc<fencelock_core::Claim>, n| match n {
        0 => Step::After(SECOND, Ok(AttemptOutcome::Waiting { check_after: SECOND })),
        1 => Step::Now(Err(unreachable())),
        2 => Step::After(SECOND, Ok(AttemptOutcome::Waiting { check_after: FOREVER })),
        _ => Step::After(SECOND, Ok(store.grant(&claim))),
    };
    let mut polls = 0;
    loop {
        polls += 1;
        let store = Scripted::leases();
        store.on_attempt(script);
        store.on_check(|_, _| Step::Now(Ok(vec![WaiterCheck::Attempt])));
        let locks = store.locks();
        let lock = locks.lock("a");
        let waking = {
            let store = store.clone();
            tokio::spawn(async move {
                store.until(3, attempt).await;
                sleep(2 * SECOND).await;
                store.claim(0).wake();
            })
        };
        let acquired = AtMostPolls::new(lock.acquire(), polls).await;
        waking.abort();
        let granted = acquired.is_some();
        drop(acquired);
        let dropped = store.now();
        store.until(1, release).await;
        assert_eq!(store.now(), dropped, "at once, after {polls} polls");
        let claim = store.claim(0);
        assert!(!claim.wake() && claim.is_over());
        locks.close().await.unwrap();
        assert_eq!(store.count(release), 1);
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
    store.on_attempt(|store, claim, _| Step::After(TTL, Ok(store.grant(&claim))));
    let error = store.locks().lock("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    store.until(1, release).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_try_is_cleaned_up_if_it_left_something() {
    for (rest, releases) in [(Residue::Nothing, 0), (Residue::Perhaps, 1)] {
        let store = Scripted::leases();
        store.on_attempt(move |_, _, _| Step::Now(Ok(AttemptOutcome::Busy { rest })));
        let locks = store.locks();
        assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
        assert!(!store.claim(0).wake());
        locks.close().await.unwrap();
        assert_eq!(store.count(release), releases);
    }
}

#[tokio::test(start_paused = true)]
async fn retries_slow_down_from_20_ms_to_a_second() {
    let store = Scripted::leases();
    store.on_attempt(|_, _, _| Step::Now(Err(unreachable())));
    let error = store.locks().lock("a").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("unreachable_after=5s"), "{error}");
    let times = store.times(attempt);
    let pauses: Vec<Duration> = times.windows(2).map(|two| two[1].duration_since(two[0])).collect();
    assert!(pauses[0] >= Duration::from_millis(10) && pauses[0] <= Duration::from_millis(21));
    assert!(pauses.iter().all(|pause| *pause <= SECOND), "{pauses:?}");
    assert!(pauses.len() < 20, "{pauses:?}");
    store.until(1, release).await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_help_is_not_tried_again() {
    let store = Scripted::leases();
    let refused = Error::new(ErrorKind::Refused, "no permission");
    store.on_attempt(move |_, _, _| Step::Now(Err(refused.clone())));
    let error = store.locks().lock("a").acquire().await.unwrap_err();
    assert_eq!((error.kind(), store.count(attempt)), (ErrorKind::Refused, 1));
    store.until(1, release).await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_is_waited_for_so_long() {
    let silent = Step::Never;
    for (step, checks) in [(silent, false), (waiting(SECOND), true)] {
        let store = Scripted::leases();
        let asked = store.now();
        store.on_attempt(move |_, _, n| if n == 0 { step.clone() } else { Step::Never });
        store.on_check(|_, _| Step::Now(Ok(Vec::new())));
        let error = in_the_end(store.locks().lock("a").acquire()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "checks: {checks}");
        let waited = store.now().duration_since(asked);
        assert!(waited >= 5 * SECOND && waited <= 8 * SECOND, "{waited:?}, checks: {checks}");
        store.until(1, release).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_limit_is_kept_to_in_every_phase() {
    let limit = Duration::from_millis(2_500);
    // Only a store that queued the claim has said that the lock is not free.
    let phases: [(Step<AttemptOutcome>, ErrorKind); 3] = [
        (Step::Never, ErrorKind::Unreachable),
        (waiting(SECOND), ErrorKind::WaitTimedOut),
        (Step::Now(Err(unreachable())), ErrorKind::Unreachable),
    ];
    for (step, kind) in phases {
        let store = Scripted::leases();
        let asked = store.now();
        store.on_attempt(move |_, _, _| step.clone());
        let lock = store.locks().lock("a").wait_at_most(limit);
        let error = lock.acquire().await.unwrap_err();
        assert_eq!(error.kind(), kind);
        let waited = store.now().duration_since(asked);
        assert!(waited >= limit && waited <= limit + Duration::from_millis(2), "{waited:?}");
        store.until(1, release).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_of_one_waiter_keeps_the_wake_ups_of_the_others() {
    let store = Scripted::leases();
    store.on_release(|_| Step::Now(Ok(ReleaseOutcome::Removed)));
    store.on_attempt(|store, claim, n| match n {
        0 => waiting(FOREVER),
        _ => Step::Now(Ok(store.grant(&claim))),
    });
    let locks = store.locks();
    let (first, second) = (locks.lock("a"), locks.lock("a"));
    let first = tokio::spawn(async move { first.acquire().await });
    store.until(1, attempt).await;
    let second = tokio::spawn(async move { second.acquire().await });
    store.until(2, attempt).await;
    // Woken and dropped at the same time: the release must make the store pass the wake-up on.
    assert!(store.claim(0).wake());
    first.abort();
    store.until(1, release).await;
    assert!(!store.claim(0).wake() && store.claim(1).wake());
    let guard = timeout(SECOND, second).await.unwrap().unwrap().unwrap();
    assert!(guard.is_held());
}
