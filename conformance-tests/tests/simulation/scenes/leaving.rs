//! Directed tests of the way out: whatever ends a hold, exactly one release goes out, after the
//! holder has stopped believing, and continues until the store has confirmed it.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use fencelock_core::{
    Error, ErrorKind, Guard, Liveness, LostReason, ReleaseOutcome, RenewOutcome, RenewalPlan,
    Result,
};
use tokio::time::{sleep, timeout};

use crate::scenes::scripted::{
    Call, SECOND, Scripted, Step, TTL, holding, is_release, unreachable, waiting,
};
use crate::world::gate::AtMostPolls;

fn too_early(call: &Call) -> bool {
    matches!(call, Call::ReleaseTooEarly(_))
}

/// What a caller gets when the store answers `answers`, one after the other.
async fn outcome_after(answers: &[Result<ReleaseOutcome>]) -> (Result<()>, Arc<Scripted>) {
    let store = Scripted::leases();
    let answers = answers.to_vec();
    store.on_release(move |asked| Step::Now(answers[asked.n.min(answers.len() - 1)].clone()));
    let guard = store.locks().lock("a").acquire().await.expect("granted");
    (guard.release().await, store)
}

fn kind(result: Result<()>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[tokio::test(start_paused = true)]
async fn a_release_reports_what_became_of_the_lock() {
    use ReleaseOutcome::{Absent, Partly, Removed};
    let lost = || Err(unreachable());
    let partly = |was_held| Ok(Partly { was_held });
    assert_eq!(kind(outcome_after(&[Ok(Removed)]).await.0), None);
    assert_eq!(kind(outcome_after(&[Ok(Absent)]).await.0), Some(ErrorKind::NotHeld));
    // The first one may have removed it; its validity had not ended when it was sent.
    assert_eq!(kind(outcome_after(&[lost(), Ok(Absent)]).await.0), None);
    assert_eq!(kind(outcome_after(&[lost(), lost(), Ok(Removed)]).await.0), None);
    assert_eq!(kind(outcome_after(&[partly(true), Ok(Removed)]).await.0), None);
    assert_eq!(kind(outcome_after(&[partly(false), Ok(Absent)]).await.0), Some(ErrorKind::NotHeld));
    assert_eq!(kind(outcome_after(&[lost()]).await.0), Some(ErrorKind::Unreachable));
    let refused = Err(Error::new(ErrorKind::Refused, "read-only"));
    assert_eq!(kind(outcome_after(&[refused]).await.0), Some(ErrorKind::Refused));
}

#[tokio::test(start_paused = true)]
async fn what_a_release_left_is_removed_in_the_background() {
    let partly = Ok(ReleaseOutcome::Partly { was_held: true });
    let answers = [partly.clone(), partly, Err(unreachable()), Ok(ReleaseOutcome::Removed)];
    let (outcome, store) = outcome_after(&answers).await;
    assert!(outcome.is_ok());
    timeout(5 * SECOND, store.until(4, is_release)).await.unwrap();
    sleep(60 * SECOND).await;
    assert_eq!(store.count(is_release), 4, "and no further");
}

#[tokio::test(start_paused = true)]
async fn a_release_dropped_at_any_poll_is_finished() {
    let mut polls = 0;
    loop {
        polls += 1;
        let (store, locks, guard) = holding("a").await;
        store.on_release(|asked| match asked.nth {
            0 => Step::After(SECOND, Err(unreachable())),
            _ => Step::After(SECOND, Ok(ReleaseOutcome::Removed)),
        });
        let released = AtMostPolls::new(guard.release(), polls).await;
        locks.close().await.unwrap();
        assert!(store.count(is_release) >= 2 && store.count(too_early) == 0, "{:?}", store.calls());
        assert_eq!(store.calls().last(), Some(&Call::Close));
        if released.is_some() {
            break;
        }
    }
    assert!(polls > 2);
}

#[tokio::test(start_paused = true)]
async fn no_hold_is_valid_any_more_when_its_release_is_sent() {
    let end_by: [fn(Guard); 2] = [drop, |guard| {
        tokio::spawn(guard.release());
    }];
    for end in end_by {
        let store = Scripted::leases();
        let guard = store.locks().lock("a").acquire().await.unwrap();
        end(guard);
        store.until(1, is_release).await;
        assert_eq!(store.count(too_early), 0);
    }
    let store = Scripted::leases();
    store.on_renew(|_| Step::Now(Ok(RenewOutcome::Lost)));
    let guard = store.locks().lock("a").acquire().await.unwrap();
    assert!(store.claim(0).wake());
    store.until(1, is_release).await;
    assert!(!guard.is_held() && store.count(too_early) == 0);
}

#[tokio::test(start_paused = true)]
async fn a_release_after_the_loss_is_not_held_and_sends_nothing_more() {
    let store = Scripted::leases();
    store.on_renew(|_| Step::Never);
    let guard = store.locks().lock("a").acquire().await.unwrap();
    guard.lost().await;
    store.until(1, is_release).await;
    // Another client holds it now: a stale handle must do no harm.
    assert_eq!(kind(guard.release().await), Some(ErrorKind::NotHeld));
    sleep(60 * SECOND).await;
    assert_eq!(store.count(is_release), 1);
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_is_stray_only_when_its_claim_has_gone() {
    let store = Scripted::leases();
    let guard = store.locks().lock("a").acquire().await.unwrap();
    let claim = store.claim(0);
    // Held is not waiting, and yet wanted: a backend that took it for a stray freed held locks.
    assert!(claim.wake() && !claim.is_over());
    sleep(SECOND).await;
    assert!(guard.is_held());
    drop(guard);
    assert!(!claim.wake() && claim.is_over());
}

#[tokio::test(start_paused = true)]
async fn a_clean_up_never_gives_up_while_a_session_may_live() {
    let hour = 3_600;
    let store = Scripted::new(Liveness::Session(6 * SECOND), RenewalPlan::Every(SECOND));
    store.on_release(|_| Step::Now(Err(unreachable())));
    drop(store.locks().lock("a").acquire().await.unwrap());
    sleep(hour * SECOND).await;
    assert!(store.count(is_release) > 3_000, "{} in an hour", store.count(is_release));
    assert!(store.count(is_release) < 8_000, "{} in an hour", store.count(is_release));
    store.on_release(|_| Step::Now(Ok(ReleaseOutcome::Removed)));
    let before = store.count(is_release);
    sleep(hour * SECOND).await;
    assert_eq!(store.count(is_release), before + 1, "until it is gone, and no longer");
}

#[tokio::test(start_paused = true)]
async fn a_clean_up_of_a_lease_ends_after_the_lease() {
    let store = Scripted::leases();
    store.on_release(|_| Step::Now(Err(unreachable())));
    drop(store.locks().lock("a").acquire().await.unwrap());
    let dropped = store.now();
    sleep(100 * SECOND).await;
    let last = *store.times(is_release).last().unwrap();
    let went_on = last.duration_since(dropped);
    let bound = TTL + 5 * SECOND;
    assert!(went_on >= bound && went_on <= bound + SECOND, "went on for {went_on:?}");
}

/// Acquires on a runtime that ends at once; what is left of it is on no runtime.
fn outlived() -> (Arc<Scripted>, fencelock_core::Locks, Guard) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime needs no resources");
    let left = runtime.block_on(holding("a"));
    assert!(left.2.is_held());
    drop(runtime);
    left
}

#[test]
fn a_runtime_that_shuts_down_ends_what_it_held_at_once() {
    let (store, locks, guard) = outlived();
    assert!(!guard.is_held());
    let other = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    other.block_on(async {
        let reason = timeout(SECOND, guard.lost()).await.unwrap();
        assert_eq!(reason, LostReason::Closed);
        let error = locks.lock("b").acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        let error = locks.lock("b").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        let error = timeout(10 * SECOND, guard.release()).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotHeld);
    });
    assert_eq!(store.count(is_release), 0, "no task is left to send it");
}

