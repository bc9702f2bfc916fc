//! The texts of errors about URLs and connections, word for word: each says what failed, where, why
//! and what to try, and says it once.

use std::error::Error as _;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencelock::{
    Error, ErrorKind, Label, Locks, Result, Settings, Ttl, connect, connect_lazy,
    connect_lazy_with, connect_with, connect_within,
};
use fencelock_testkit::servers::{RedisOptions, TestRedis, TestZooKeeper};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A port of which no server makes use.
const NOWHERE: &str = "127.0.0.1:1";

/// Said in addition by a program without that feature.
const NEEDS_ZK_TLS: &str = if cfg!(feature = "zk-tls") {
    ""
} else {
    ", which needs the cargo feature `zk-tls` of fencelock (cargo add fencelock --features zk-tls)"
};

/// What a `main` prints that returns the error of a single attempt to connect.
async fn error_of(url: &str) -> Error {
    connect_within(url, Duration::ZERO).await.expect_err(url)
}

#[tokio::test]
async fn an_invalid_url_says_what_is_expected() {
    const EXPECTED: &str =
        "expected scheme://…, such as redis://HOST:6379 or file:///var/lib/locks";
    let no_store = |scheme: &str| {
        let stores = "stores: redis://, redlock://, postgres://, zk://, file://, mem://";
        format!("no store for {scheme}; {stores}")
    };
    let zks = "no store for zks://; ZooKeeper with TLS is zk://HOST:PORT?tls_ca=FILE";
    let given = |kind: &str| format!("invalid store URL: {EXPECTED}; {kind}");
    for (url, says) in [
        ("", format!("the store URL is empty: {EXPECTED}")),
        ("redis", format!("invalid store URL: {EXPECTED}")),
        (
            "file:///var/lib/locks\n",
            "invalid store URL: white space at its beginning or end, such as the newline of the \
             file that it was read from; remove it, or percent-encode it in a name"
                .to_owned(),
        ),
        ("http://h", no_store("http://")),
        ("etcd://h", no_store("etcd://")),
        ("consul://h", no_store("consul://")),
        ("rdis://h", no_store("rdis:// (did you mean redis?)")),
        ("redi://localhost", no_store("redi:// (did you mean redis?)")),
        (
            "redis:me:hunter2@h:6379",
            "invalid store URL: expected // after redis:, such as redis://127.0.0.1:6379/0".into(),
        ),
        ("zks://h", zks.to_owned() + NEEDS_ZK_TLS),
        ("localhost:6379", given("a Redis server is given as redis://HOST:6379")),
        ("redis:6379", given("a Redis server is given as redis://HOST:6379")),
        ("db1:5432", given("a PostgreSQL server is given as postgres://USER@HOST:5432/DATABASE")),
        ("zk1:2181", given("a ZooKeeper server is given as zk://HOST:2181")),
        ("sentinel1:26379", given("a sentinel is given as redis+sentinel://HOST:26379/SERVICE")),
        ("/var/lock", given("a directory is given as file:///DIR")),
    ] {
        let error = format!("{:?}", error_of(url).await);
        assert_eq!(error, format!("connect: invalid argument: {says}"), "{url}");
    }
}

