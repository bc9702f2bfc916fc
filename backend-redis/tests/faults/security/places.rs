//! Unix sockets, and databases that are independent of each other.

use fencelock_testkit::servers::{RedisOptions, TestRedis};

use crate::security::support::{connect, use_all};

#[tokio::test]
async fn a_unix_socket_works_like_a_port() {
    let server = RedisOptions::new().unix_socket().start().await.unwrap();
    let socket = server.unix_socket().unwrap();
    use_all(&format!("redis+unix://{}", socket.display())).await.unwrap();

    // It is the same server.
    let by_socket = connect(&format!("redis+unix://{}?db=0", socket.display())).await.unwrap();
    let by_port = connect(&server.url()).await.unwrap();
    let guard = by_socket.lock("a").acquire().await.unwrap();
    assert!(by_port.lock("a").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_unix_socket_takes_a_password_and_a_database() {
    let options = RedisOptions::new().unix_socket().password("battery-staple");
    let server = options.start().await.unwrap();
    let socket = server.unix_socket().unwrap();
    let url = format!("redis+unix://:battery-staple@{}?db=2", socket.display());
    let locks = connect(&url).await.unwrap();
    let _guard = locks.lock("a").acquire().await.unwrap();
    let keys = server.command(&["INFO", "keyspace"]).await.unwrap();
    assert!(keys.contains("db2:") && !keys.contains("db0:"), "{keys}");
}

#[tokio::test]
async fn databases_have_locks_of_their_own() {
    let server = TestRedis::start().await.unwrap();
    let base = server.url();
    let base = base.trim_end_matches('/');
    let one = connect(&format!("{base}/1")).await.unwrap();
    let other = connect(&format!("{base}?db=2")).await.unwrap();
    let guard = one.lock("a").acquire().await.unwrap();
    let second = other.lock("a").acquire().await.unwrap();
    assert!(
        connect(&format!("{base}?db=1"))
            .await
            .unwrap()
            .lock("a")
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    guard.release().await.unwrap();
    assert!(second.is_held());
    assert!(one.lock("a").try_acquire().await.unwrap().is_some());
}
