//! Wrong passwords are never shown: neither in errors, in `Debug` nor in logs.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::thread;

use fencelock_core::ErrorKind;
use fencelock_redis::RedisStore;
use fencelock_testkit::helpers::PATIENCE;
use fencelock_testkit::servers::RedisOptions;
use tokio::time::Instant;
use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::layer::{Layer, SubscriberExt};

use crate::security::support::{connect, words};

/// The right password, and the wrong one that is sent: neither may be shown.
const RIGHT: &str = "right-battery";
const WRONG: &str = "wrong-staple";

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A subscriber of `tracing` is global: it hears what is logged on the only thread of this test. (One of the
/// thread alone misses what other threads are the first to log.)
/// Fault 41: redis
#[tokio::test]
async fn a_wrong_password_is_refused_and_never_shown() {
    let log = Log::default();
    let (writer, thread) = (log.clone(), thread::current().id());
    let of_this_test = dynamic_filter_fn(move |_, _| thread::current().id() == thread);
    let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
    let subscriber = tracing_subscriber::registry().with(layer.with_filter(of_this_test));
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let plain = || RedisOptions::new().password(RIGHT).sentinel_password(RIGHT);
    let (single, secure) = (plain().unix_socket(), plain().tls());
    let (single, secure) = tokio::join!(single.start(), secure.clone().start());
    let (single, secure) = (single.unwrap(), secure.unwrap());
    let (sentinel, cluster) = tokio::join!(plain().sentinel(), plain().cluster());
    let (sentinel, cluster) = (sentinel.unwrap(), cluster.unwrap());
    let socket = single.unix_socket().unwrap();
    let (watch, node) = (sentinel.sentinels()[0].addr(), cluster.nodes()[0].addr());
    let service = sentinel.service();
    let ca = secure.ca_file().unwrap();
    let (port, tls_port, ca) = (single.addr(), secure.addr(), ca.display());

    for login in [format!(":{WRONG}"), format!("other:{WRONG}")] {
        for url in [
            format!("redis://{login}@{port}"),
            format!("rediss://{login}@{tls_port}?tls_ca={ca}"),
            format!("redis+unix://{login}@{}", socket.display()),
            format!("redis-cluster://{login}@{node}"),
            // A server that is neither a sentinel nor a cluster asks for a password first.
            format!("rediss-cluster://{login}@{tls_port}?tls_ca={ca}"),
            format!("redis+sentinel://{login}@{watch}/{service}?sentinel_password={RIGHT}"),
            format!("redis+sentinel://:{RIGHT}@{watch}/{service}?sentinel_password={WRONG}"),
            format!("redis+sentinel://{login}@{watch}/{service}"),
            format!("rediss+sentinel://{tls_port}/x?tls_ca={ca}&sentinel_password={WRONG}"),
        ] {
            assert_refused(&url).await;
        }
    }
    // A missing password is refused, too, and in time.
    assert_refused(&format!("redis://{port}")).await;

    // An established connection does not log it either.
    let locks = connect(&format!("redis://:{RIGHT}@{port}")).await.unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    assert_unsaid(&format!("{locks:?} {guard:?} {:?}", locks.lock("a")));
    guard.release().await.unwrap();
    let store = RedisStore::server("h", 1).login("me", RIGHT).sentinel_login("me", WRONG);
    assert_unsaid(&format!("{store:?} {store:#?}"));

    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("cannot connect to redis"), "{log}");
    assert_unsaid(&log);
}

async fn assert_refused(url: &str) {
    let start = Instant::now();
    let error = connect(url).await.expect_err(url);
    assert!(start.elapsed() < PATIENCE, "{error} after {:?}", start.elapsed());
    assert_eq!(error.kind(), ErrorKind::Refused, "{url}: {error}");
    assert!(!error.is_retryable(), "{url}: {error}");
    assert_unsaid(&words(&error));
}

fn assert_unsaid(text: &str) {
    assert!(!text.contains(RIGHT) && !text.contains(WRONG), "{text}");
}
