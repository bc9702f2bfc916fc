//! Faults of a whole machine: lost packets, no descriptors. Each test has namespaces
//! of its own.

// Tests without the attribute, which the lint looks for.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use fencelock_core::{Locks, Result, url};
use fencelock_redis::{REDLOCK_SCHEME, SCHEME, redlock};
use fencelock_testkit::apart;
use fencelock_testkit::helpers::*;
use fencelock_testkit::netns::promises::{
    lost_packets_only_slow_down, missing_descriptors_are_named,
};
use fencelock_testkit::netns::{Loss, NOTHING, PACKETS, main as main_of};
use fencelock_testkit::servers::{TestCluster, TestRedis, TestSentinel};
use futures_util::future::try_join_all;

const PATIENCE_WITH_LOSS: Duration = Duration::from_secs(120);
/// A lost connection takes a while to be replaced, and renewals need one.
const WITH_LOSS: &str = "ttl=60s&unreachable_after=110s";

/// A short wait for what is unavailable.
const BRIEFLY: &str = "unreachable_after=5s";

fn main() {
    main_of(&[
        apart!(PACKETS, a_third_of_the_packets_lost_only_slows_down),
        apart!(PACKETS, a_third_of_the_packets_lost_only_slows_a_quorum_down),
        apart!(PACKETS, a_third_of_the_packets_lost_only_slows_a_client_under_sentinel_down),
        apart!(PACKETS, a_third_of_the_packets_lost_only_slows_a_cluster_down),
        apart!(PACKETS, late_packets_of_a_lost_connection_take_no_lock),
        apart!(NOTHING, without_a_free_descriptor_the_error_says_so_and_what_is_held_stays),
    ]);
}

async fn connect(url: &str) -> Result<Locks> {
    url::connect(&[SCHEME, REDLOCK_SCHEME], url).await
}

async fn try_connect(server: &TestRedis, params: &str) -> Result<Locks> {
    connect(&format!("redis://{}/0?{params}", server.addr())).await
}

async fn drained(server: &TestRedis) {
    until("nothing is left", async || {
        let keys = redis_command(server, &["KEYS", "*"]).await;
        keys.lines().all(|key| key.is_empty() || key.ends_with("}:f"))
    })
    .await;
}

/// Three nodes that were initialized, and a client's URL.
async fn quorum(params: &str) -> (Vec<TestRedis>, String) {
    let nodes = try_join_all((0..3).map(|_| TestRedis::start())).await.unwrap();
    let hosts: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
    let url = format!("redlock://{}/0?{params}", hosts.join(","));
    redlock::init(&url).await.unwrap();
    (nodes, url)
}

/// Row 14.
/// Fault 14: redis
async fn a_third_of_the_packets_lost_only_slows_down() {
    let server = TestRedis::start().await.unwrap();
    let clients = [try_connect(&server, WITH_LOSS).await, try_connect(&server, WITH_LOSS).await];
    lost_packets_only_slow_down(&clients.map(Result::unwrap), 5, PATIENCE_WITH_LOSS).await;
    drained(&server).await;
}

/// Row 14: TCP retransmits undelivered data, with pauses that double. The request that was lost first
/// would arrive a second after its claim was released, on a connection that was discarded.
/// Fault 14: redis
async fn late_packets_of_a_lost_connection_take_no_lock() {
    let server = TestRedis::start().await.unwrap();
    let locks = try_connect(&server, WITH_LOSS).await.unwrap();
    release(acquire(&locks, "lock").await).await;
    let loss = Loss::of(Loss::ALL);
    let waiter = spawn_waiter(&locks, "lock");
    // Long enough that the next retransmission is later than a new connection.
    tokio::time::sleep(ms(1700)).await;
    drop(loss);
    release(until_granted(waiter).await).await;
    // The retransmission is due 3 s after the loss began.
    tokio::time::sleep(ms(3000)).await;
    drained(&server).await;
}

/// Row 14, on a quorum.
/// Fault 14: redlock
async fn a_third_of_the_packets_lost_only_slows_a_quorum_down() {
    let params = "ttl=60s&restart_delay=90s&unreachable_after=110s&node_timeout=5s";
    let (_nodes, url) = quorum(params).await;
    let clients = [connect(&url).await.unwrap(), connect(&url).await.unwrap()];
    lost_packets_only_slow_down(&clients, 5, PATIENCE_WITH_LOSS).await;
}

/// Row 14. Packets between the servers are lost, too.
/// Fault 14: sentinel
async fn a_third_of_the_packets_lost_only_slows_a_client_under_sentinel_down() {
    let servers = TestSentinel::start().await.unwrap();
    servers.never_fail_over().await.unwrap();
    let master = servers.master().await.unwrap();
    let url = format!("{}?{WITH_LOSS}", servers.url());
    let clients = [connect(&url).await.unwrap(), connect(&url).await.unwrap()];
    lost_packets_only_slow_down(&clients, 5, PATIENCE_WITH_LOSS).await;
    assert_eq!(servers.master().await.unwrap().port(), master.port(), "a failover: nothing shown");
    drained(master).await;
}

/// Row 14, in a cluster.
/// Fault 14: cluster
async fn a_third_of_the_packets_lost_only_slows_a_cluster_down() {
    let servers = TestCluster::start().await.unwrap();
    servers.never_fail_over().await.unwrap();
    let url = format!("{}?{WITH_LOSS}", servers.url());
    let clients = [connect(&url).await.unwrap(), connect(&url).await.unwrap()];
    lost_packets_only_slow_down(&clients, 5, PATIENCE_WITH_LOSS).await;
    for master in &servers.nodes()[..3] {
        let role = redis_command(master, &["ROLE"]).await;
        assert!(role.starts_with("master"), "a failover: nothing shown");
        drained(master).await;
    }
}

/// Row 40, on one server, on a quorum, under Sentinel and in a cluster.
/// Fault 40: redis, redlock, sentinel, cluster
async fn without_a_free_descriptor_the_error_says_so_and_what_is_held_stays() {
    let params = &format!("ttl=3s&{BRIEFLY}");
    let server = TestRedis::start().await.unwrap();
    without_descriptors(&format!("redis://{}/0?{params}", server.addr())).await;
    let (_nodes, url) = quorum(params).await;
    without_descriptors(&url).await;
    let watched = TestSentinel::start().await.unwrap();
    without_descriptors(&format!("{}?{params}", watched.url())).await;
    let cluster = TestCluster::start().await.unwrap();
    without_descriptors(&format!("{}?{params}", cluster.url())).await;
    for master in
        [&server, watched.master().await.unwrap()].into_iter().chain(&cluster.nodes()[..3])
    {
        drained(master).await;
    }
}

async fn without_descriptors(url: &str) {
    let locks = connect(url).await.unwrap();
    // Each node of a cluster has a connection of its own, and existing ones continue.
    release(acquire(&locks, "another").await).await;
    missing_descriptors_are_named(&locks, async || connect(url).await).await;
}
