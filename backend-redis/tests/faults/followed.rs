//! Refusals of one server, of the master that Sentinel names and of one of a cluster: it is found in another
//! way, the promises are the same.

use fencelock_core::{ErrorKind, Locks};
use fencelock_testkit::servers::{RedisOptions, TestCluster, TestRedis};

use crate::refusals::{cannot_save, may_rename_its_file, no_room};
use crate::server::loading;
use crate::shared::scripts_flushed;
use crate::support::*;

/// Of a hold whose renewal is waited for.
const TTL: std::time::Duration = ms(6_000);

/// Clients of `url` use this master; clients of `straight` connect to no other server first.
async fn every_refusal(master: &TestRedis, url: &str, straight: &str) {
    let (one, other) = (&connect(url).await, &connect(url).await);
    let flush = async || drop(redis_command(master, &["SCRIPT", "FLUSH"]).await);
    scripts_flushed(one, other, TTL, flush).await;
    clients_killed(master, one, other).await;
    writes_paused(master, one, other).await;
    busy(master, one, other).await;
    full(master, one, other).await;
    let hasty = &connect(&format!("{url}&unreachable_after=1s")).await;
    without_replicas(master, hasty, other).await;
    Box::pin(loading(master, url)).await;
    cannot_save(master, url).await;
    no_room(master, straight).await;
    drained(master).await;
}

/// Row 23.
async fn clients_killed(master: &TestRedis, one: &Locks, other: &Locks) {
    let guard = soon("acquired", one.lock("lock").ttl(TTL).acquire()).await.expect("acquired");
    let mut waiters = Vec::new();
    for client in [one, other, one] {
        waiters.push(spawn_waiter(client, "lock"));
        until_queued(one, "lock", waiters.len()).await;
    }
    let kill = async || redis_command(master, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    kill().await;
    until_renewed(one, &guard, TTL).await;
    release(guard).await;
    for waiter in waiters {
        // In the order of their arrival: a later one is not granted before.
        let guard = until_granted(waiter).await;
        kill().await;
        release(guard).await;
    }
}

/// Row 22.
async fn writes_paused(master: &TestRedis, one: &Locks, other: &Locks) {
    let (guard, waiter) = contested(one, other, "lock").await;
    redis_command(master, &["CLIENT", "PAUSE", "60000", "WRITE"]).await;
    let fresh = spawn_waiter(one, "lock");
    let releasing = tokio::spawn(guard.release());
    assert_kind(&acquire_error(other, "lock", ms(200)).await, ErrorKind::Unreachable);
    redis_command(master, &["CLIENT", "UNPAUSE"]).await;
    soon("the release succeeds", releasing).await.expect("no panic").expect("released");
    in_turns([waiter, fresh]).await;
}

/// Row 21.
async fn busy(master: &TestRedis, one: &Locks, other: &Locks) {
    let (guard, waiter) = contested(one, other, "lock").await;
    set(master, "busy-reply-threshold", "20").await;
    let endless = master.command(&["EVAL", "while true do end", "0"]);
    let mut fresh = None;
    let meanwhile = async {
        until("it is busy", async || {
            master.command(&["PING"]).await.is_err_and(|error| error.to_string().contains("BUSY"))
        })
        .await;
        refused_with(one, "lock", "long script").await;
        fresh = Some(spawn_waiter(one, "lock"));
        let releasing = tokio::spawn(guard.release());
        refused_with(one, "lock", "long script").await;
        redis_command(master, &["SCRIPT", "KILL"]).await;
        soon("the release succeeds", releasing).await.expect("no panic").expect("released");
    };
    let (killed, ()) = tokio::join!(endless, meanwhile);
    assert!(killed.is_err(), "the script was to be killed");
    in_turns([waiter].into_iter().chain(fresh)).await;
}

/// Row 37.
async fn full(master: &TestRedis, one: &Locks, other: &Locks) {
    let (guard, waiter) = contested(one, other, "lock").await;
    set(master, "maxmemory", "1").await;
    refused_with(one, "lock", "maxmemory").await;
    hand_over(guard, waiter).await;
    set(master, "maxmemory", "0").await;
}

/// Row 28: the server refuses the release, too.
async fn without_replicas(master: &TestRedis, hasty: &Locks, other: &Locks) {
    let (guard, waiter) = contested(hasty, other, "lock").await;
    set(master, "min-replicas-to-write", "9").await;
    refused_with(hasty, "lock", "min-replicas-to-write").await;
    let error = soon("a release ends", guard.release()).await.expect_err("refused");
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(error.to_string().contains("continues in the background"), "{error}");
    assert!(!waiter.is_finished());
    set(master, "min-replicas-to-write", "0").await;
    release(until_granted(waiter).await).await;
}

/// Faults 20, 21, 22, 23, 24, 28, 37, 38, 40: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_temporary_refusal_by_one_server_is_waited_for() {
    let server = may_rename_its_file(RedisOptions::new()).start().await.unwrap();
    let url = format!("redis://{}?ttl=20s", server.addr());
    Box::pin(every_refusal(&server, &url, &url)).await;
}

/// Faults 20, 21, 22, 23, 24, 28, 37, 38, 40: sentinel
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_temporary_refusal_by_a_master_under_sentinel_is_waited_for() {
    let servers = may_rename_its_file(RedisOptions::new()).sentinel().await.unwrap();
    servers.never_fail_over().await.unwrap();
    let master = servers.master().await.unwrap();
    let url = format!("{}?ttl=20s", servers.url());
    Box::pin(every_refusal(master, &url, &url)).await;
    assert_eq!(servers.master().await.unwrap().port(), master.port(), "a failover: nothing shown");
}

/// Faults 20, 21, 22, 23, 24, 28, 37, 38, 40: cluster
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_temporary_refusal_by_a_master_of_a_cluster_is_waited_for() {
    let servers = may_rename_its_file(RedisOptions::new()).cluster().await.unwrap();
    servers.never_fail_over().await.unwrap();
    let slot = TestCluster::slot_of("lock:lock");
    let master = servers.master_of(slot).await.unwrap();
    let straight = format!("redis-cluster://{}?ttl=20s", master.addr());
    let url = format!("{}?ttl=20s", servers.url());
    Box::pin(every_refusal(master, &url, &straight)).await;
    let after = servers.master_of(slot).await.unwrap();
    assert_eq!(after.port(), master.port(), "a failover: nothing shown");
}
