//! Servers whose wall clock jumps: every lease on Redis depends on it.

use std::time::{SystemTime, UNIX_EPOCH};

use fencelock_core::ErrorKind;
use fencelock_testkit::proxy::{Direction, Proxy, framing};
use fencelock_testkit::servers::{RedisOptions, ServerClock, TestRedis};
use tokio::time::Instant;

use crate::shared::held_on_fast_clocks;
use crate::support::*;

/// A server, and the control of its clock.
struct Skewed {
    server: TestRedis,
    clock: ServerClock,
}

impl Skewed {
    async fn start() -> Skewed {
        let clock = ServerClock::of("redis-server").expect("a clock");
        let server = RedisOptions::new().program(clock.program()).start().await;
        Skewed { server: server.expect("a server starts"), clock }
    }

    /// Sets the clock to `seconds` after the right time.
    async fn is_ahead_by(&self, seconds: i64) {
        self.clock.is_ahead_by(seconds).expect("written");
        let right = SystemTime::now().duration_since(UNIX_EPOCH).expect("later");
        let right = i64::try_from(right.as_secs()).expect("soon");
        until("the clock has jumped", async || {
            let time = redis_command(&self.server, &["TIME"]).await;
            let shown: i64 = time.lines().next().and_then(|s| s.parse().ok()).expect("a time");
            (shown - right - seconds).abs() < 30
        })
        .await;
    }
}

/// Row 33. A clock that jumps ahead ends leases too early, as documented: the holder is notified, and
/// the token still rises, also when the clock jumps back. (The token's key lives for an hour at
/// least: a jump ahead by more is a loss of data, and together with a jump back the token may fall.)
/// Fault 33: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_whatever_the_servers_clock_does() {
    let skewed = Skewed::start().await;
    let server = &skewed.server;
    let (one, other) = (direct(server, "ttl=4s").await, direct(server, "ttl=30s").await);
    let mut last = None;
    for seconds in [0, 40, 0, -40, 3600, -3600, 0] {
        let held = acquire(&one, "lock").await;
        assert!(last < Some(held.fencing_token()), "before {seconds}");
        let waiters = [spawn_waiter(&other, "lock"), spawn_waiter(&one, "lock")];
        until_queued(&one, "lock", 2).await;
        skewed.is_ahead_by(seconds).await;
        // Kept or lost, but never a holder without an expiry.
        drop(held);
        let tokens = in_turns(waiters).await;
        assert!(tokens.len() == 2 && tokens.is_sorted(), "{seconds}: {tokens:?}");
        assert!(last < Some(tokens[0]), "{seconds}: {tokens:?} after {last:?}");
        last = tokens.last().copied();
        drained(server).await;
    }
}

/// Row 33: the lock is lost at once, and its holder is notified.
/// Fault 33: redis (permitted: a jump ahead ends leases too early)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_jump_ahead_ends_a_lease_and_its_holder_is_notified() {
    let skewed = Skewed::start().await;
    let (one, other) = (direct(&skewed.server, "ttl=4s").await, direct(&skewed.server, "").await);
    let lost = acquire(&one, "lock").await;
    let waiter = spawn_waiter(&other, "lock");
    until_queued(&one, "lock", 1).await;
    skewed.is_ahead_by(40).await;
    let next = until_granted(waiter).await;
    assert!(next.fencing_token() > lost.fencing_token());
    soon("the holder is notified", lost.lost()).await;
    drop(lost);
    assert!(is_busy(&one, "lock").await);
    release(next).await;
    drained(&skewed.server).await;
}

/// Row 35: its leases end one percent too early. The validity of a hold is shorter still, by the
/// margin of `validity::lease_end`.
/// Fault 35: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_runs_one_percent_fast_ends_no_lease_that_its_holder_trusts() {
    let Skewed { server, clock } = Skewed::start().await;
    let testbed =
        Testbed { proxy: Proxy::framed(server.addr(), framing::resp).await.unwrap(), server };
    let began = Instant::now();
    let ticking = tokio::spawn(async move {
        loop {
            let ahead = i64::try_from(began.elapsed().as_micros() / 100).expect("soon");
            clock.is_ahead_by_micros(ahead).expect("written");
            tokio::time::sleep(ms(1)).await;
        }
    });
    let (near, far) = (testbed.direct("ttl=30s").await, testbed.through_proxy("ttl=2500ms").await);
    held_on_fast_clocks(&near, &far, || {
        testbed.proxy.black_hole(Direction::ToServer);
        testbed.proxy.black_hole(Direction::ToClient);
    })
    .await;
    testbed.proxy.heal().await.unwrap();
    let fast = began.elapsed().as_micros() / 200;
    let right = SystemTime::now().duration_since(UNIX_EPOCH).expect("later").as_micros();
    let ahead = redis_command(&testbed.server, &["TIME"]).await;
    let shown: u128 = ahead
        .lines()
        .fold(0, |sum, part| sum * 1_000_000 + part.parse::<u128>().expect("a number"));
    assert!(shown > right + fast, "its clock was not fast");
    ticking.abort();
    drained(&testbed.server).await;
}

/// The clock of a board without a battery, until it gets the time; all leases would end then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_was_never_set_is_refused_with_a_reason() {
    const MONTH: i64 = 30 * 86_400;
    let skewed = Skewed::start().await;
    let server = &skewed.server;
    let locks = direct(server, "ttl=30s").await;
    let held = acquire(&locks, "lock").await;
    let right = SystemTime::now().duration_since(UNIX_EPOCH).expect("later").as_secs();
    skewed.is_ahead_by(MONTH - i64::try_from(right).expect("soon")).await;
    let refused = [
        try_connect(&format!("redis://{}/0", server.addr())).await.expect_err("no such clock"),
        // Connected clients get the error as soon as they would have to wait, or to share.
        soon("it is refused", locks.lock("lock").acquire()).await.expect_err("no such clock"),
        soon("it is refused", locks.rw_lock("doc").read().acquire())
            .await
            .expect_err("no such clock"),
    ];
    for error in refused {
        assert_kind(&error, ErrorKind::Refused);
        assert!(
            !error.is_retryable() && error_chain(&error).contains("clock"),
            "{}",
            error_chain(&error)
        );
    }
    skewed.is_ahead_by(0).await;
    drop(held);
    until_free(&locks, "lock").await;
    release(acquire(&locks, "lock").await).await;
    drained(server).await;
}
