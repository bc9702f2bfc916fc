//! Directed tests of `close` in the midst of everything else.

use std::sync::Arc;

use fencelock_core::{AttemptOutcome, ErrorKind, Guard, Locks, LostReason, ReleaseOutcome, Result};
use tokio::task::JoinHandle;
use tokio::time::{Duration, sleep};

use crate::scenes::scripted::{
    Call, SECOND, Scripted, Step, granted, holding, is_attempt, is_release, unreachable,
};

fn acquire(locks: &Locks) -> JoinHandle<Result<Guard>> {
    let lock = locks.lock("a");
    tokio::spawn(async move { lock.acquire().await })
}

/// Every release was sent before the connection ended, and only once no holder believed any more.
fn check_order(store: &Scripted, releases: usize) {
    let calls = store.calls();
    assert_eq!(calls.last(), Some(&Call::Close), "{calls:?}");
    assert_eq!(store.count(is_release), releases, "{calls:?}");
    assert_eq!(store.count(|call| matches!(call, Call::ReleaseTooEarly(_))), 0, "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn close_sends_waiters_away() {
    let phases: [Step<AttemptOutcome>; 3] = [
        Step::Never,
        Step::Now(Ok(AttemptOutcome::Waiting { check_after: Duration::MAX })),
        Step::Now(Err(unreachable())),
    ];
    for step in phases {
        let store = Scripted::leases();
        store.on_attempt(move |_| step.clone());
        let locks = store.locks();
        let acquiring = acquire(&locks);
        store.until(1, is_attempt).await;
        let asked = store.now();
        locks.close().await.unwrap();
        assert_eq!(store.now(), asked, "nothing to wait for");
        let error = acquiring.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        check_order(&store, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn close_ends_holds_then_releases_them() {
    let store = Scripted::leases();
    store.on_release(|_| Step::After(SECOND, Ok(ReleaseOutcome::Removed)));
    let locks = store.locks();
    let guards: Vec<Guard> = vec![
        locks.lock("a").acquire().await.unwrap(),
        locks.lock("b").fixed_lease(3 * SECOND).acquire().await.unwrap(),
        locks.lock("c").hold_at_most(SECOND).acquire().await.unwrap(),
    ];
    locks.close().await.unwrap();
    check_order(&store, 3);
    for guard in guards {
        assert!(!guard.is_held());
        assert_eq!(guard.lost().await, LostReason::Closed);
        assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
    }
    check_order(&store, 3);
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_a_release_under_way() {
    let (store, locks, guard) = holding("a").await;
    store.on_release(|asked| match asked.nth {
        0 => Step::After(SECOND, Err(unreachable())),
        _ => Step::After(SECOND, Ok(ReleaseOutcome::Removed)),
    });
    let releasing = tokio::spawn(guard.release());
    store.until(1, is_release).await;
    locks.close().await.unwrap();
    check_order(&store, 2);
    assert!(releasing.await.unwrap().is_ok(), "it was held to the end");
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_the_clean_up_of_a_dropped_acquisition() {
    let store = Scripted::leases();
    store.on_attempt(|_| Step::Never);
    store.on_release(|_| Step::After(SECOND, Ok(ReleaseOutcome::Removed)));
    let locks = store.locks();
    let acquiring = acquire(&locks);
    store.until(1, is_attempt).await;
    acquiring.abort();
    locks.close().await.unwrap();
    check_order(&store, 1);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_meets_close_is_no_guard() {
    let store = Scripted::leases();
    let locks = store.locks();
    let closing = Arc::new(tokio::sync::Notify::new());
    let wake = closing.clone();
    store.on_attempt(move |asked| {
        wake.notify_one();
        Step::After(SECOND, granted(&asked))
    });
    let acquiring = acquire(&locks);
    closing.notified().await;
    sleep(SECOND).await;
    locks.close().await.unwrap();
    match acquiring.await.unwrap() {
        Ok(guard) => {
            assert!(!guard.is_held());
            assert_eq!(guard.lost().await, LostReason::Closed);
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Closed),
    }
    check_order(&store, 1);
}

#[tokio::test(start_paused = true)]
async fn close_is_bounded_when_the_store_is_silent() {
    let (store, locks, guard) = holding("a").await;
    store.on_release(|_| Step::Never);
    let asked = store.now();
    let error = locks.close().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("unreachable_after=5s"), "{error}");
    let took = store.now().duration_since(asked);
    assert!(took >= 5 * SECOND && took <= 6 * SECOND, "{took:?}");
    assert!(!guard.is_held());
    check_order(&store, 1);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_close_can_be_called_again() {
    let (store, locks, guard) = holding("a").await;
    store.on_release(|_| Step::After(2 * SECOND, Ok(ReleaseOutcome::Removed)));
    assert!(tokio::time::timeout(SECOND, locks.close()).await.is_err());
    assert!(!guard.is_held());
    locks.close().await.unwrap();
    check_order(&store, 1);
}
