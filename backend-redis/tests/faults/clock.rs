//! Servers whose wall clock jumps: every lease on Redis depends on it.

use fencelock_core::ErrorKind;
use fencelock_testkit::clocks::{jump, one_percent_fast, right_time};
use fencelock_testkit::proxy::{Direction, Proxy, framing};
use fencelock_testkit::scenes;
use fencelock_testkit::servers::{RedisOptions, ServerClock, TestRedis};

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

    async fn is_ahead_by(&self, seconds: i64) {
        jump(&self.clock, seconds, async || {
            (time_us(&self.server).await / 1_000_000).cast_signed()
        })
        .await;
    }
}

/// The time that it shows, in microseconds.
async fn time_us(server: &TestRedis) -> u64 {
    let time = redis_command(server, &["TIME"]).await;
    time.lines().fold(0, |sum, part| sum * 1_000_000 + part.parse::<u64>().expect("a number"))
}

/// Row 33. A clock that jumps ahead ends leases too early, as documented: the holder is notified, and
/// the token still rises, also when the clock jumps back. (The token's key lives for an hour at
/// least: a jump ahead by more is a loss of data, and together with a jump back the token may fall.)
/// Fault 33: redis (permitted: a jump ahead ends leases too early)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_whatever_the_servers_clock_does() {
    let skewed = Skewed::start().await;
    let server = &skewed.server;
    let (one, other) = (direct(server, "ttl=4s").await, direct(server, "ttl=30s").await);
    let jump = async |seconds| skewed.is_ahead_by(seconds).await;
    scenes::jumping_clock(&one, &other, jump, async || drained(server).await).await;
}

/// Row 35: its leases end one percent too early. The validity of a hold is shorter still, by the
/// margin of `validity::lease_end`.
/// Fault 35: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_runs_one_percent_fast_ends_no_lease_that_its_holder_trusts() {
    let Skewed { server, clock } = Skewed::start().await;
    let testbed =
        Testbed { proxy: Proxy::framed(server.addr(), framing::resp).await.unwrap(), server };
    let (near, far) = (testbed.direct("ttl=30s").await, testbed.through_proxy("ttl=2500ms").await);
    let scene = scenes::held_on_fast_clocks(&near, &far, || {
        testbed.proxy.black_hole(Direction::ToServer);
        testbed.proxy.black_hole(Direction::ToClient);
    });
    let shown = async || {
        testbed.proxy.heal().await.unwrap();
        vec![time_us(&testbed.server).await]
    };
    one_percent_fast(&[clock], scene, shown).await;
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
    skewed.is_ahead_by(MONTH - right_time().as_secs().cast_signed()).await;
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
