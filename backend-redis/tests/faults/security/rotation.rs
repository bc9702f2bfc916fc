//! Passwords that change while a client is connected.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencelock_core::{Error, ErrorKind, Settings};
use fencelock_redis::{Credentials, RedisStore};
use fencelock_testkit::servers::{RedisOptions, TestRedis};

use crate::security::support::{connect, use_all};

const FIRST: &str = "first-battery";
const SECOND: &str = "second-staple";

/// Changes the server's password, and ends all connections of clients.
async fn change_password(server: &TestRedis, to: &str) {
    server.command(&["ACL", "SETUSER", "jobs", "resetpass", &format!(">{to}")]).await.unwrap();
    server.command(&["ACL", "LOG", "RESET"]).await.unwrap();
    for kind in ["normal", "pubsub"] {
        server.command(&["CLIENT", "KILL", "TYPE", kind]).await.unwrap();
    }
}

async fn until_refused(server: &TestRedis) {
    let log = async || server.command(&["ACL", "LOG"]).await.unwrap();
    while !log().await.contains("jobs") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn server() -> RedisOptions {
    RedisOptions::new().acl_user(&format!("jobs on >{FIRST} ~* &* +@all"))
}

#[tokio::test]
async fn a_password_file_is_read_again_for_each_connection() {
    let server = server().start().await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    let url = format!("redis://jobs@{}?password_file={}", server.addr(), file.display());
    let error = connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("cannot be read: no such file"), "{error}");

    std::fs::write(&file, format!("{FIRST}\n")).unwrap();
    use_all(&url).await.unwrap();
    let locks = connect(&url).await.unwrap();
    let held = locks.lock("held").acquire().await.unwrap();
    // The servers have the new password before this machine has it.
    change_password(&server, SECOND).await;
    let lock = locks.lock("other");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    tokio::time::timeout(Duration::from_secs(20), until_refused(&server)).await.unwrap();
    std::fs::write(&file, SECOND).unwrap();
    let guard = tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap();
    guard.expect("the new password is found").release().await.unwrap();
    held.release().await.unwrap();
}

#[tokio::test]
async fn credentials_are_requested_for_each_connection() {
    let server = server().start().await.unwrap();
    let asked = Arc::new(AtomicU32::new(0));
    let addr = server.addr();
    let counted = asked.clone();
    let store =
        RedisStore::server(&addr.ip().to_string(), addr.port()).credentials(move || match counted
            .fetch_add(1, Ordering::Relaxed)
        {
            0 => Ok(Credentials::new("jobs", FIRST)),
            1 => Err(Error::new(ErrorKind::Unreachable, "the issuer of passwords is away")),
            _ => Ok(Credentials::new("jobs", SECOND)),
        });
    let shown = format!("{store:?}");
    let locks = store.locks(Settings::default()).await.unwrap();
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    change_password(&server, SECOND).await;
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    assert!(asked.load(Ordering::Relaxed) >= 3);
    assert!(!shown.contains(FIRST) && !shown.contains(SECOND), "{shown}");
}
