//! What the fault tests of every store do with it, each bounded and each with its own words.
//!
//! Bounds are generous: they tell late on a busy machine from never, and are no promises.

use std::process::Child;
use std::time::Duration;

use fencelock_core::{Error, ErrorKind, Guard, Locks, Moment, Result};
use rustix::process::Pid;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::servers::TestRedis;
use fencelock_conformance::stopping;

/// For what should happen at once.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// By how much a busy machine may make a timer late.
pub const SLACK: Duration = Duration::from_secs(1);

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

/// Connects, in more than one try where a busy machine needs longer than a connection may take.
///
/// # Panics
/// When that fails for good.
pub async fn connect_retrying<F>(connect: impl Fn() -> F) -> Locks
where
    F: Future<Output = Result<Locks>>,
{
    let connecting = async {
        loop {
            match connect().await {
                Err(error) if error.is_retryable() => {
                    println!("again: {error}");
                    sleep(ms(50)).await;
                }
                connected => return connected.expect("the store connects"),
            }
        }
    };
    soon("the store connects", connecting).await
}

/// Acquires.
///
/// # Panics
/// When that fails.
pub async fn acquire(locks: &Locks, name: &str) -> Guard {
    let lock = locks.lock(name);
    soon(&format!("{name} is acquired"), lock.acquire()).await.expect("acquired")
}

/// Releases.
///
/// # Panics
/// When that fails.
pub async fn release(guard: Guard) {
    let what = format!("{} is released", guard.name());
    soon(&what, guard.release()).await.expect("released");
}

/// Waits in a task of its own for as long as it takes.
pub fn spawn_waiter(locks: &Locks, name: &str) -> JoinHandle<Result<Guard>> {
    let lock = locks.lock(name);
    tokio::spawn(async move { lock.acquire().await })
}

/// Awaits the grant of a [waiter](wait_for).
///
/// # Panics
/// When it is not granted.
pub async fn until_granted(waiter: JoinHandle<Result<Guard>>) -> Guard {
    soon("a waiter is granted", waiter).await.expect("no panic").expect("granted")
}

/// Awaits that so many wait for `name`.
///
/// # Panics
/// When they do not.
pub async fn until_queued(locks: &Locks, name: &str, count: usize) {
    until(&format!("{count} wait for {name}"), async || {
        locks.inspect(name).await.is_ok_and(|seen| seen.waiters.len() == count)
    })
    .await;
}

/// Awaits that nobody holds `name` or waits for it.
///
/// # Panics
/// When somebody does.
pub async fn until_free(locks: &Locks, name: &str) {
    until(&format!("nobody is left of {name}"), async || {
        let seen = locks.inspect(name).await;
        seen.is_ok_and(|seen| seen.holders.is_empty() && seen.waiters.is_empty())
    })
    .await;
}

/// Awaits a renewal that was sent after this was called.
///
/// # Panics
/// When there is none.
pub async fn until_renewed(locks: &Locks, guard: &Guard, ttl: Duration) {
    let now = locks.now();
    let wanted = now + ttl - (ttl / 50 + ms(10));
    until(&format!("{} is renewed", guard.name()), async || {
        assert!(guard.is_held(), "{} was lost", guard.name());
        guard.valid_until() >= wanted
    })
    .await;
}

/// Awaits the loss of a lock that no renewal can have reached since `cut`.
///
/// # Panics
/// When it is told later than [`SLACK`] after the end of the lease.
pub async fn assert_lost_in_time(locks: &Locks, guard: &Guard, cut: Moment, ttl: Duration) {
    soon("the holder is told", guard.lost()).await;
    assert!(!guard.is_held());
    let late = locks.now().duration_since(cut + ttl);
    assert!(late < SLACK, "told {late:?} after the end of its lease");
}

/// The error of a wait that cannot get anything.
///
/// # Panics
/// When it gets something.
pub async fn acquire_error(locks: &Locks, name: &str, wait: Duration) -> Error {
    let lock = locks.lock(name).wait_at_most(wait);
    soon("a short wait ends", lock.acquire()).await.expect_err("there is nothing to get")
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

/// The words of an error and of what caused it.
#[must_use]
pub fn error_chain(error: &Error) -> String {
    let mut words = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}

/// Stops a child process as SIGSTOP does, and waits until all its threads have stopped.
///
/// # Panics
/// When it does not stop, or has ended.
pub async fn stop_process(child: &Child) {
    let stopping = stopping::stop(Pid::from_child(child));
    soon("all threads stop", stopping).await.expect("the process lives");
}

/// What a Redis answers.
///
/// # Panics
/// When it does not, or with an error.
pub async fn redis_command(server: &TestRedis, command: &[&str]) -> String {
    server.command(command).await.unwrap_or_else(|error| panic!("{command:?}: {error}"))
}
