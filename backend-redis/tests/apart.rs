//! Faults of a whole machine: lost packets, a full disk, no descriptors. Each test has namespaces
//! of its own.

// Tests without the attribute, which the lint looks for.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use fencelock_conformance::How;
use fencelock_conformance::acts::*;
use fencelock_conformance::apart::{
    Loss, MOUNTS, NOTHING, NoDescriptors, PACKETS, Test, fill, main as main_of, small_disk,
};
use fencelock_conformance::checker::{Rules, assert_clean};
use fencelock_conformance::history::Worker;
use fencelock_conformance::servers::{RedisOptions, TestRedis};
use fencelock_core::{ErrorKind, Locks, Result, url};
use fencelock_redis::{REDLOCK_SCHEME, SCHEME, redlock};
use futures_util::future::{join_all, try_join_all};

fn main() {
    main_of(&[
        Test {
            name: "a_third_of_the_packets_lost_only_slows_down",
            needs: PACKETS,
            run: || Box::pin(packets()),
        },
        Test {
            name: "a_third_of_the_packets_lost_only_slows_a_quorum_down",
            needs: PACKETS,
            run: || Box::pin(packets_of_a_quorum()),
        },
        Test { name: "a_full_disk_is_waited_for", needs: MOUNTS, run: || Box::pin(disk()) },
        Test {
            name: "without_a_free_descriptor_the_error_says_so_and_what_is_held_stays",
            needs: NOTHING,
            run: || Box::pin(descriptors()),
        },
        Test {
            name: "a_quorum_without_a_free_descriptor_says_so_and_what_is_held_stays",
            needs: NOTHING,
            run: || Box::pin(descriptors_of_a_quorum()),
        },
    ]);
}

async fn try_connect(server: &TestRedis, params: &str) -> Result<Locks> {
    url::connect(&[SCHEME], &format!("redis://{}/0?{params}", server.addr())).await
}

async fn drained(server: &TestRedis) {
    until("nothing is left", async || {
        let keys = ask(server, &["KEYS", "*"]).await;
        keys.lines().all(|key| key.is_empty() || key.ends_with("}:f"))
    })
    .await;
}

/// Row 14.
async fn packets() {
    let server = TestRedis::start().await.unwrap();
    // A connection that is lost takes a while to come back, and renewals need one.
    let params = "ttl=60s&unreachable_after=110s";
    let clients = [try_connect(&server, params).await, try_connect(&server, params).await];
    packets_lost_by(&clients.map(Result::unwrap)).await;
    drained(&server).await;
}

/// Row 14, with a majority to be asked.
async fn packets_of_a_quorum() {
    let nodes = try_join_all((0..3).map(|_| TestRedis::start())).await.unwrap();
    let hosts: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
    let url = format!(
        "redlock://{}/0?ttl=60s&restart_delay=90s&unreachable_after=110s&node_timeout=5s",
        hosts.join(",")
    );
    redlock::init(&url).await.unwrap();
    let connect = || url::connect(&[REDLOCK_SCHEME], &url);
    packets_lost_by(&[connect().await.unwrap(), connect().await.unwrap()]).await;
}

async fn packets_lost_by(clients: &[Locks; 2]) {
    let kept = hold(&clients[0], "kept").await;
    let loss = Loss::of(30);
    let work = clients.iter().cycle().take(4).map(async |locks| {
        let mut worker = Worker::new();
        for _ in 0..5 {
            let (guard, claim) = worker.acquire(locks, "one", How::Exclusive).await.unwrap();
            // Whether it worked is in the history.
            let _ = worker.release(guard, claim).await;
        }
        worker.into_events()
    });
    let events = within(Duration::from_secs(120), "all work is done", join_all(work)).await;
    let lost = loss.lost();
    drop(loss);
    assert!(lost > 20, "only {lost} packets were lost");
    println!("{lost} packets were lost");
    assert!(kept.is_held(), "lost with some packets");
    assert_clean(events.into_iter().flatten().collect(), Rules::default());
    give_back(kept).await;
    for name in ["kept", "one"] {
        until("nobody is left", async || {
            let seen = clients[1].inspect(name).await;
            seen.is_ok_and(|seen| seen.holders.is_empty() && seen.waiters.is_empty())
        })
        .await;
    }
}

/// Row 38: the append-only file cannot grow.
async fn disk() {
    let options = RedisOptions::new().arg("--enable-protected-configs").arg("local");
    let server = options.start().await.unwrap();
    let disk = server.directory().join("disk");
    std::fs::create_dir(&disk).unwrap();
    small_disk(&disk, 1 << 20);
    ask(&server, &["CONFIG", "SET", "dir", disk.to_str().unwrap()]).await;
    ask(&server, &["CONFIG", "SET", "appendonly", "yes"]).await;
    until("it writes its file", async || {
        let info = ask(&server, &["INFO", "persistence"]).await;
        info.contains("aof_enabled:1") && info.contains("aof_rewrite_in_progress:0")
    })
    .await;
    let locks = try_connect(&server, "ttl=30s").await.unwrap();
    let held = hold(&locks, "held").await;
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
    let fresh = wait_for(&locks, "fresh");
    let release = tokio::spawn(held.release());
    tokio::time::sleep(ms(300)).await;
    assert!(!fresh.is_finished() && !release.is_finished(), "the disk was not full");
    std::fs::remove_file(disk.join("filler")).unwrap();
    soon("the release goes through", release).await.unwrap().unwrap();
    give_back(granted(fresh).await).await;
    drained(&server).await;
}

/// Row 40.
async fn descriptors() {
    let server = TestRedis::start().await.unwrap();
    let locks = try_connect(&server, "ttl=3s").await.unwrap();
    let held = hold(&locks, "held").await;
    let none = NoDescriptors::left();
    let error = soon("it says so", try_connect(&server, "")).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    let why = format!("{error:?}");
    assert!(why.contains("open files") || why.contains("descriptor"), "{why}");
    let before = held.valid_until();
    until("the hold is renewed", async || held.valid_until() > before).await;
    give_back(hold(&locks, "another").await).await;
    drop(none);
    let newcomer = try_connect(&server, "").await.unwrap();
    assert!(is_busy(&newcomer, "held").await);
    give_back(held).await;
    give_back(hold(&newcomer, "held").await).await;
    drained(&server).await;
}

/// Row 40.
async fn descriptors_of_a_quorum() {
    let nodes = try_join_all((0..3).map(|_| TestRedis::start())).await.unwrap();
    let hosts: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
    let url = format!("redlock://{}/0?ttl=3s", hosts.join(","));
    redlock::init(&url).await.unwrap();
    let locks = url::connect(&[REDLOCK_SCHEME], &url).await.unwrap();
    let held = hold(&locks, "held").await;
    let none = NoDescriptors::left();
    let error = soon("it says so", url::connect(&[REDLOCK_SCHEME], &url)).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    let why = format!("{error:?}");
    assert!(why.contains("open files") || why.contains("descriptor"), "{why}");
    let before = held.valid_until();
    until("the hold is renewed", async || held.valid_until() > before).await;
    give_back(hold(&locks, "another").await).await;
    drop(none);
    let newcomer = url::connect(&[REDLOCK_SCHEME], &url).await.unwrap();
    assert!(is_busy(&newcomer, "held").await);
    give_back(held).await;
    give_back(hold(&newcomer, "held").await).await;
}
