//! The steps of the fault tests of every store, each of them bounded in time.
//!
//! Bounds are generous: they distinguish late on a busy machine from never, and are not guarantees.

use std::process::Child;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use fencelock_conformance::stopping;
use fencelock_conformance::waiting::{
    self, Waiter, acquire_within, release_within, until_free_within, until_granted_within,
    until_queued_within, until_within,
};
pub use fencelock_conformance::waiting::{assert_kind, within};
use fencelock_core::{Error, ErrorKind, FencingToken, Guard, Locks, Moment, Result};
use futures_util::future::join_all;
use rustix::process::Pid;
use tokio::time::{Instant, sleep};

use crate::servers::TestRedis;

/// The keys of holders and waiters whose names contain `prefix`. Last tokens and evictions stay, for hours, and the
/// record of a quorum's node for ever.
///
/// # Errors
/// When the server does not answer.
pub async fn redis_leftovers(server: &TestRedis, prefix: &str) -> std::io::Result<Vec<String>> {
    // A key may contain a newline. The prefix has no character that a pattern would interpret.
    let plain = "local keys = redis.call('KEYS', '*' .. ARGV[1] .. '*')
        for i, key in ipairs(keys) do keys[i] = string.gsub(key, '%c', '?') end
        return keys";
    let keys = server.command(&["EVAL", plain, "0", prefix]).await?;
    let of_names = |key: &str| key.ends_with("}:f") || key.contains("}:e:");
    let of_claims = |key: &&str| !key.is_empty() && !of_names(key) && *key != "fencelock:redlock";
    Ok(keys.lines().filter(of_claims).map(str::to_owned).collect())
}

/// The bound of every event that should happen at once.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How late a timer may be on a busy machine.
pub const SLACK: Duration = Duration::from_secs(1);

/// A duration in milliseconds.
#[must_use]
pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Awaits an event that should happen at once.
///
/// # Panics
/// After [`PATIENCE`].
pub async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    within(PATIENCE, what, event).await
}

/// Awaits a condition that no event announces.
///
/// # Panics
/// After [`PATIENCE`].
pub async fn until(what: &str, condition: impl AsyncFnMut() -> bool) {
    until_within(PATIENCE, what, condition).await;
}

/// The final answer to one request of a store: the caller repeats what a busy disk or server has not answered, as
/// the library does.
///
/// # Panics
/// After [`PATIENCE`], and for an error that is final.
pub async fn answer<T, F: Future<Output = Result<T>>>(request: impl Fn() -> F) -> T {
    let asked = Instant::now();
    loop {
        match request().await {
            Err(error) if error.is_retryable() && asked.elapsed() < PATIENCE => sleep(ms(10)).await,
            answer => return answer.expect("an answer"),
        }
    }
}

/// Connects, with retries for a busy machine that needs longer than one attempt may take.
///
/// # Panics
/// When that fails finally.
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

/// Acquires `name` exclusively.
///
/// # Panics
/// When that fails.
pub async fn acquire(locks: &Locks, name: &str) -> Guard {
    acquire_within(PATIENCE, locks, name).await
}

/// Releases `guard`.
///
/// # Panics
/// When that fails.
pub async fn release(guard: Guard) {
    release_within(PATIENCE, guard).await;
}

/// Starts a task that waits for `name` without a limit.
pub fn spawn_waiter(locks: &Locks, name: &str) -> Waiter {
    waiting::spawn_waiter(locks.lock(name))
}

/// Awaits the grant of a [waiter](spawn_waiter).
///
/// # Panics
/// When it is not granted.
pub async fn until_granted(waiter: Waiter) -> Guard {
    until_granted_within(PATIENCE, "a waiter is granted", waiter).await
}

/// Awaits that `count` claims wait for `name`.
///
/// # Panics
/// When they do not.
pub async fn until_queued(locks: &Locks, name: &str, count: usize) {
    until_queued_within(PATIENCE, locks, name, count).await;
}

/// Awaits that `name` has neither holder nor waiter.
///
/// # Panics
/// When it has one.
pub async fn until_free(locks: &Locks, name: &str) {
    until_free_within(PATIENCE, locks, name).await;
}