#[tokio::test]
async fn an_invalid_part_of_a_url_says_what_is_expected() {
    let check = async |url: &str, says: &str| {
        let error = format!("{:?}", error_of(url).await);
        let shown = url.split('?').next().unwrap_or_default().replace("hunter2", "***");
        assert_eq!(error, format!("connect on {shown}: invalid argument: {says}"), "{url}");
    };
    for (parameter, says) in [
        ("db=x", "db: expected a whole number from 0 to 65535"),
        ("db=99999", "db=99999: expected a whole number from 0 to 65535"),
        ("ttl=5", "ttl=5: expected a duration: a number with a unit, such as 500ms, 2s or 1m30s"),
        ("ttl=1ms", "ttl: TTL 1ms is out of range; expected 100ms to 1day"),
        ("ttl", "\"ttl\" has no value; expected ttl=VALUE"),
        (
            "local_handoffs=0",
            "local_handoffs: local_handoffs 0 is out of range; expected 1 to 1024",
        ),
        ("metrics_by_lock=maybe", "metrics_by_lock: expected true or false"),
    ] {
        check(&format!("redis://:hunter2@h?{parameter}"), &format!("parameter {says}")).await;
    }
    for (url, says) in [
        ("redis://", "missing host: expected HOST or HOST:PORT"),
        ("redis://:hunter2@h/one", "the path is not a database; expected a number, such as /0"),
        (
            "rediss://h?tls_ca=/none/ca.pem",
            "cannot read the file /none/ca.pem: no such file or directory",
        ),
        (
            "redis://h?password_file=/none/password",
            "the password file /none/password cannot be read: no such file or directory",
        ),
    ] {
        check(url, says).await;
    }
    for (url, says) in [
        (
            "redis://:hunter2@h:port",
            "redis://:***@***: invalid argument: invalid port of host 1 of the URL (not shown, since \
             it may be a password): expected HOST:PORT with a number up to 65535, and USER:PASSWORD \
             only before an @",
        ),
        (
            "file:///nonexistent/jobs/locks",
            "file:///nonexistent/jobs/locks: refused by the store: cannot open the directory \
             /nonexistent: no such file or directory; create the directory, or use \
             another file:///DIR",
        ),
    ] {
        assert_eq!(format!("{:?}", error_of(url).await), format!("connect on {says}"), "{url}");
    }
}

#[tokio::test]
async fn an_absent_server_says_what_to_try() {
    for (url, says) in [
        (
            format!("redis://{NOWHERE}"),
            "cannot connect to 127.0.0.1:1: connection refused; is the server running, and \
             listening on 127.0.0.1:1?",
        ),
        (
            format!("zk://{NOWHERE}"),
            "no server accepts a connection: 127.0.0.1:1 refuses the connection; is ZooKeeper \
             running, and listening there?",
        ),
        (
            "redis+unix:///nonexistent/redis.sock".to_owned(),
            "cannot connect to /nonexistent/redis.sock: no such file or directory; is the server \
             running, with this path as its `unixsocket`?",
        ),
        (
            format!("redlock://{NOWHERE},localhost:1,127.0.0.2:1"),
            "no quorum (2 of 3 nodes required): cannot connect to 127.0.0.1:1: connection refused; \
             is the server running, and listening on 127.0.0.1:1?; cannot connect to localhost:1: \
             connection refused; is the server running, and listening on localhost:1?; cannot \
             connect to 127.0.0.2:1: connection refused; is the server running, and listening on \
             127.0.0.2:1?",
        ),
    ] {
        let error = error_of(&url).await;
        assert_eq!(format!("{error:?}"), format!("connect on {url}: store unreachable: {says}"));
        assert_eq!(error.kind(), ErrorKind::Unreachable);
    }
    // Its words are the resolver's.
    for scheme in ["redis", "zk"] {
        let error = error_of(&format!("{scheme}://host.invalid")).await;
        let text = format!("{error:?}");
        assert!(text.ends_with("; check the spelling of the host"), "{text}");
        assert_eq!(text.matches("host.invalid").count(), 2, "the URL and the address: {text}");
    }
}

/// Neither waits for a timeout: the first attempt finds the cause.
#[tokio::test]
async fn a_server_of_another_kind_is_recognized() {
    let plain = TestRedis::start().await.expect("a redis-server starts");
    let secure = RedisOptions::new().tls().start().await.expect("a redis-server starts");
    let ensemble = TestZooKeeper::standalone().await.expect("a ZooKeeper starts");
    let (redis, tls, zookeeper) = (plain.addr(), secure.addr(), ensemble.connect_string());
    let refused = "refused by the store";
    for (url, kind, says) in [
        (
            format!("rediss://{redis}"),
            ErrorKind::Refused,
            format!(
                "{refused}: the Redis server at {redis} does not speak TLS on this port: use redis://"
            ),
        ),
        (
            format!("redis://{tls}"),
            ErrorKind::Refused,
            format!("{refused}: {tls} speaks TLS; use rediss://"),
        ),
        (
            format!("redis://{zookeeper}"),
            ErrorKind::Refused,
            format!("{refused}: {zookeeper} is a ZooKeeper server; use zk://{zookeeper}"),
        ),
        (
            format!("zk://{redis}"),
            ErrorKind::Unreachable,
            format!(
                "store unreachable: no server grants a session: {redis} is a Redis server; use \
                 redis://, or name the client port of ZooKeeper, usually 2181"
            ),
        ),
    ] {
        // What a busy machine does not find out within 2 s is not said.
        let mut error = error_of(&url).await;
        while error.to_string().contains("did not answer within") {
            error = error_of(&url).await;
        }
        assert_eq!(format!("{error:?}"), format!("connect on {url}: {says}"));
        assert_eq!(error.kind(), kind);
    }
}

