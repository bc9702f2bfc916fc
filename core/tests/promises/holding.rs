//! What a holder may rely on while it works.

use std::cell::Cell;
use std::sync::Arc;

use fencelock_core::memory::Memory;
use fencelock_core::{ErrorKind, Settings, TokenEpoch};
use tokio::task::yield_now;
use tokio::time::sleep;

use crate::scripted::{Jumping, SECOND, Script, TTL};

#[tokio::test(start_paused = true)]
async fn work_is_not_polled_after_the_end_of_the_validity() {
    let clock = Arc::new(Jumping::default());
    let (_store, locks) = Script::new().clock(clock.clone()).connect();
    let guard = locks.lock("a").acquire().await.unwrap();
    let went_on = Cell::new(false);
    let work = async {
        clock.jump(TTL);
        yield_now().await;
        went_on.set(true);
    };
    let error = guard.run(work).await.unwrap_err();
    assert_eq!((error.kind(), went_on.get()), (ErrorKind::Lost, false));
}

#[tokio::test(start_paused = true)]
async fn the_result_of_work_that_ends_too_late_is_dropped() {
    let clock = Arc::new(Jumping::default());
    let (_store, locks) = Script::new().clock(clock.clone()).connect();
    let guard = locks.lock("a").acquire().await.unwrap();
    assert_eq!(guard.run(async { 1 }).await.unwrap(), 1);
    let error = guard.run(async { clock.jump(TTL) }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    let started = Cell::new(false);
    assert!(guard.run(async { started.set(true) }).await.is_err() && !started.get());
}

#[tokio::test(start_paused = true)]
async fn inspect_shows_the_holders_token() {
    let settings = Settings::default().token_epoch(TokenEpoch::new(3).unwrap());
    let locks = Memory::new().locks(settings).unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    let seen = locks.inspect("a").await.unwrap();
    assert_eq!(seen.holders.len(), 1);
    assert_eq!(seen.holders[0].token, Some(guard.fencing_token()));
    assert_eq!(guard.fencing_token().get() >> 56, 3);
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_of_the_memory_store_ends_for_its_waiters_too() {
    let locks = Memory::new().locks(Settings::default()).unwrap();
    let holder = locks.lock("a").fixed_lease(10 * SECOND).acquire().await.unwrap();
    let end = holder.valid_until();
    let waiter = locks.lock("a").fixed_lease(10 * SECOND).acquire().await.unwrap();
    assert!(!holder.is_held() && waiter.is_held());
    assert!(
        locks.now().duration_since(end) <= SECOND,
        "{:?} too late",
        locks.now().duration_since(end)
    );
    // The hand-off by a wake-up does not make its lease longer.
    let end = waiter.valid_until();
    sleep(5 * SECOND).await;
    assert_eq!(waiter.valid_until(), end);
}