/// Awaits a renewal that was sent after this was called, or less than a fiftieth of the TTL before.
///
/// # Panics
/// When there is none.
pub async fn until_renewed(locks: &Locks, guard: &Guard, ttl: Duration) {
    let now = locks.now();
    let wanted = now + ttl - (ttl / 50 + ms(10));
    until(&format!("{} is renewed", guard.name()), async || {
        if !guard.is_held() {
            panic!("{} was lost: {}", guard.name(), guard.lost().await);
        }
        guard.valid_until() >= wanted
    })
    .await;
}

/// Awaits the loss of a lock that no renewal can have reached since `cut`.
///
/// # Panics
/// When it is reported seconds after the end of the lease, which no busy machine explains.
pub async fn assert_lost_in_time(locks: &Locks, guard: &Guard, cut: Moment, ttl: Duration) {
    soon("the holder is notified of the loss", guard.lost()).await;
    assert!(!guard.is_held());
    let late = locks.now().duration_since(cut + ttl);
    assert!(late < 5 * SLACK, "reported {late:?} after the end of its lease");
}

/// The error of an acquisition that must fail within `wait`.
///
/// # Panics
/// When the lock is granted.
pub async fn acquire_error(locks: &Locks, name: &str, wait: Duration) -> Error {
    let lock = locks.lock(name).wait_at_most(wait);
    soon("a short wait ends", lock.acquire()).await.expect_err("the acquisition must fail")
}

/// Whether a try finds `name` held.
///
/// # Panics
/// When the try fails.
pub async fn is_busy(locks: &Locks, name: &str) -> bool {
    let lock = locks.lock(name);
    soon("a try returns", lock.try_acquire()).await.expect("a try works").is_none()
}

/// The text of an error and of its causes.
#[must_use]
pub fn error_chain(error: &Error) -> String {
    crate::test_store::chain(error)
}

/// Stops a child process as SIGSTOP does, and waits until all its threads have stopped.
///
/// # Panics
/// When it does not stop, or has ended.
pub async fn stop_process(child: &Child) {
    let stopping = stopping::stop(Pid::from_child(child));
    soon("all threads stop", stopping).await.expect("the process lives");
}

/// Sends a command to a Redis server and returns the reply.
///
/// # Panics
/// When there is no reply, or it is an error.
pub async fn redis_command(server: &TestRedis, command: &[&str]) -> String {
    server.command(command).await.unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs all waiters, in any order; returns the tokens in the order of the grants.
///
/// # Panics
/// When one of them is not granted.
pub async fn in_turns(waiters: impl IntoIterator<Item = Waiter>) -> Vec<FencingToken> {
    let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
    for waiter in waiters {
        let report = report.clone();
        tokio::spawn(async move {
            let guard = until_granted(waiter).await;
            // The receiver is dropped only after all have reported.
            let _ = report.send(guard.fencing_token());
            release(guard).await;
        });
    }
    drop(report);
    let mut tokens = Vec::new();
    while let Some(token) = soon("the next is granted", reports.recv()).await {
        tokens.push(token);
    }
    tokens
}

/// Cancels every other waiter, and drops what the rest is granted.
///
/// # Panics
/// When one of the rest is not granted.
pub async fn cancel_every_other(waiters: Vec<Waiter>) {
    waiters.iter().skip(1).step_by(2).for_each(Waiter::abort);
    for (n, granted) in join_all(waiters).await.into_iter().enumerate() {
        match granted {
            Ok(guard) => drop(guard.expect("granted")),
            Err(gone) => assert!(gone.is_cancelled() && n % 2 == 1, "{gone}"),
        }
    }
}

/// Waits in vain, in short waits, until the error has the reason: on a busy machine one such wait may
/// end without a reply.
///
/// # Panics
/// When another error comes, or this reason does not.
pub async fn refused_with(locks: &Locks, name: &str, says: &str) {
    until(&format!("the reason is: {says}"), async || {
        let error = acquire_error(locks, name, ms(200)).await;
        assert_kind(&error, ErrorKind::Unreachable);
        error_chain(&error).contains(says)
    })
    .await;
}

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records panics in tasks that are not awaited: those of the tests have other locations.
pub fn catch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let place = panic.location().map(std::panic::Location::file).unwrap_or_default();
            if !place.contains("tests/") && !place.contains("testkit/") {
                let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
                panics.push(panic.to_string());
            }
            usual(panic);
        }));
    });
}

/// Asserts that nothing outside the tests has panicked since [`catch_panics`], in any test.
///
/// # Panics
/// When something has.
pub fn assert_no_panics() {
    let panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(panics.is_empty(), "{panics:?}");
}