/// As with a wait limit of seconds: the attempt has longer than the stores' own limit for a login.
#[tokio::test]
async fn a_try_at_a_silent_server_says_what_may_be_wrong() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let host = silent.local_addr().expect("an address");
    for (url, hint) in [
        (format!("redis://{host}"), "is it a Redis server?"),
        (format!("postgres://me@{host}/app"), "is a PostgreSQL server listening there?"),
    ] {
        let mut said = Vec::new();
        // A busy machine may not find out in time.
        while !said.last().is_some_and(|error: &String| error.contains(hint)) {
            assert!(said.len() < 5, "{said:?}");
            said.push(error_of(&url).await.to_string());
        }
    }
}

/// A server that answers whatever it is sent, and closes the connection.
async fn server_that_answers(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        loop {
            let Ok((mut client, _)) = listener.accept().await else { return };
            // A client that has gone needs no answer.
            let _ = client.read(&mut [0; 64]).await;
            let _ = client.write_all(answer).await;
        }
    });
    address
}

#[tokio::test]
async fn what_is_found_instead_of_a_zookeeper_is_the_whole_error() {
    for (answer, found) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            "is an HTTP server; the client port of ZooKeeper is usually 2181",
        ),
        (
            b"",
            "closes connections without an answer; if it is the secureClientPort, name the \
             authority by tls_ca=FILE; if not, see maxClientCnxns and the server's log",
        ),
    ] {
        let address = server_that_answers(answer).await;
        let error = error_of(&format!("zk://{address}")).await;
        assert_eq!(
            format!("{error:?}"),
            format!(
                "connect on zk://{address}: store unreachable: no server grants a session: \
                 {address} {found}"
            )
        );
    }
}

#[tokio::test]
async fn a_refusal_of_the_server_says_what_to_change() {
    let server = RedisOptions::new().password("hunter2").start().await.expect("it starts");
    let open = TestRedis::start().await.expect("a redis-server starts");
    let (address, open) = (server.addr(), open.addr());
    for (url, says) in [
        (
            format!("redis://{address}"),
            "give a password: redis://:PASSWORD@host (NOAUTH)".to_owned(),
        ),
        (
            format!("redis+sentinel://{address}/main"),
            format!(
                "the sentinel at {address} wants a password; add sentinel_password=PASSWORD, or \
                 sentinel_password_file=FILE (NOAUTH)"
            ),
        ),
        (
            format!("redis+sentinel://{address}/main?sentinel_password=hunter3"),
            format!(
                "the sentinel at {address} refuses the login; check sentinel_user and \
                 sentinel_password (WRONGPASS)"
            ),
        ),
        (
            format!("redis://{open}/99"),
            format!(
                "the server at {open} has no database 99; its setting `databases` is their number"
            ),
        ),
        (
            format!("redis-cluster://{open}"),
            "the server is not in cluster mode; use redis://".to_owned(),
        ),
    ] {
        let error = error_of(&url).await;
        let shown = url.split('?').next().unwrap_or_default();
        let says = format!("connect on {shown}: refused by the store: {says}");
        assert_eq!(format!("{error:?}"), says);
    }
    // The words behind the code are the server's.
    let error = error_of(&format!("redis://:hunter3@{address}")).await.to_string();
    let says = "check the URL's user and password (WRONGPASS ";
    assert!(error.contains(says) && !error.contains("hunter3") && !error.contains('"'), "{error}");
}

