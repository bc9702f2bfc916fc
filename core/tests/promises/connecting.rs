//! Connecting waits for a store that is not there yet, within bounds, and fails at once if a retry
//! cannot help; while the connection is made in the background every acquisition keeps its own bounds.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use fencelock_core::memory::{self, Memory};
use fencelock_core::url::{Connecting, Scheme, StoreUrl, connect, connect_lazy, connect_within};
use fencelock_core::{Error, ErrorKind, Lock, Locks, Modes, Operation, Reach, Result};
use tokio::time::{Instant, sleep, timeout};

use crate::scripted::{SECOND, Script, TTL, ms, waiting};

/// `steps://TEST/STEP,STEP,…`: each attempt to connect takes the next step, and later ones repeat the
/// last. Each test has a host of its own, which counts its attempts.
const STEPS: Scheme = Scheme {
    names: &["steps"],
    example: "steps://test/away,up",
    connect: attempt,
    unanswered: None,
};

static ATTEMPTS: Mutex<Option<HashMap<String, usize>>> = Mutex::new(None);

fn attempts(test: &str) -> usize {
    let attempts = ATTEMPTS.lock().unwrap();
    attempts.as_ref().and_then(|all| all.get(test)).copied().unwrap_or(0)
}

fn attempt(url: StoreUrl) -> Connecting {
    let count = {
        let mut attempts = ATTEMPTS.lock().unwrap();
        let count = attempts.get_or_insert_default().entry(url.authority().to_owned());
        let count = count.or_insert(0);
        *count += 1;
        *count
    };
    Box::pin(async move {
        let settings = url.params(&["own"])?.settings()?;
        let steps: Vec<&str> = url.path().trim_start_matches('/').split(',').collect();
        match steps[count.min(steps.len()) - 1] {
            "away" => Err(Error::new(ErrorKind::Unreachable, "connection refused")),
            "denied" => Err(Error::new(ErrorKind::Refused, "wrong password")),
            "silent" => std::future::pending().await,
            "slow" => {
                sleep(8 * SECOND).await;
                Memory::new().locks(settings)
            }
            _ => Memory::new().locks(settings),
        }
    })
}

const SCHEMES: &[Scheme] = &[STEPS, memory::SCHEME];

fn cause(error: &Error) -> String {
    std::error::Error::source(error).expect("a cause").to_string()
}

async fn took<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let start = Instant::now();
    (work.await, start.elapsed())
}

