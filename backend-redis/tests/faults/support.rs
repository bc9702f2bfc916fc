//! What the tests share: a server behind a proxy, clients, and waiting for events.
//!
//! Bounds are generous: they tell late on a busy machine from never, and are no promises.

use std::sync::{Mutex, Once, PoisonError};

use fencelock_conformance::ProtectedRegister;
use fencelock_core::{Error, ErrorKind, FencingToken, Guard, Locks, Result, url};
use fencelock_redis::SCHEME;
pub(crate) use fencelock_testkit::helpers::*;
use fencelock_testkit::proxy::{Proxy, framing};
use fencelock_testkit::servers::{RedisOptions, TestRedis};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// As a user's program connects.
pub(crate) async fn try_connect(url: &str) -> Result<Locks> {
    catch_panics();
    url::connect(&[SCHEME], url).await
}

/// In a single attempt.
pub(crate) async fn connect_once(url: &str) -> Result<Locks> {
    url::connect_within(&[SCHEME], url, ms(0)).await
}

pub(crate) async fn connect(url: &str) -> Locks {
    connect_retrying(|| try_connect(url)).await
}

/// A server, past the proxy and through it.
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

    /// A client behind the proxy, with these URL parameters.
    pub(crate) async fn behind(&self, params: &str) -> Locks {
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

/// Has all waiters take turns, in whatever order; the tokens in the order of the grants.
pub(crate) async fn in_turns(
    waiters: impl IntoIterator<Item = JoinHandle<Result<Guard>>>,
) -> Vec<FencingToken> {
    let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
    for waiter in waiters {
        let report = report.clone();
        tokio::spawn(async move {
            let guard = until_granted(waiter).await;
            // Who asked listens until all have said something.
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

/// Asserts that the store was asked in vain, and that the error says why, if it says why.
pub(crate) fn assert_in_vain(error: &Error, says: &str) {
    assert_kind(error, ErrorKind::Unreachable);
    let words = error_chain(error);
    assert!(std::error::Error::source(error).is_none() || words.contains(says), "{words}");
}

/// Waits in vain, in short waits, until the error says why: on a busy machine one such wait may hear
/// nothing.
pub(crate) async fn told_in_vain(locks: &Locks, name: &str, says: &str) {
    until(&format!("it is told: {says}"), async || {
        let error = acquire_error(locks, name, ms(200)).await;
        assert_kind(&error, ErrorKind::Unreachable);
        error_chain(&error).contains(says)
    })
    .await;
}

/// A connection that sends what it is told to.
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

/// The keys of holders and waiters. A lock's last token may stay, for an hour or a day.
pub(crate) async fn leftovers(server: &TestRedis) -> Vec<String> {
    let keys = redis_command(server, &["KEYS", "*"]).await;
    let of_claims = |key: &&str| !key.is_empty() && !key.ends_with("}:f");
    keys.lines().filter(of_claims).map(str::to_owned).collect()
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

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Remembers panics in tasks that nobody awaits: the tests' own have other places.
fn catch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let place = panic.location().map(std::panic::Location::file).unwrap_or_default();
            if !place.contains("tests/") {
                let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
                panics.push(panic.to_string());
            }
            usual(panic);
        }));
    });
}

/// Nothing outside of the tests has panicked so far, in any test.
pub(crate) fn assert_no_panics() {
    let panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(panics.is_empty(), "{panics:?}");
}

/// Two hold the lock that a failover lost: the resource takes the later one's write, and refuses what
/// the earlier one writes after it.
pub(crate) fn the_second_writes_and_the_first_cannot(
    register: &ProtectedRegister,
    second: &Guard,
    first: &Guard,
) {
    assert!(second.fencing_token() > first.fencing_token());
    assert!(register.write(second.fencing_token().get(), 2));
    assert!(!register.write(first.fencing_token().get(), 3), "a stale write was taken");
}
