//! An option that is invalid is an error when the lock is acquired, which names the lock: a program
//! that acquires a hundred of them finds the one that it is about.

use std::time::Duration;

use fencelock_core::memory::Memory;
use fencelock_core::{Error, ErrorKind, Lock, Settings, all};

use crate::scripted::SECOND;

async fn error_of(lock: Lock) -> Error {
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!(lock.with(async |_| ()).await.unwrap_err().to_string(), error.to_string());
    let several = all([lock.clone()]).acquire().await.unwrap_err();
    assert_eq!((several.kind(), several.lock()), (ErrorKind::InvalidArgument, error.lock()));
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    error
}

#[tokio::test(start_paused = true)]
async fn the_error_of_an_option_names_the_lock() {
    let locks = Memory::new().locks(Settings::default()).unwrap();
    let zero = Duration::ZERO;
    let (lock, rw_lock) = (locks.lock("a"), locks.rw_lock("a"));
    let permits = locks.semaphore("a", 2);
    for (lock, says) in [
        (lock.clone().ttl(zero), "TTL 0s is out of range"),
        (lock.clone().fixed_lease(zero), "TTL 0s is out of range"),
        (lock.clone().hold_at_most(zero), "hold_at_most 0s is out of range"),
        (lock.clone().unreachable_after(zero), "unreachable_after 0s is out of range"),
        (lock.clone().local_handoffs(0), "local_handoffs 0 is out of range"),
        (lock.clone().local_handoffs(8).fixed_lease(SECOND), "local_handoffs was set, but"),
        (lock.clone().permits(1), "a lock in exclusive mode has no permits"),
        (rw_lock.read().ttl(zero), "TTL 0s is out of range"),
        (rw_lock.write().local_handoffs(8), "local_handoffs was set, but"),
        (rw_lock.read().permits(1), "a lock in shared mode has no permits"),
        (locks.semaphore("a", 0), "1 of 0 permits can never be granted"),
        (permits.clone().permits(3), "3 of 2 permits can never be granted"),
        (permits.clone().hold_at_most(zero), "hold_at_most 0s is out of range"),
        (permits.local_handoffs(8), "local_handoffs was set, but"),
    ] {
        let text = error_of(lock).await.to_string();
        let expected = format!("acquire \"a\" on mem://: invalid argument: {says}");
        assert!(text.starts_with(&expected), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_error_of_an_invalid_name_shows_what_is_readable_of_it() {
    let locks = Memory::new().locks(Settings::default()).unwrap();
    let error = error_of(locks.lock("")).await;
    assert_eq!(error.lock(), Some(""));
    assert!(error.to_string().starts_with("acquire \"\" on mem://: "), "{error}");
    let long = format!("orders/{}", "ü".repeat(10_000));
    for lock in [locks.lock(&long), locks.rw_lock(&long).read(), locks.semaphore(&long, 0)] {
        let error = error_of(lock).await;
        assert!(error.lock().unwrap().starts_with("orders/ü") && error.lock().unwrap().len() < 70);
        assert!(error.to_string().contains("20007 bytes long"), "{error}");
    }
    let error = locks.inspect(&long).await.unwrap_err();
    assert!(error.to_string().starts_with("inspect \"orders/ü"), "{error}");
}
