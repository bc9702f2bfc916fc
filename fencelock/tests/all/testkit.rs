//! `#[fencelock_testkit::test]`, as the tests of a service use it.

#![allow(clippy::unwrap_used)]

mod environment;
mod faults;
mod killed;
mod service;

use std::time::{Duration, Instant};

use fencelock::Locks;
use fencelock_testkit::{StoreKind, TestStore};

#[fencelock_testkit::test(mem, file, postgres, redis, zk)]
async fn a_lock_excludes(locks: Locks) {
    let held = locks.lock("job").acquire().await.unwrap();
    assert!(locks.lock("job").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    assert!(locks.lock("job").try_acquire().await.unwrap().is_some());
}

#[fencelock_testkit::test(mem, file, postgres, redis, zk)]
async fn clients_of_one_store_share_its_locks(locks: Locks, store: TestStore) {
    let other = store.connect().await.unwrap();
    let held = other.lock("job").acquire().await.unwrap();
    assert!(locks.lock("job").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
}

#[fencelock_testkit::test(file, postgres, redis, zk)]
async fn a_service_connects_by_the_url(store: TestStore) {
    let service = fencelock::connect(store.url().unwrap()).await.unwrap();
    let held = service.lock("job").acquire().await.unwrap();
    let locks = store.connect().await.unwrap();
    assert!(locks.lock("job").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    service.close().await.unwrap();
}

/// Two tests that run at the same time, on the same name.
async fn holds_a_popular_name(store: TestStore) {
    let locks = store.connect().await.unwrap();
    let held = locks.lock("popular").try_acquire().await.unwrap();
    let held = held.expect("no other test has this lock");
    tokio::time::sleep(Duration::from_millis(200)).await;
    held.release().await.unwrap();
}

#[fencelock_testkit::test(file, postgres, redis, zk)]
async fn a_test_has_its_own_names(store: TestStore) {
    holds_a_popular_name(store).await;
}

#[fencelock_testkit::test(file, postgres, redis, zk)]
async fn another_test_has_its_own_names(store: TestStore) {
    holds_a_popular_name(store).await;
}

#[fencelock_testkit::test(mem, start_paused = true)]
async fn an_hour_of_paused_time_takes_no_time(locks: Locks) {
    let began = Instant::now();
    let guard = locks.lock("job").acquire().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(guard.is_held(), "renewed for an hour");
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[fencelock_testkit::test(mem, redis, flavor = "multi_thread")]
async fn a_test_may_have_several_threads(locks: Locks) {
    let handle = tokio::runtime::Handle::current();
    assert_eq!(handle.runtime_flavor(), tokio::runtime::RuntimeFlavor::MultiThread);
    locks.lock("job").acquire().await.unwrap().release().await.unwrap();
}

#[fencelock_testkit::test(mem, redis)]
async fn a_test_may_return_a_result(locks: Locks) -> fencelock::Result<()> {
    locks.lock("job").acquire().await?.release().await
}

#[fencelock_testkit::test(mem)]
#[should_panic(expected = "the test returned")]
async fn an_error_fails_the_test(locks: Locks) -> fencelock::Result<()> {
    locks.lock("").acquire().await?.release().await
}

#[fencelock_testkit::test(mem, redis)]
#[should_panic(expected = "the test's own panic")]
async fn a_panic_fails_the_test(_locks: Locks) {
    panic!("the test's own panic");
}

#[fencelock_testkit::test(mem, file, postgres, redis, zk)]
async fn a_test_knows_its_store(store: TestStore) {
    let scheme = match store.kind() {
        StoreKind::Memory => {
            return assert!(store.url().unwrap_err().to_string().contains("connect"));
        }
        StoreKind::File => "file://",
        StoreKind::Postgres => "postgres://",
        StoreKind::Redis => "redis://",
        StoreKind::ZooKeeper => "zk://",
    };
    assert!(store.url().unwrap().starts_with(scheme));
}

#[test]
fn the_documentation_shows_the_service_and_its_tests() {
    let page = include_str!("../../../docs/testing-your-service.md");
    let (_, program) = include_str!("testkit/service.rs").split_once("\n\n").unwrap();
    assert!(page.contains(program), "docs/testing-your-service.md must show service.rs as it is");
}
