//! Shared by the tests: a server, with a proxy, clients, and waiting for events.
//!
//! Bounds are generous: they distinguish late on a busy machine from never, and are not promises.

use std::time::Duration;

use fencelock_conformance::ProtectedRegister;
use fencelock_conformance::waiting::Waiter;
use fencelock_core::{Error, ErrorKind, Guard, Locks, Result, url};
use fencelock_redis::SCHEME;
pub(crate) use fencelock_testkit::helpers::*;
use fencelock_testkit::proxy::{Proxy, framing};
use fencelock_testkit::servers::{RedisOptions, TestRedis};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

/// Connects like a user's program.
pub(crate) async fn try_connect(url: &str) -> Result<Locks> {
    catch_panics();
    url::connect(&[SCHEME], url).await
}

/// Connects in a single attempt.
pub(crate) async fn connect_once(url: &str) -> Result<Locks> {
    url::connect_within(&[SCHEME], url, ms(0)).await
}

pub(crate) async fn connect(url: &str) -> Locks {
    connect_retrying(|| try_connect(url)).await
}

/// A server, reachable directly and through a proxy.
pub(crate) struct Testbed {
    pub(crate) server: TestRedis,
    pub(crate) proxy: Proxy,
}

impl Testbed {
    pub(crate) async fn start() -> Testbed {
        Testbed::with(RedisOptions::new()).await
    }

    pub(crate) async fn with(options: RedisOptions) -> Testbed {
        let server = options.start().await.expect("a redis-server starts");
        let proxy = Proxy::framed(server.addr(), framing::resp).await.expect("a proxy starts");
        Testbed { server, proxy }
    }

    /// A client that connects through the proxy, with these URL parameters.
    pub(crate) async fn through_proxy(&self, params: &str) -> Locks {
        connect(&format!("redis://{}/0?{params}", self.proxy.addr())).await
    }

    /// A client that the proxy's faults do not reach.
    pub(crate) async fn direct(&self, params: &str) -> Locks {
        direct(&self.server, params).await
    }
}

pub(crate) async fn set(server: &TestRedis, name: &str, value: &str) {
    redis_command(server, &["CONFIG", "SET", name, value]).await;
}

pub(crate) async fn direct(server: &TestRedis, params: &str) -> Locks {
    connect(&format!("redis://{}/0?{params}", server.addr())).await
}

/// A server of the test's own, and a client of it.
pub(crate) async fn started(params: &str) -> (TestRedis, Locks) {
    let server = TestRedis::start().await.expect("a redis-server starts");
    let locks = direct(&server, params).await;
    (server, locks)
}

/// Releases what is held, and then what its waiter gets.
pub(crate) async fn hand_over(held: Guard, waiter: Waiter) {
    release(held).await;
    release(until_granted(waiter).await).await;
}

/// A waiter in the queue, as the last of `count`.
pub(crate) async fn queued(locks: &Locks, name: &str, count: usize) -> Waiter {
    let waiter = spawn_waiter(locks, name);
    until_queued(locks, name, count).await;
    waiter
}

/// A lock that `one` holds, and a waiter of `other` in its queue.
pub(crate) async fn contested(one: &Locks, other: &Locks, name: &str) -> (Guard, Waiter) {
    let (held, waiter) = (acquire(one, name).await, spawn_waiter(other, name));
    until_queued(one, name, 1).await;
    (held, waiter)
}

/// How often the server executed this command.
pub(crate) async fn calls(server: &TestRedis, command: &str) -> u64 {
    let stats = redis_command(server, &["INFO", "commandstats"]).await;
    let start = format!("cmdstat_{command}:calls=");
    let count = stats.lines().find_map(|line| line.strip_prefix(&start)?.split(',').next());
    count.map_or(0, |count| count.parse().expect("a number"))
}

/// Asserts that a wait ended without a grant, and that a reason in the error is `why`.
pub(crate) fn assert_in_vain(error: &Error, says: &str) {
    assert_kind(error, ErrorKind::Unreachable);
    let words = error_chain(error);
    assert!(std::error::Error::source(error).is_none() || words.contains(says), "{words}");
}

/// A raw connection for commands.
pub(crate) struct Operator(TcpStream);

impl Operator {
    pub(crate) async fn of(server: &TestRedis) -> Operator {
        Operator(TcpStream::connect(server.addr()).await.expect("a connection"))
    }

    pub(crate) async fn says(&mut self, command: &str) -> String {
        self.0.write_all(format!("{command}\r\n").as_bytes()).await.expect("a question");
        let mut answer = [0; 256];
        let read = soon("an answer", self.0.read(&mut answer)).await.expect("an answer");
        String::from_utf8_lossy(&answer[..read]).into_owned()
    }
}

pub(crate) async fn leftovers(server: &TestRedis) -> Vec<String> {
    redis_leftovers(server, "").await.expect("the keys")
}

pub(crate) async fn drained(server: &TestRedis) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = leftovers(server).await;
        if left.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "still there: {left:?}");
        sleep(ms(10)).await;
    }
    assert_no_panics();
}

/// Two clients hold the lock that a failover loses: a grant after `isolate` reaches no replica, and `kill` has
/// one take over. The resource accepts the later one's write, and rejects the earlier one's after it.
pub(crate) async fn forgotten_in_a_failover(
    (one, other): (&Locks, &Locks),
    ttl: Duration,
    isolate: impl AsyncFnOnce(),
    kill: impl AsyncFnOnce(),
) {
    assert!(one.profile().exclusion_fails_when.join("; ").contains("failover"));
    let earlier = acquire(one, "lock").await;
    let first = earlier.fencing_token();
    release(earlier).await;
    isolate().await;
    let lost = acquire(one, "lock").await;
    let register = ProtectedRegister::checking();
    assert!(lost.fencing_token() > first && register.write(lost.fencing_token().get(), 1));
    kill().await;
    // Allowed: the new master grants a lock that is still valid on the old one.
    let second = acquire(other, "lock").await;
    the_second_writes_and_the_first_cannot(&register, &second, &lost);
    soon("the holder is notified", lost.lost()).await;
    drop(lost);
    // Its release does not free the other's lock.
    until_renewed(other, &second, ttl).await;
    release(second).await;
    assert_eq!((register.read(), register.stale_writes()), (2, 0));
}

/// Two clients hold the lock that a failover lost: the resource accepts the later one's write, and
/// rejects the earlier one's after it.
pub(crate) fn the_second_writes_and_the_first_cannot(
    register: &ProtectedRegister,
    second: &Guard,
    first: &Guard,
) {
    assert!(second.fencing_token() > first.fencing_token());
    assert!(register.write(second.fencing_token().get(), 2));
    assert!(!register.write(first.fencing_token().get(), 3), "a stale write was taken");
}
