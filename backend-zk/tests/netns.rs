//! Faults of a whole machine: lost packets, a full disk, no descriptors. Each test has namespaces
//! of its own.

// Tests without the attribute, which the lint looks for.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use fencelock_core::{ErrorKind, Locks, Result, url};
use fencelock_testkit::apart;
use fencelock_testkit::helpers::*;
use fencelock_testkit::netns::promises::{
    lost_packets_only_slow_down, missing_descriptors_are_named,
};
use fencelock_testkit::netns::{MOUNTS, NOTHING, PACKETS, fill, main as main_of, small_disk};
use fencelock_testkit::servers::{TestZooKeeper, ZooKeeperOptions};
use fencelock_zk::SCHEME;

fn main() {
    main_of(&[
        apart!(PACKETS, a_third_of_the_packets_lost_only_slows_down),
        apart!(MOUNTS, a_server_that_ends_on_a_full_disk_is_retried),
        apart!(NOTHING, without_a_free_descriptor_the_error_says_so_and_holds_stay),
    ]);
}

async fn try_connect(servers: &TestZooKeeper, session: &str) -> Result<Locks> {
    let hosts = servers.connect_string();
    url::connect(&[SCHEME], &format!("zk://{hosts}/apart?prefix=&session={session}")).await
}

/// Row 14, with one server and with three, which lose packets to each other, too. A session that lasts longer than a
/// few packets that are lost one after the other, each of which TCP sends again after twice the time.
/// Fault 14: zookeeper, zookeeper-3
async fn a_third_of_the_packets_lost_only_slows_down() {
    for count in [1, 3] {
        let options = ZooKeeperOptions::new().tick_time(Duration::from_secs(8));
        let servers = options.ensemble(count).await.unwrap();
        let clients = [try_connect(&servers, "160s").await, try_connect(&servers, "160s").await];
        let clients = clients.map(Result::unwrap);
        lost_packets_only_slow_down(&clients, 3, Duration::from_secs(160)).await;
    }
}

/// Row 38: the server ends, and is restarted when the disk has room.
/// Fault 38: zookeeper
async fn a_server_that_ends_on_a_full_disk_is_retried() {
    const SESSION: Duration = Duration::from_secs(2);
    let disk = tempfile::tempdir().unwrap();
    small_disk(disk.path(), 4 << 20);
    // Preallocates in steps that fit on it.
    let options = ZooKeeperOptions::new()
        .java_arg("-Dzookeeper.preAllocSize=64")
        .config(&format!("dataLogDir={}", disk.path().display()));
    let servers = options.standalone().await.unwrap();
    let [server] = servers.servers() else { panic!("one server") };
    let (one, other) =
        (try_connect(&servers, "2s").await.unwrap(), try_connect(&servers, "2s").await.unwrap());
    let held = acquire(&one, "one").await;
    let waiter = spawn_waiter(&other, "one");
    until("it waits", async || {
        other.inspect("one").await.is_ok_and(|seen| seen.waiters.len() == 1)
    })
    .await;
    let filler = disk.path().join("filler");
    fill(&filler);
    // Heartbeats are writes, which fill the disk.
    until("the server has ended", async || server.four_letter("ruok").await.is_err()).await;
    let ended = one.now();
    soon("the holder is notified", held.lost()).await;
    // By the clock of its holder: when it hears of it is the machine's matter.
    assert!(held.valid_until().duration_since(ended) < SESSION, "it outlives its session");
    let lock = other.lock("other").wait_at_most(ms(300));
    let error = soon("a short wait ends", lock.acquire()).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(!waiter.is_finished(), "granted without a server");
    std::fs::remove_file(&filler).unwrap();
    server.restart().await.unwrap();
    let next = until_granted(waiter).await;
    assert!(!held.is_held() && next.fencing_token() > held.fencing_token());
    drop(held);
    release(next).await;
    release(acquire(&one, "one").await).await;
}

/// Row 40.
/// Fault 40: zookeeper
async fn without_a_free_descriptor_the_error_says_so_and_holds_stay() {
    let servers = TestZooKeeper::standalone().await.unwrap();
    let locks = try_connect(&servers, "2s").await.unwrap();
    missing_descriptors_are_named(&locks, async || {
        try_connect(&servers, "2s&unreachable_after=5s").await
    })
    .await;
}
