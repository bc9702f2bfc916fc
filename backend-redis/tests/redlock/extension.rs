//! Holders that survive nodes that come back empty, and those that must not.

use fencelock_core::{ErrorKind, LostReason};
use fencelock_redis::redlock::incarnation::KEY;
use futures_util::future::join_all;

use crate::support::*;

/// A hold that survives a machine that stalls for a second.
const ROLLING: &str = "ttl=3s&restart_delay=4200ms&clock_tolerance=500ms";

/// Each node loses the lock once; it is reinstalled on each before the next node restarts.
/// Fault 17: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_survives_the_restart_of_all_nodes_one_by_one() {
    let quorum = TestQuorum::new(3, ROLLING).await;
    let (locks, other) = (quorum.direct(ROLLING).await, quorum.direct(ROLLING).await);
    let held = acquire(&locks, "lock").await;
    let reading = soon("a reader", locks.rw_lock("shared").read().acquire()).await.unwrap();
    let token = held.fencing_token();
    for node in 0..3 {
        quorum.held_everywhere("lock", &[]).await;
        quorum.restart(node).await;
        quorum.open(node).await;
        quorum.held_everywhere("lock", &[]).await;
        until("the readers' lock is reinstalled too", async || {
            redis_command(&quorum.nodes[node], &["EXISTS", &key("shared")]).await == "1"
        })
        .await;
        assert!(held.is_held() && reading.is_held(), "lost with node {node}");
        assert!(is_busy(&other, "lock").await && is_busy(&other, "shared").await);
    }
    // The token came with it: the next holder gets a larger one from any majority.
    for node in &quorum.nodes {
        let last = redis_command(node, &["GET", &token_key("lock")]).await;
        assert!(last.parse::<u64>().unwrap() >= token.get(), "{last} after {token:?}");
    }
    release(held).await;
    release(reading).await;
    let next = acquire(&other, "lock").await;
    assert!(next.fencing_token() > token);
    release(next).await;
    quorum.drained().await;
}

/// An operator may delete it on some nodes only: what a node had in this incarnation is not
/// reinstalled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_deleted_on_a_minority_stays_deleted_there() {
    let ttl = ms(1500);
    let quorum = TestQuorum::new(3, LONG).await;
    let locks = quorum.direct(LONG).await;
    let held = locks.lock("lock").ttl(ttl).acquire().await.unwrap();
    quorum.held_everywhere("lock", &[]).await;
    // All three have confirmed it in a renewal.
    until_renewed(&locks, &held, ttl).await;
    until_renewed(&locks, &held, ttl).await;
    redis_command(&quorum.nodes[1], &["DEL", &key("lock")]).await;
    for _ in 0..3 {
        until_renewed(&locks, &held, ttl).await;
        quorum.held_everywhere("lock", &[1]).await;
    }
    release(held).await;
    quorum.drained().await;
}

/// The third reply to the round that was granted was perhaps not waited for: that node must not count
/// as one that never had the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_deleted_on_a_majority_does_not_come_back() {
    let quorum = TestQuorum::new(3, LONG).await;
    let locks = quorum.direct(LONG).await;
    let lose = async |round: usize| {
        let name = format!("lock {round}");
        let held = locks.lock(&name).ttl(ms(3000)).acquire().await.unwrap();
        quorum.held_everywhere(&name, &[]).await;
        for node in &quorum.nodes[1..] {
            redis_command(node, &["DEL", &key(&name)]).await;
        }
        let reason = soon("the holder is notified", held.lost()).await;
        assert_eq!(reason, LostReason::TakenAway);
    };
    join_all((0..8).map(lose)).await;
    quorum.drained().await;
}

/// What a node follows may be behind: that it has the record and not the lock says nothing.
/// Faults 26, 27: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_follows_another_server_takes_no_lock_away() {
    let params =
        "ttl=9s&restart_delay=12s&clock_tolerance=300ms&node_timeout=1s&unreachable_after=1s";
    let (quorum, masters) = (TestQuorum::new(3, params).await, TestQuorum::unknown(2).await);
    // A refused request ends its connection: each has one of its own.
    let [locks, releasing, trying] =
        [quorum.direct(params).await, quorum.direct(params).await, quorum.direct(params).await];
    let left = acquire(&releasing, "left").await;
    let held = soon("granted", locks.lock("lock").ttl(QUICK_TTL).acquire()).await.unwrap();
    let reader = locks.rw_lock("shared").read().ttl(QUICK_TTL);
    let reading = soon("a reader", reader.acquire()).await.unwrap();
    for (node, master) in quorum.nodes.iter().zip(&masters.nodes) {
        redis_command(master, &["SET", &key("busy"), "x"]).await;
        redis_command(master, &["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).await;
        redis_command(master, &["SET", KEY, &record(node).await]).await;
        let port = master.port().to_string();
        redis_command(node, &["REPLICAOF", "127.0.0.1", &port]).await;
    }
    until("they follow", async || {
        join_all(quorum.nodes[..2].iter().map(|node| value(node, "busy"))).await == ["x", "x"]
    })
    .await;
    let busy = trying.rw_lock("busy").read();
    let (busy, left) = tokio::join!(busy.try_acquire(), left.release());
    assert_kind(&busy.expect_err("it may be free"), ErrorKind::Unreachable);
    assert_kind(&left.expect_err("it may be held"), ErrorKind::Unreachable);
    for held in [held, reading] {
        assert_eq!(soon("the validity ends", held.lost()).await, LostReason::Expired);
    }
}
