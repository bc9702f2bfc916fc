//! Faults of a whole machine: lost packets, a full disk, no descriptors. Each test has namespaces
//! of its own.

// Tests without the attribute, which the lint looks for.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use fencelock_core::{ErrorKind, Locks, Result, url};
use fencelock_redis::{REDLOCK_SCHEME, SCHEME, redlock};
use fencelock_testkit::helpers::*;
use fencelock_testkit::netns::promises::{
    lost_packets_only_slow_down, missing_descriptors_are_named,
};
use fencelock_testkit::netns::{
    Loss, MOUNTS, NOTHING, PACKETS, Test, fill, main as main_of, small_disk,
};
use fencelock_testkit::servers::{RedisOptions, TestCluster, TestRedis, TestSentinel};
use futures_util::future::try_join_all;

const PATIENCE_WITH_LOSS: Duration = Duration::from_secs(120);
/// A lost connection takes a while to be replaced, and renewals need one.
const WITH_LOSS: &str = "ttl=60s&unreachable_after=110s";

/// A short wait for what is unavailable.
const BRIEFLY: &str = "unreachable_after=5s";

fn main() {
    main_of(&[
        // Fault 14: redis
        Test {
            name: "a_third_of_the_packets_lost_only_slows_down",
            needs: PACKETS,
            run: || Box::pin(packets()),
        },
        // Fault 14: redlock
        Test {
            name: "a_third_of_the_packets_lost_only_slows_a_quorum_down",
            needs: PACKETS,
            run: || Box::pin(packets_of_a_quorum()),
        },
        // Fault 14: sentinel
        Test {
            name: "a_third_of_the_packets_lost_only_slows_a_client_under_sentinel_down",
            needs: PACKETS,
            run: || Box::pin(packets_of_sentinels()),
        },
        // Fault 14: cluster
        Test {
            name: "a_third_of_the_packets_lost_only_slows_a_cluster_down",
            needs: PACKETS,
            run: || Box::pin(packets_of_a_cluster()),
        },
        // Fault 14: redis
        Test {
            name: "late_packets_of_a_lost_connection_take_no_lock",
            needs: PACKETS,
            run: || Box::pin(late_packets()),
        },
        // Fault 38: redis
        Test { name: "a_full_disk_is_waited_for", needs: MOUNTS, run: || Box::pin(disk()) },
        // Fault 40: redis
        Test {
            name: "without_a_free_descriptor_the_error_says_so_and_what_is_held_stays",
            needs: NOTHING,
            run: || Box::pin(descriptors()),
        },
        // Fault 40: redlock
        Test {
            name: "a_quorum_without_a_free_descriptor_says_so_and_what_is_held_stays",
            needs: NOTHING,
            run: || Box::pin(descriptors_of_a_quorum()),
        },
        // Fault 40: sentinel
        Test {
            name: "under_sentinel_without_a_free_descriptor_the_error_says_so_and_what_is_held_stays",
            needs: NOTHING,
            run: || Box::pin(descriptors_with_sentinels()),
        },
        // Fault 40: cluster
        Test {
            name: "in_a_cluster_without_a_free_descriptor_the_error_says_so_and_what_is_held_stays",
            needs: NOTHING,
            run: || Box::pin(descriptors_in_a_cluster()),
        },
    ]);
}

