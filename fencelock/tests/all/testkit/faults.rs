//! The faults that a test can ask for, and those that it is refused.

use std::time::{Duration, Instant};

use fencelock::{ErrorKind, Locks, LostReason};
use fencelock_testkit::TestStore;
use fencelock_testkit::attribute::{self, Case};
use fencelock_testkit::helpers::{soon, spawn_waiter, until_granted, until_queued, until_renewed};

#[fencelock_testkit::test(mem, file, postgres, redis, zk, ttl = "2s")]
async fn a_lock_can_be_lost(locks: Locks, store: TestStore) {
    let guard = locks.lock("job").acquire().await.unwrap();
    store.lose("job").await.unwrap();
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::TakenAway);
    drop(guard);
    let other = store.connect().await.unwrap();
    let next = soon("the next holder", other.lock("job").acquire()).await.unwrap();
    next.release().await.unwrap();
}

#[fencelock_testkit::test(mem, file, postgres, redis, zk)]
async fn a_free_lock_cannot_be_lost(store: TestStore) {
    let error = store.lose("free").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld);
    assert!(error.to_string().contains("expected a holder"), "{error}");
}

#[fencelock_testkit::test(postgres, redis, zk)]
async fn answers_can_be_slow(locks: Locks, store: TestStore) {
    const SLOW: Duration = Duration::from_millis(300);
    store.slow(SLOW).unwrap();
    let began = Instant::now();
    let guard = soon("a slow grant", locks.lock("job").acquire()).await.unwrap();
    assert!(began.elapsed() >= SLOW, "granted after {:?}", began.elapsed());
    store.heal().await.unwrap();
    guard.release().await.unwrap();
}

#[fencelock_testkit::test(postgres, redis, zk, own_server, ttl = "2s")]
async fn a_frozen_server_costs_the_lock(locks: Locks, store: TestStore) {
    let guard = locks.lock("job").acquire().await.unwrap();
    store.freeze().await.unwrap();
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Expired);
    drop(guard);
    store.heal().await.unwrap();
    let again = soon("a lock after the thaw", locks.lock("job").acquire()).await.unwrap();
    again.release().await.unwrap();
}

#[fencelock_testkit::test(postgres, redis, zk, own_server)]
async fn a_restarted_server_knows_its_locks(locks: Locks, store: TestStore) {
    let guard = locks.lock("job").acquire().await.unwrap();
    let waiter = spawn_waiter(&locks, "job");
    until_queued(&locks, "job", 1).await;
    store.restart().await.unwrap();
    assert!(guard.is_held());
    soon("a release after the restart", guard.release()).await.unwrap();
    soon("the waiter's release", until_granted(waiter).await.release()).await.unwrap();
}

#[fencelock_testkit::test(postgres, redis, zk, ttl = "2s")]
async fn a_fault_touches_no_other_test(locks: Locks, store: TestStore) {
    let guard = locks.lock("job").acquire().await.unwrap();
    store.cut_off().await.unwrap();
    let case = Case {
        name: "bystander::of_the_same_run",
        kind: store.kind(),
        own_server: false,
        start_paused: false,
        multi_thread: false,
        ttl: Some("2s"),
        connect: |url| {
            let url = url.to_owned();
            Box::pin(async move { fencelock::connect(&url).await })
        },
    };
    let bystander = tokio::task::spawn_blocking(move || {
        attribute::run(case, async |locks: Locks| {
            let guard = locks.lock("job").acquire().await.unwrap();
            until_renewed(&locks, &guard, Duration::from_secs(2)).await;
            guard.release().await.unwrap();
        });
    });
    bystander.await.expect("another test passes");
    assert_eq!(soon("the loss", guard.lost()).await, LostReason::Expired);
}

#[fencelock_testkit::test(mem, file)]
async fn what_has_no_connection_says_so(store: TestStore) {
    let error = store.cut_off().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("has no connection"), "{error}");
    assert!(store.slow(Duration::ZERO).unwrap_err().to_string().contains("has no connection"));
    for error in [store.freeze().await.unwrap_err(), store.restart().await.unwrap_err()] {
        assert!(
            error.to_string().contains("it has no server; use postgres, redis or zk"),
            "{error}"
        );
    }
}

#[fencelock_testkit::test(postgres, redis, zk)]
async fn a_shared_server_is_not_stopped(store: TestStore) {
    for error in [store.freeze().await.unwrap_err(), store.restart().await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("add own_server to the attribute"), "{error}");
    }
}

/// Only with `FENCELOCK_TEST_REDIS_URL`, which `environment` sets.
#[fencelock_testkit::test(redis, own_server)]
#[ignore = "needs a server that is given by a URL"]
async fn a_given_server_is_not_stopped(store: TestStore) {
    let error = store.freeze().await.unwrap_err();
    assert!(error.to_string().contains("the server of FENCELOCK_TEST_REDIS_URL"), "{error}");
}