#[tokio::test]
async fn what_every_attempt_met_is_said_once() {
    let url = format!("redis://{NOWHERE}");
    let error = connect_within(&url, Duration::from_millis(300)).await.expect_err("nothing there");
    let text = format!("{error:?}");
    assert_eq!(
        text,
        "connect on redis://127.0.0.1:1: store unreachable: no connection within the wait limit of \
         300ms: cannot connect to 127.0.0.1:1: connection refused; is the server running, and \
         listening on 127.0.0.1:1?"
    );
    assert!(error.source().is_some(), "the cause is there for programs: {text}");
}

/// The output of a future that is ready at once, without a runtime.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn without_a_runtime_connecting_is_an_error_and_no_panic() {
    let url = "redis://127.0.0.1:1";
    for error in [
        now(connect(url)),
        now(connect_with(url, Settings::default())),
        now(connect_within(url, Duration::ZERO)),
        now(connect_within(url, Duration::from_secs(1))),
        connect_lazy(url),
        connect_lazy_with(url, Settings::default()),
    ]
    .map(|connected| connected.expect_err("there is no runtime"))
    {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(
            format!("{error:?}"),
            "connect on redis://127.0.0.1:1: invalid argument: a store is connected inside a tokio \
             runtime, which carries its renewals; there is none here: call this in an async \
             function under #[tokio::main], or in Runtime::block_on"
        );
    }
    let error = fencelock::Memory::new().locks(Settings::default()).expect_err("no runtime");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

/// The panic by which tokio reports it is printed, and goes no further.
#[test]
fn a_runtime_without_timers_or_io_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = format!("file://{}", directory.path().join("locks").display());
    let bare = || tokio::runtime::Builder::new_current_thread();
    let timers_only = || {
        let mut builder = bare();
        builder.enable_time();
        builder
    };
    let refused = |mut builder: tokio::runtime::Builder, url: &str| {
        let runtime = builder.build().expect("a runtime");
        let error = runtime.block_on(connect(url)).expect_err(url);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}: {error}");
        assert!(error.to_string().contains("Builder::enable_all"), "{url}: {error}");
    };
    let postgres = "postgres://127.0.0.1:1/app";
    for url in ["mem://", postgres, "redis://127.0.0.1:1", "zk://127.0.0.1:1", &file] {
        refused(bare(), url);
    }
    for url in [postgres, "redis://127.0.0.1:1", "redlock://h1,h2,h3", "zk://127.0.0.1:1", &file] {
        refused(timers_only(), url);
    }
}

/// The label of the client, and the TTL of its locks rounded to seconds.
async fn settings_of(locks: &Locks) -> Result<(String, u64)> {
    let guard = locks.lock("a").acquire().await?;
    let ttl = guard.remaining().as_secs_f64().ceil();
    let holder = locks.inspect("a").await?.holders.pop().expect("it is held");
    guard.release().await?;
    Ok((holder.label.expect("it has a label").to_string(), ttl as u64))
}

#[tokio::test(start_paused = true)]
async fn a_parameter_of_the_url_replaces_the_setting_of_the_program() -> Result<()> {
    let settings = || -> Result<Settings> {
        let settings = Settings::default().label(Label::new("importer"));
        Ok(settings.ttl(Ttl::new(Duration::from_secs(7))?))
    };
    let process = Label::of_this_process();
    for (url, label, ttl) in [
        ("mem://", "importer".to_owned(), 7),
        ("mem://?ttl=3s", "importer".to_owned(), 3),
        ("mem://?label=by%20hand", format!("{process} by hand"), 7),
    ] {
        let expected = (label, ttl);
        assert_eq!(settings_of(&connect_with(url, settings()?).await?).await?, expected, "{url}");
        assert_eq!(settings_of(&connect_lazy_with(url, settings()?)?).await?, expected, "{url}");
    }
    let alone = settings_of(&connect("mem://?label=by%20hand&ttl=3s").await?).await?;
    assert_eq!(alone, (format!("{process} by hand"), 3));
    Ok(())
}

/// The type of an error is found by itself: a second type that turns into an `Error` by `?`, in any crate
/// and private or not, would make this ambiguous in every program.
#[test]
fn a_question_mark_needs_no_type() {
    fn three() -> Result<u32> {
        let three = Ok(3)?;
        Ok(three)
    }
    assert_eq!(three().expect("it is"), 3);
}
