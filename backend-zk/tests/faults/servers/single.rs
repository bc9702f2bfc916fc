//! One server that is frozen, whose clock jumps, or that accepts no more connections.

use std::sync::Arc;

use fencelock_core::ErrorKind;
use fencelock_testkit::servers::{ServerClock, ZooKeeperOptions};
use fencelock_zk::zookeeper_client::{Acls, CreateMode};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::support::*;

/// Row 19. A holder without an answer for too long cannot know whether it still holds the lock.
/// Fault 19: zookeeper
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_server_freeze_costs_no_lock_and_a_long_one_is_reported_in_time() {
    let testbed = Testbed::alone().await;
    let [server] = testbed.servers.servers() else { panic!("one server") };
    let session = T * 4;
    let url = testbed.url_for(session, &testbed.servers.connect_string(), "");
    let (one, other) = (connect(&url).await, connect(&url).await);
    let (held, waiter) = testbed.contested(&one, &other, "one").await;
    server.freeze().await.unwrap();
    // Early enough for a busy machine to renew it.
    soon("the holder is warned", held.expiring(ms(3_000))).await;
    let before = held.valid_until();
    server.thaw().unwrap();
    until("the hold is renewed", async || {
        assert!(held.is_held(), "lost by a short freeze");
        held.valid_until() > before
    })
    .await;
    server.freeze().await.unwrap();
    let frozen = one.now();
    soon("the holder is notified", held.lost()).await;
    assert_ends_in_time(&held, frozen, session);
    // Longer than the session timeout, after which a running server would have ended the session.
    tokio::time::sleep((frozen + session + T).duration_since(one.now())).await;
    assert!(!waiter.is_finished(), "granted by a frozen server");
    server.thaw().unwrap();
    let next = until_granted(waiter).await;
    assert!(!held.is_held() && next.fencing_token() > held.fencing_token());
    drop(held);
    release(next).await;
    release(acquire(&one, "one").await).await;
    until_free(&one, "one").await;
}

/// Row 33: the server measures session timeouts by a monotonic clock.
/// Fault 33: zookeeper
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_servers_clock_that_jumps_changes_nothing() {
    let clock = ServerClock::of("java").unwrap();
    let servers = ZooKeeperOptions::new().java(clock.program()).standalone().await.unwrap();
    let testbed = Testbed::on(Arc::new(servers), 0).await;
    let (one, other) = (testbed.direct().await, testbed.direct().await);
    let (held, waiter) = testbed.contested(&one, &other, "one").await;
    let seen = |name: &str| format!("{}/{name}", testbed.root);
    let shown = async |name: &str| {
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        testbed.client.create(&seen(name), b"", &options).await.unwrap();
        testbed.stat(&seen(name)).await.expect("it exists").ctime / 1000
    };
    let right = shown("right").await;
    for seconds in [40, -40, 3600, 0] {
        clock.is_ahead_by(seconds).unwrap();
        let jumped = shown(&format!("after-{seconds}")).await - right;
        assert!((jumped - seconds).abs() < 35, "its clock has jumped by {jumped} s");
        let jumped = Instant::now();
        while jumped.elapsed() < T * 5 / 4 {
            assert!(held.is_held() && !waiter.is_finished(), "given away by a clock jump");
            tokio::time::sleep(ms(20)).await;
        }
    }
    let token = held.fencing_token();
    release(held).await;
    let next = until_granted(waiter).await;
    assert!(next.fencing_token() > token);
    release(next).await;
    testbed.drained(&["one"]).await;
}

/// Row 40.
/// Fault 40: zookeeper
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_at_its_connection_limit_is_retried() {
    let servers = ZooKeeperOptions::new().config("maxClientCnxns=6").standalone().await.unwrap();
    let testbed = Testbed::on(Arc::new(servers), 0).await;
    let locks = testbed.direct().await;
    let held = acquire(&locks, "one").await;
    let mut connections = Vec::new();
    for _ in 0..6 {
        // The last ones are closed by the server.
        connections.extend(TcpStream::connect(testbed.servers.connect_string()).await.ok());
    }
    let url = testbed.url(&testbed.servers.connect_string(), "");
    let impatient = testbed.url(&testbed.servers.connect_string(), "unreachable_after=3s");
    let refused = async {
        loop {
            match try_connect(&impatient).await {
                Err(error) => break error,
                // Accepted before the server had counted the others.
                Ok(locks) => locks.close().await.expect("closed"),
            }
        }
    };
    let error = soon("connecting fails", refused).await;
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(error.is_retryable());
    let before = held.valid_until();
    until("the hold is renewed", async || held.valid_until() > before).await;
    drop(connections);
    let newcomer = connect(&url).await;
    assert!(is_busy(&newcomer, "one").await);
    release(held).await;
    release(acquire(&newcomer, "one").await).await;
    testbed.drained(&["one"]).await;
}
