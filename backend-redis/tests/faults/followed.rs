//! What one server may answer, from the master that Sentinel names and from a cluster's: the way
//! there is another, the promises are the same.

use fencelock_conformance::servers::{TestCluster, TestRedis, TestSentinel};
use fencelock_core::{ErrorKind, Locks};
use tokio::time::Instant;

use crate::support::*;

async fn set(server: &TestRedis, name: &str, value: &str) {
    ask(server, &["CONFIG", "SET", name, value]).await;
}

/// All clients use this master.
async fn every_refusal(master: &TestRedis, one: &Locks, other: &Locks) {
    scripts_flushed(master, one, other).await;
    clients_killed(master, one, other).await;
    writes_paused(master, one, other).await;
    busy(master, one, other).await;
    full(master, one, other).await;
    without_replicas(master, one, other).await;
    drained(master).await;
}

/// Row 24.
async fn scripts_flushed(master: &TestRedis, one: &Locks, other: &Locks) {
    let flush = async || ask(master, &["SCRIPT", "FLUSH"]).await;
    flush().await;
    let guard = hold(one, "lock").await;
    flush().await;
    let waiter = wait_for(other, "lock");
    queued(one, "lock", 1).await;
    flush().await;
    give_back(guard).await;
    flush().await;
    give_back(granted(waiter).await).await;
}

/// Row 23.
async fn clients_killed(master: &TestRedis, one: &Locks, other: &Locks) {
    let guard = hold(one, "lock").await;
    let waiter = wait_for(other, "lock");
    queued(one, "lock", 1).await;
    ask(master, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    give_back(guard).await;
    give_back(granted(waiter).await).await;
}

/// Row 22.
async fn writes_paused(master: &TestRedis, one: &Locks, other: &Locks) {
    let guard = hold(one, "lock").await;
    let waiter = wait_for(other, "lock");
    queued(one, "lock", 1).await;
    ask(master, &["CLIENT", "PAUSE", "60000", "WRITE"]).await;
    let release = tokio::spawn(guard.release());
    let asked = Instant::now();
    assert_kind(&in_vain(other, "lock", ms(200)).await, ErrorKind::Unreachable);
    assert!(asked.elapsed() < ms(200) + SLACK);
    ask(master, &["CLIENT", "UNPAUSE"]).await;
    soon("the release goes through", release).await.expect("no panic").expect("released");
    give_back(granted(waiter).await).await;
}

/// Row 21. Shorter than it takes to be declared dead.
async fn busy(master: &TestRedis, one: &Locks, other: &Locks) {
    let guard = hold(one, "lock").await;
    let waiter = wait_for(other, "lock");
    queued(one, "lock", 1).await;
    set(master, "busy-reply-threshold", "20").await;
    let endless = master.command(&["EVAL", "while true do end", "0"]);
    let meanwhile = async {
        until("it is busy", async || {
            master.command(&["PING"]).await.is_err_and(|error| error.to_string().contains("BUSY"))
        })
        .await;
        assert_kind(&in_vain(one, "lock", ms(200)).await, ErrorKind::Unreachable);
        let release = tokio::spawn(guard.release());
        ask(master, &["SCRIPT", "KILL"]).await;
        soon("the release goes through", release).await.expect("no panic").expect("released");
    };
    let (killed, ()) = tokio::join!(endless, meanwhile);
    assert!(killed.is_err(), "the script was to be killed");
    give_back(granted(waiter).await).await;
}

/// Row 37.
async fn full(master: &TestRedis, one: &Locks, other: &Locks) {
    let guard = hold(one, "lock").await;
    let waiter = wait_for(other, "lock");
    queued(one, "lock", 1).await;
    set(master, "maxmemory", "1").await;
    assert_in_vain(&in_vain(one, "lock", ms(200)).await, "maxmemory");
    give_back(guard).await;
    give_back(granted(waiter).await).await;
    set(master, "maxmemory", "0").await;
}

/// Row 28.
async fn without_replicas(master: &TestRedis, one: &Locks, other: &Locks) {
    let guard = hold(one, "lock").await;
    let waiter = wait_for(other, "lock");
    queued(one, "lock", 1).await;
    set(master, "min-replicas-to-write", "9").await;
    assert_in_vain(&in_vain(one, "lock", ms(200)).await, "min-replicas-to-write");
    drop(guard);
    assert!(!waiter.is_finished());
    set(master, "min-replicas-to-write", "0").await;
    give_back(granted(waiter).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_master_under_sentinel_refuses_is_waited_for() {
    let servers = TestSentinel::start().await.unwrap();
    let sentinels = servers.sentinels().iter().map(|server| server.addr().to_string());
    let sentinels = sentinels.collect::<Vec<_>>().join(",");
    let url = format!("redis+sentinel://{sentinels}/{}/0?ttl=60s", servers.service());
    let (one, other) = (connect(&url).await, connect(&url).await);
    let master = servers.master().await.unwrap();
    every_refusal(master, &one, &other).await;
    assert_eq!(servers.master().await.unwrap().port(), master.port(), "a failover: nothing shown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_master_of_a_cluster_refuses_is_waited_for() {
    let servers = TestCluster::start().await.unwrap();
    let nodes = servers.nodes().iter().map(|server| server.addr().to_string());
    let url = format!("redis-cluster://{}?ttl=60s", nodes.collect::<Vec<_>>().join(","));
    let (one, other) = (connect(&url).await, connect(&url).await);
    let slot = TestCluster::slot_of("lock:lock");
    let master = servers.master_of(slot).await.unwrap();
    every_refusal(master, &one, &other).await;
    let after = servers.master_of(slot).await.unwrap();
    assert_eq!(after.port(), master.port(), "a failover: nothing shown");
}
