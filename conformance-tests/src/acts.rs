//! What the fault tests of every store do with it, each bounded and each with its own words.
//!
//! Bounds are generous: they tell late on a busy machine from never, and are no promises.

use std::time::Duration;

use fencelock_core::{Error, ErrorKind, Guard, Locks, Result};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// For what should happen at once.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// So many milliseconds.
#[must_use]
pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Awaits what should happen at once.
///
/// # Panics
/// After [`PATIENCE`].
pub async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    within(PATIENCE, what, event).await
}

/// Awaits what should happen within `bound`.
///
/// # Panics
/// After it.
pub async fn within<T>(bound: Duration, what: &str, event: impl Future<Output = T>) -> T {
    timeout(bound, event).await.unwrap_or_else(|_| panic!("not within {bound:?}: {what}"))
}

/// Awaits a condition that no event announces.
///
/// # Panics
/// After [`PATIENCE`].
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        sleep(ms(5)).await;
    }
}

/// Acquires.
///
/// # Panics
/// When that fails.
pub async fn hold(locks: &Locks, name: &str) -> Guard {
    let lock = locks.lock(name);
    soon(&format!("{name} is acquired"), lock.acquire()).await.expect("acquired")
}

/// Releases.
///
/// # Panics
/// When that fails.
pub async fn give_back(guard: Guard) {
    let what = format!("{} is released", guard.name());
    soon(&what, guard.release()).await.expect("released");
}

/// Waits in a task of its own for as long as it takes.
pub fn wait_for(locks: &Locks, name: &str) -> JoinHandle<Result<Guard>> {
    let lock = locks.lock(name);
    tokio::spawn(async move { lock.acquire().await })
}

/// Awaits the grant of a [waiter](wait_for).
///
/// # Panics
/// When it is not granted.
pub async fn granted(waiter: JoinHandle<Result<Guard>>) -> Guard {
    soon("a waiter is granted", waiter).await.expect("no panic").expect("granted")
}

/// Whether a try finds it held.
///
/// # Panics
/// When the try fails.
pub async fn is_busy(locks: &Locks, name: &str) -> bool {
    let lock = locks.lock(name);
    soon("a try is answered", lock.try_acquire()).await.expect("a try works").is_none()
}

/// Asserts what kind of error it is.
///
/// # Panics
/// When it is another.
pub fn assert_kind(error: &Error, kind: ErrorKind) {
    assert_eq!(error.kind(), kind, "{error}");
}