async fn connect(url: &str) -> Result<Locks> {
    url::connect(&[SCHEME], url).await
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
async fn packets() {
    let server = TestRedis::start().await.unwrap();
    let clients = [try_connect(&server, WITH_LOSS).await, try_connect(&server, WITH_LOSS).await];
    lost_packets_only_slow_down(&clients.map(Result::unwrap), 5, PATIENCE_WITH_LOSS).await;
    drained(&server).await;
}

/// Row 14: TCP retransmits undelivered data, with pauses that double. The request that was lost first
/// would arrive a second after its claim was released, on a connection that was discarded.
async fn late_packets() {
    let server = TestRedis::start().await.unwrap();
    let locks = try_connect(&server, WITH_LOSS).await.unwrap();
    release(acquire(&locks, "lock").await).await;
    let loss = Loss::of(100);
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
async fn packets_of_a_quorum() {
    let params = "ttl=60s&restart_delay=90s&unreachable_after=110s&node_timeout=5s";
    let (_nodes, url) = quorum(params).await;
    let connect = || url::connect(&[REDLOCK_SCHEME], &url);
    let clients = [connect().await.unwrap(), connect().await.unwrap()];
    lost_packets_only_slow_down(&clients, 5, PATIENCE_WITH_LOSS).await;
}

/// Row 14. Packets between the servers are lost, too.
async fn packets_of_sentinels() {
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
async fn packets_of_a_cluster() {
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

/// Row 38: the append-only file cannot grow.
async fn disk() {
    let options = RedisOptions::new().arg("--enable-protected-configs").arg("local");
    let server = options.start().await.unwrap();
    let disk = server.directory().join("disk");
    std::fs::create_dir(&disk).unwrap();
    small_disk(&disk, 1 << 20);
    redis_command(&server, &["CONFIG", "SET", "dir", disk.to_str().unwrap()]).await;
    redis_command(&server, &["CONFIG", "SET", "appendonly", "yes"]).await;
    until("it writes its file", async || {
        let info = redis_command(&server, &["INFO", "persistence"]).await;
        info.contains("aof_enabled:1") && info.contains("aof_rewrite_in_progress:0")
    })
    .await;
    let locks = try_connect(&server, "ttl=30s").await.unwrap();
    let held = acquire(&locks, "held").await;
    fill(&disk.join("filler"));
    // A page may be half empty.
    until("the disk is full", async || {
        let more = server.command(&["SET", "{filler}:f", &"x".repeat(5000)]).await;
        more.is_err_and(|error| error.to_string().contains("MISCONF"))
    })
    .await;
    let lock = locks.lock("other").wait_at_most(ms(500));
    let error = soon("a short wait ends", lock.acquire()).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(format!("{error} {why}").contains("cannot save"), "{error}: {why}");
    let fresh = spawn_waiter(&locks, "fresh");
    let releasing = tokio::spawn(held.release());
    tokio::time::sleep(ms(300)).await;
    assert!(!fresh.is_finished() && !releasing.is_finished(), "the disk was not full");
    std::fs::remove_file(disk.join("filler")).unwrap();
    soon("the release goes through", releasing).await.unwrap().unwrap();
    release(until_granted(fresh).await).await;
    drained(&server).await;
}

/// Row 40.
async fn descriptors() {
    let server = TestRedis::start().await.unwrap();
    let locks = try_connect(&server, "ttl=3s").await.unwrap();
    missing_descriptors_are_named(&locks, async || try_connect(&server, BRIEFLY).await).await;
    drained(&server).await;
}

/// Row 40.
async fn descriptors_of_a_quorum() {
    let (_nodes, url) = quorum(&format!("ttl=3s&{BRIEFLY}")).await;
    let connect = async || url::connect(&[REDLOCK_SCHEME], &url).await;
    missing_descriptors_are_named(&connect().await.unwrap(), connect).await;
}

/// Row 40.
async fn descriptors_with_sentinels() {
    let servers = TestSentinel::start().await.unwrap();
    let url = format!("{}?ttl=3s&{BRIEFLY}", servers.url());
    let locks = connect(&url).await.unwrap();
    missing_descriptors_are_named(&locks, async || connect(&url).await).await;
    drained(servers.master().await.unwrap()).await;
}

/// Row 40.
async fn descriptors_in_a_cluster() {
    let servers = TestCluster::start().await.unwrap();
    let url = format!("{}?ttl=3s&{BRIEFLY}", servers.url());
    let locks = connect(&url).await.unwrap();
    // Each node has a connection of its own, and existing ones continue.
    release(acquire(&locks, "another").await).await;
    missing_descriptors_are_named(&locks, async || connect(&url).await).await;
    for master in &servers.nodes()[..3] {
        drained(master).await;
    }
}