#[test]
fn a_loss_by_shutdown_is_reported_on_another_runtime() {
    let (report, reported) = mpsc::channel();
    let (give, given) = mpsc::channel::<Guard>();
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let guard = given.recv().unwrap();
            let lost = guard.lost();
            tokio::pin!(lost);
            // It waits already when the other runtime ends.
            assert!(timeout(Duration::from_millis(1), &mut lost).await.is_err());
            report.send(()).unwrap();
            timeout(10 * SECOND, lost).await.unwrap()
        })
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let guard =
        runtime.block_on(async { Scripted::leases().locks().lock("a").acquire().await.unwrap() });
    give.send(guard).unwrap();
    reported.recv().unwrap();
    drop(runtime);
    assert_eq!(other.join().unwrap(), LostReason::Closed);
}

#[tokio::test(start_paused = true)]
async fn nothing_keeps_a_store_alive_after_its_last_handle() {
    let store = Scripted::leases();
    let alive = Arc::downgrade(&store);
    let locks = store.locks();
    let guard = locks.lock("a").acquire().await.unwrap();
    let lock = locks.lock("b");
    store.on_attempt(|_| Step::Now(waiting(Duration::MAX)));
    assert!(timeout(SECOND, lock.acquire()).await.is_err());
    store.until(1, is_release).await;
    store.forget_claims();
    drop((store, locks, lock));
    sleep(10 * SECOND).await;
    assert!(guard.is_held() && alive.upgrade().is_some(), "a guard is a handle");
    drop(guard);
    sleep(SECOND).await;
    assert!(alive.upgrade().is_none());
}
