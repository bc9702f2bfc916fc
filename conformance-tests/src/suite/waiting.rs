//! Bounded waits of the suite and of fault tests: each names the event that it waits for, so that a
//! hang is a failure with a reason.

use std::time::Duration;

use fencelock_core::{Error, ErrorKind, Guard, Lock, Locks, Result, Snapshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// How often a condition is checked that no event announces.
pub(crate) const CHECK_EVERY: Duration = Duration::from_millis(5);

/// Awaits `event`. `what` is a statement that is true once it has happened.
///
/// # Panics
/// When it does not happen within `bound`.
pub async fn within<T>(bound: Duration, what: &str, event: impl Future<Output = T>) -> T {
    timeout(bound, event).await.unwrap_or_else(|_| panic!("{}", timed_out(bound, what)))
}

/// Awaits a condition that no event announces.
///
/// # Panics
/// When it is not met within `bound`.
pub async fn until_within(bound: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + bound;
    while !condition().await {
        assert!(Instant::now() < deadline, "{}", timed_out(bound, what));
        sleep(CHECK_EVERY).await;
    }
}

/// Awaits that `locks` see this of `name`. A failed request is repeated: a connection may be on its
/// way back, and what a test breaks can hit any client.
///
/// # Panics
/// When they do not within `bound`; with the last error, if there was one.
pub async fn until_seen(
    bound: Duration,
    what: &str,
    locks: &Locks,
    name: &str,
    wanted: impl Fn(&Snapshot) -> bool,
) {
    let deadline = Instant::now() + bound;
    loop {
        let why = match locks.inspect(name).await {
            Ok(seen) if wanted(&seen) => return,
            Ok(_) => String::new(),
            Err(error) => format!("; {error}"),
        };
        assert!(Instant::now() < deadline, "{}{why}", timed_out(bound, what));
        sleep(CHECK_EVERY).await;
    }
}

/// Awaits that `count` claims wait for `name`.
///
/// # Panics
/// When they do not within `bound`.
pub async fn until_queued_within(bound: Duration, locks: &Locks, name: &str, count: usize) {
    let what = format!("{count} claims wait for {name:?}");
    until_seen(bound, &what, locks, name, |seen| seen.waiters.len() == count).await;
}

/// Awaits that `name` has neither holder nor waiter.
///
/// # Panics
/// When it has one after `bound`.
pub async fn until_free_within(bound: Duration, locks: &Locks, name: &str) {
    let what = format!("{name:?} has neither holder nor waiter");
    let is_free = |seen: &Snapshot| seen.holders.is_empty() && seen.waiters.is_empty();
    until_seen(bound, &what, locks, name, is_free).await;
}

/// Acquires `name` exclusively.
///
/// # Panics
/// When that fails or takes longer than `bound`.
pub async fn acquire_within(bound: Duration, locks: &Locks, name: &str) -> Guard {
    let lock = locks.lock(name);
    within(bound, &format!("{name:?} is acquired"), lock.acquire()).await.expect("acquired")
}

/// Releases `guard`.
///
/// # Panics
/// When that fails or takes longer than `bound`.
pub async fn release_within(bound: Duration, guard: Guard) {
    let what = format!("{} is released", guard.name());
    within(bound, &what, guard.release()).await.expect("released");
}

/// A task that waits for a lock.
pub type Waiter = JoinHandle<Result<Guard>>;

/// Starts a task that waits for `lock` as long as the lock says.
pub fn spawn_waiter(lock: Lock) -> Waiter {
    tokio::spawn(async move { lock.acquire().await })
}

/// Awaits the grant of a [waiter](spawn_waiter).
///
/// # Panics
/// When it is not granted within `bound`.
pub async fn until_granted_within(bound: Duration, what: &str, waiter: Waiter) -> Guard {
    within(bound, what, waiter).await.expect("the waiter did not panic").expect("granted")
}

/// Asserts the kind of an error.
///
/// # Panics
/// When it is of another kind.
pub fn assert_kind(error: &Error, kind: ErrorKind) {
    assert_eq!(error.kind(), kind, "{error}");
}

fn timed_out(bound: Duration, what: &str) -> String {
    format!("timed out after {bound:?}: expected that {what}")
}