/// Checks a duration on a paused clock, with a tolerance for timers.
fn assert_about(took: Duration, bound: Duration) {
    assert!(took >= bound && took <= bound + ms(5), "{took:?} instead of {bound:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_not_there_yet_is_waited_for() {
    let locks = connect(SCHEMES, "steps://waited-for/away,away,away,silent,up").await.unwrap();
    assert_eq!(attempts("waited-for"), 5);
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_comes_is_unreachable_at_the_bound() {
    let url = "steps://me:hunter2@never/away?unreachable_after=10s";
    let (error, time) = took(connect(SCHEMES, url)).await;
    let error = error.unwrap_err();
    assert_about(time, 10 * SECOND);
    assert_eq!(
        (error.kind(), error.operation()),
        (ErrorKind::Unreachable, Some(Operation::Connect))
    );
    let says = error.to_string();
    assert!(says.contains("on steps://me:***@never/away: "), "{says}");
    assert!(says.contains("unreachable_after=10s"), "{says}");
    assert!(cause(&error).contains("connection refused"), "{error:?}");
    // With a backoff: soon at first, then about once a second.
    let attempts = attempts("never");
    assert!((10..=30).contains(&attempts), "{attempts} attempts");
}

#[tokio::test(start_paused = true)]
async fn an_error_that_a_retry_cannot_fix_is_returned_at_once() {
    let (error, time) = took(connect(SCHEMES, "steps://denied/away,denied,up")).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Refused);
    assert!(time < SECOND, "{time:?}");
    assert_eq!(attempts("denied"), 2);
    let (error, time) = took(connect(SCHEMES, "steps://bad/up?tll=2s")).await;
    assert_eq!((error.unwrap_err().kind(), time), (ErrorKind::InvalidArgument, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_timed_out_gives_the_next_more_time() {
    let (locks, time) = took(connect(SCHEMES, "steps://slow/slow")).await;
    locks.unwrap();
    assert_eq!(attempts("slow"), 2);
    assert!(time >= 13 * SECOND && time < 14 * SECOND, "{time:?}");
}

#[tokio::test(start_paused = true)]
async fn a_callers_limit_is_the_bound_of_its_connection() {
    for (step, limit) in [("away", SECOND), ("silent", SECOND), ("away", 2 * TTL)] {
        let url = format!("steps://limit-{step}-{limit:?}/{step}");
        let (error, time) = took(connect_within(SCHEMES, &url, limit)).await;
        let error = error.unwrap_err();
        assert_about(time, limit);
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.to_string().contains("within the wait limit of 1"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_zero_makes_one_attempt() {
    for (step, bound) in [("away", Duration::ZERO), ("silent", ms(2500)), ("slow", ms(2500))] {
        let test = format!("once-{step}");
        let url = format!("steps://{test}/{step},up");
        let (error, time) = took(connect_within(SCHEMES, &url, Duration::ZERO)).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Unreachable);
        assert_about(time, bound);
        assert_eq!(attempts(&test), 1);
    }
    let url = "steps://once-briefly/silent?unreachable_after=100ms";
    let (error, time) = took(connect_within(SCHEMES, url, Duration::ZERO)).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unreachable);
    assert_about(time, ms(100));
}

#[tokio::test(start_paused = true)]
async fn locks_are_there_before_their_store_is() {
    let url = "steps://lazy/away,away,up?ttl=2s&token_epoch=3";
    let (locks, time) = took(async { connect_lazy(SCHEMES, url).unwrap() }).await;
    assert_eq!(time, Duration::ZERO);
    assert_eq!(locks.profile().modes, Modes { shared: false, permits: false });
    assert!(!locks.profile().exclusion_fails_when.is_empty(), "it guarantees nothing yet");
    let lock = locks.lock("a");
    let guard = lock.acquire().await.unwrap();
    assert!(guard.remaining() <= 2 * SECOND && guard.fencing_token().get() >> 56 == 3);
    assert!(lock.try_acquire().await.unwrap().is_none(), "the same lock, and it is held");
    assert_eq!((locks.profile().store, locks.profile().reach), ("memory", Reach::Process));
    assert!(locks.profile().modes.shared);
    assert_eq!(locks.inspect("a").await.unwrap().holders.len(), 1);
    guard.release().await.unwrap();
    assert_eq!(attempts("lazy"), 3);
    locks.close().await.unwrap();
    assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn each_acquisition_keeps_its_own_bounds_while_there_is_no_connection() {
    for step in ["away", "silent"] {
        let locks = connect_lazy(SCHEMES, &format!("steps://bounds-{step}/{step}")).unwrap();
        for (lock, bound) in [
            (locks.lock("a"), TTL),
            (locks.lock("a").wait_at_most(Duration::ZERO), TTL),
            (locks.lock("a").wait_at_most(SECOND), SECOND),
            (locks.lock("a").wait_at_most(2 * TTL), TTL),
            (locks.lock("a").unreachable_after(SECOND), SECOND),
        ] {
            let (error, time) = took(lock.acquire()).await;
            let error = error.unwrap_err();
            assert_eq!((error.kind(), error.lock()), (ErrorKind::Unreachable, Some("a")));
            assert_about(time, bound);
            let (tried, time) = took(lock.try_acquire()).await;
            assert_eq!(tried.unwrap_err().kind(), ErrorKind::Unreachable, "never a busy lock");
            assert_about(time, bound);
        }
        let barrier = locks.barrier("phase", 2).wait_at_most(SECOND);
        let (error, time) = took(barrier.arrive_and_wait()).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Unreachable);
        assert_about(time, SECOND);
        let (health, time) = took(locks.health(SECOND)).await;
        assert!(!health.connected && health.answered.is_none() && health.error.is_some());
        assert_about(time, SECOND);
        for error in
            [locks.until_connected().await.unwrap_err(), locks.inspect("a").await.unwrap_err()]
        {
            assert_eq!(error.kind(), ErrorKind::Unreachable);
            assert!(error.to_string().contains("unreachable_after=30s"), "{error}");
        }
    }
}

/// A store on this machine knows when only the load of the machine delays its answer.
#[tokio::test(start_paused = true)]
async fn a_wait_limit_on_a_busy_machine_is_reported_as_for_a_busy_lock() {
    fn unanswered() -> Option<Error> {
        Some(Error::new(ErrorKind::Busy, "the machine is busy"))
    }
    let schemes = SCHEMES.iter().map(|scheme| Scheme { unanswered: Some(unanswered), ..*scheme });
    let schemes: Vec<Scheme> = schemes.collect();
    for (url, kind) in [
        ("steps://busy/silent", ErrorKind::WaitTimedOut),
        // The last attempt was refused, and none is in flight.
        ("steps://busy-away/away", ErrorKind::Unreachable),
    ] {
        let error = connect_within(&schemes, url, 3 * SECOND).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{url}: {error:?}");
    }
    let once = connect_within(&schemes, "steps://busy-once/silent", Duration::ZERO).await;
    assert_eq!(once.unwrap_err().kind(), ErrorKind::Busy);
    let error = connect(&schemes, "steps://busy-for-long/silent").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error:?}");
    assert!(format!("{error:?}").contains("the machine is busy"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn the_wait_limit_counts_the_connection() {
    let locks = connect_lazy(SCHEMES, "steps://counts/slow").unwrap();
    let holder = locks.lock("a");
    let held = tokio::spawn(async move { holder.acquire().await });
    let (error, time) = took(locks.lock("a").wait_at_most(20 * SECOND).acquire()).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitTimedOut, "{error}");
    assert!(error.to_string().contains("not granted within 20s"), "{error}");
    assert_about(time, 20 * SECOND);
    held.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_wait_may_have_begun_before_the_call() {
    let queues = |_| async { waiting(SECOND) };
    let (_store, locks) = Script::new().attempts(queues).connect();
    let start = Instant::now();
    sleep(2 * SECOND).await;
    let lock = locks.lock("a").wait_at_most(3 * SECOND).waiting_since(start);
    let (error, time) = took(lock.acquire()).await;
    assert_about(time, SECOND);
    assert!(error.unwrap_err().to_string().contains("not granted within 3s"));
}

#[tokio::test(start_paused = true)]
async fn an_invalid_url_is_reported_before_there_is_a_connection() {
    for url in [
        "steps://early/up?tll=2s",
        "steps://early/up?ttl=0s",
        "steps://early/up?unreachable_after=1ns",
        "pigeon://early/",
        "mem://host",
        "nonsense",
    ] {
        let error = connect_lazy(SCHEMES, url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}: {error}");
        assert_eq!(error.operation(), Some(Operation::Connect));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_connection_is_retried_only_for_a_new_caller() {
    let locks = connect_lazy(SCHEMES, "steps://asked/denied,denied,up").unwrap();
    let (error, time) = took(locks.lock("a").acquire()).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(time < SECOND, "{time:?}");
    let made = attempts("asked");
    sleep(1_000 * SECOND).await;
    assert_eq!(attempts("asked"), made, "without a caller");
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn closing_ends_the_attempts_and_the_waits_for_them() {
    for step in ["away", "silent"] {
        let test = format!("closes-{step}");
        let locks = connect_lazy(SCHEMES, &format!("steps://{test}/{step}")).unwrap();
        let lock = locks.lock("a");
        let waiter = tokio::spawn(async move { lock.acquire().await });
        sleep(3 * SECOND).await;
        let (closed, time) = took(locks.close()).await;
        closed.unwrap();
        assert_eq!(time, Duration::ZERO);
        assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        let made = attempts(&test);
        sleep(100 * SECOND).await;
        assert_eq!(locks.lock("a").acquire().await.unwrap_err().kind(), ErrorKind::Closed);
        locks.close().await.unwrap();
        assert_eq!(attempts(&test), made);
    }
}

#[tokio::test(start_paused = true)]
async fn the_attempts_end_with_the_last_lock_that_could_use_them() {
    let locks = connect_lazy(SCHEMES, "steps://dropped/away").unwrap();
    let lock = locks.lock("a");
    drop(locks);
    sleep(3 * SECOND).await;
    let made = attempts("dropped");
    sleep(3 * SECOND).await;
    assert!(attempts("dropped") > made, "a lock still may be acquired");
    drop(lock);
    let made = attempts("dropped");
    sleep(100 * SECOND).await;
    assert_eq!(attempts("dropped"), made);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_acquisition_does_not_interrupt_the_connecting() {
    let locks = connect_lazy(SCHEMES, "steps://cancelled/slow").unwrap();
    let lock = locks.lock("a");
    timeout(6 * SECOND, lock.acquire()).await.unwrap_err();
    locks.until_connected().await.unwrap();
    assert_eq!(attempts("cancelled"), 2, "none of them was restarted");
    lock.try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
}

#[test]
fn the_end_of_the_runtime_ends_the_wait() -> Result<()> {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let connecting = runtime();
    let locks: Locks =
        connecting.block_on(async { connect_lazy(SCHEMES, "steps://ended/silent") })?;
    drop(connecting);
    let error = runtime().block_on(locks.lock("a").acquire()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    runtime().block_on(locks.close())
}

/// A grant of the memory store reserves as many tokens as it may have turns.
async fn reserved(lock: Lock) -> i64 {
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let guard = lock.acquire().await.unwrap();
        tokens.push(i64::from(guard.fencing_token()));
        guard.release().await.unwrap();
    }
    tokens[1] - tokens[0]
}

#[tokio::test]
async fn the_url_s_hand_offs_are_for_what_can_have_them() {
    let locks = connect(&[memory::SCHEME], "mem://?local_handoffs=1024").await.unwrap();
    let lock = || locks.lock("a");
    assert_eq!(reserved(lock()).await, 1024);
    assert_eq!(reserved(lock().local_handoffs(3)).await, 3, "its own number counts");
    assert_eq!(reserved(lock().local_handoffs(1)).await, 1);
    assert_eq!(reserved(lock().fixed_lease(SECOND)).await, 1);
    assert_eq!(reserved(locks.rw_lock("a").write()).await, 1);
    assert_eq!(reserved(locks.rw_lock("a").read()).await, 1);
    assert_eq!(reserved(locks.semaphore("a", 2).permits(1)).await, 1);
    // Only who asks for both is wrong.
    for both in
        [lock().local_handoffs(3).fixed_lease(SECOND), lock().fixed_lease(SECOND).local_handoffs(3)]
    {
        assert_eq!(both.acquire().await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    for wrong in ["0", "1025", "many", "-1"] {
        let error = connect(&[memory::SCHEME], &format!("mem://?local_handoffs={wrong}")).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{wrong}");
        assert!(error.to_string().contains("local_handoffs"), "{error}");
    }
}
