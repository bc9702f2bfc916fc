//! The error for a mistyped URL.

use fencelock::{Error, ErrorKind, connect};
use fencelock_testkit::helpers::error_chain;

async fn refused(url: &str) -> Error {
    let error = connect(url).await.expect_err(url);
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}: {error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error:?}");
    error
}

#[tokio::test]
async fn an_unknown_scheme_names_the_ones_there_are() {
    let error = refused("mme://").await.to_string();
    assert!(error.contains("did you mean mem?"), "{error}");
    assert!(error.contains("mem://") && error.contains("file://"), "{error}");
    let error = refused("pigeon://me:hunter2@host/").await.to_string();
    assert!(error.starts_with("connect: invalid argument: no store for pigeon://"), "{error}");
}

/// Whatever the program was built with: a feature that is missing is named after the store.
#[tokio::test]
async fn a_misspelt_scheme_is_corrected() {
    for (url, near) in [
        ("redi://localhost", "redis"),
        ("reids://me:hunter2@host", "redis"),
        ("RDIS://localhost", "redis"),
        ("redisss://localhost", "rediss"),
        ("redlok://h1,h2,h3", "redlock"),
        ("postgre://localhost/app", "postgres"),
        ("zookeper://localhost", "zookeeper"),
        ("files:///x", "file"),
        ("memry://", "memory"),
    ] {
        let error = refused(url).await.to_string();
        assert!(error.contains(&format!("(did you mean {near}?)")), "{url}: {error}");
    }
    for url in ["MEM://", "Memory://"] {
        connect(url).await.expect("in any case");
    }
}

#[tokio::test]
async fn a_missing_scheme_or_its_slashes_are_asked_for() {
    for (url, says) in [
        ("memory:", "expected // after memory:, such as mem://"),
        ("MEM:x", "expected // after mem:, such as mem://"),
        ("file:/var/lib/locks", "expected // after file:, such as file:///"),
        ("localhost:6379", "a Redis server is given as redis://HOST:6379"),
        ("redis:6379", "redis://"),
        ("redis:localhost", "redis://"),
        ("redis:me:hunter2@host:6379", "redis://"),
        ("zk:/host", "zk://"),
        ("db.example:5432", "a PostgreSQL server is given as postgres://USER@HOST:5432/DATABASE"),
        ("redi:hunter2", "expected scheme://"),
        ("localhost", "expected scheme://"),
    ] {
        let error = refused(url).await.to_string();
        assert!(error.contains(says), "{url}: {error}");
    }
}

#[tokio::test]
async fn a_parameter_is_known_or_an_error() {
    let error = refused("mem://?unreachable-after=3s&password=hunter2").await.to_string();
    assert!(error.contains("did you mean unreachable_after?"), "{error}");
    let error = refused("mem://?local_handoffs=many").await.to_string();
    assert!(error.contains("local_handoffs: expected a whole number from 1 to 1024"), "{error}");
    for url in [
        "mem://?ttl=30",
        "mem://?ttl=0s",
        "mem://?ttl=10years",
        "mem://?token_epoch=128",
        "mem://?unreachable_after=0ms",
        "mem://?local_handoffs=0",
        "mem://host/",
        "mem:",
        "",
        "://",
        "no url at all hunter2",
    ] {
        refused(url).await;
    }
}

#[tokio::test]
async fn common_parameters_take_effect() {
    let locks = connect("mem://?ttl=2s&prefix=&token_epoch=3").await.unwrap();
    let guard = locks.lock("x").acquire().await.unwrap();
    assert!(guard.remaining() <= std::time::Duration::from_secs(2));
    assert_eq!(guard.fencing_token().get() >> 56, 3);
}

/// The tokens of two tasks of one client, which wait while another client has the lock, and the token of
/// a third client that asked between the two.
async fn tokens_of_tasks(handoffs: &str) -> ([u64; 2], u64) {
    let dir = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}", dir.path().display());
    let (other, third) =
        (connect(&url).await.expect("connected"), connect(&url).await.expect("connected"));
    let client = connect(&format!("{url}?{handoffs}")).await.expect("connected");
    let held = other.lock("x").acquire().await.expect("acquired");
    let take = async |locks: &fencelock::Locks| {
        let guard = locks.lock("x").acquire().await.expect("acquired");
        let token = guard.fencing_token().get();
        guard.release().await.expect("released");
        token
    };
    // Each is polled in this order until it waits for the lock.
    let (first, between) = (take(&client), take(&third));
    tokio::pin!(first, between);
    until_queued(&other, first.as_mut(), 1).await;
    until_queued(&other, between.as_mut(), 2).await;
    let second = take(&client);
    let ((), one, two, between) =
        tokio::join!(async { held.release().await.expect("released") }, first, second, between);
    ([one, two], between)
}

/// Polls `acquiring`, which cannot complete yet, until so many wait for the lock.
async fn until_queued(
    observer: &fencelock::Locks,
    mut acquiring: std::pin::Pin<&mut impl Future<Output = u64>>,
    wanted: usize,
) {
    let seen = async {
        while observer.inspect("x").await.expect("an answer").waiters.len() < wanted {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = &mut acquiring => panic!("the lock is held"),
        () = seen => {}
    }
}

#[tokio::test]
async fn local_handoffs_of_the_url_hand_on_within_the_client() {
    let ([one, two], between) = tokens_of_tasks("local_handoffs=8").await;
    assert_eq!(two, one + 1, "they take turns on one grant");
    assert!(between > two, "{between} after {two}");
    let ([one, two], between) = tokens_of_tasks("local_handoffs=1").await;
    assert!(one < between && between < two, "in order of arrival: {one}, {between}, {two}");
}

#[tokio::test]
async fn local_handoffs_of_the_url_skip_what_cannot_have_them() {
    let lease = std::time::Duration::from_secs(1);
    let locks = connect("mem://?local_handoffs=1024").await.unwrap();
    for lock in [
        locks.lock("x").fixed_lease(lease),
        locks.rw_lock("x").write(),
        locks.rw_lock("x").read(),
        locks.semaphore("x", 2),
        locks.lock("x"),
    ] {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    let asked = [
        locks.lock("x").local_handoffs(8).fixed_lease(lease),
        locks.lock("x").fixed_lease(lease).local_handoffs(8),
        locks.rw_lock("x").write().local_handoffs(8),
    ];
    for lock in asked {
        let error = lock.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

/// What [`a_url_from_the_environment_is_never_shown`] runs, in a process of its own since the
/// environment belongs to all tests of one.
#[tokio::test]
#[ignore = "needs an environment of its own"]
async fn connects_from_env() {
    let error = fencelock::connect_from_env().await.expect_err("no such store");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    println!("shown: {error:?} {}", error_chain(&error));
}

#[cfg(unix)]
#[test]
fn a_url_from_the_environment_is_never_shown() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    for (url, says) in [
        (&b"redis://:hunter2\xff@host"[..], "FENCELOCK_URL is not UTF-8"),
        (b"mme://me:hunter2@host", "no store for mme://"),
        (b"me:hunter2@host", "invalid store URL: expected scheme://"),
    ] {
        let this = std::env::current_exe().unwrap();
        let output = std::process::Command::new(this)
            .args(["connect::connects_from_env", "--exact", "--ignored", "--nocapture"])
            .env(fencelock::URL_VARIABLE, OsStr::from_bytes(url))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert!(text.contains("shown: ") && text.contains(says), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}
