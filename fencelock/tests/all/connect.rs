//! The error for a mistyped URL.

use fencelock::{Error, ErrorKind, connect};
use fencelock_testkit::helpers::error_chain;

async fn refused(url: &str) -> Error {
    let error = connect(url).await.expect_err(url);
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}: {error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error:?}");
    error
}

/// Whatever the program was built with: a feature that is missing is named after the store.
#[tokio::test]
async fn a_misspelt_scheme_is_corrected() {
    for (url, near) in [
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
        ("redis:localhost", "redis://"),
        ("zk:/host", "zk://"),
        ("redi:hunter2", "expected scheme://"),
        ("localhost", "expected scheme://"),
    ] {
        let error = refused(url).await.to_string();
        assert!(error.contains(says), "{url}: {error}");
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
