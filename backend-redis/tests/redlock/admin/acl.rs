//! The access rules of docs/redlock.md suffice, and every command in them is used.

use std::time::Duration;

use fencelock_core::Locks;
use fencelock_redis::redlock::{init, open_when_due, replace, status};
use fencelock_testkit::helpers::*;
use fencelock_testkit::servers::TestRedis;
use tokio::time::timeout;

use crate::admin::support::*;

const TTL: Duration = ms(3000);
const PARAMS: &str = "restart_delay=6s&clock_tolerance=1s&ttl=3s&node_timeout=1s";
const DOCUMENT: &str = include_str!("../../../../docs/redlock.md");

/// The rules after the password in the document's line.
fn rules() -> Vec<&'static str> {
    const START: &str = "ACL SETUSER jobs on >PASSWORD ";
    let mut lines = DOCUMENT.lines().filter_map(|line| line.trim().strip_prefix(START));
    let line = lines.next().expect("docs/redlock.md has the line");
    assert!(lines.next().is_none(), "docs/redlock.md has the line once");
    line.split_whitespace().collect()
}

/// The commands that a node has run, also from scripts.
async fn used(node: &TestRedis) -> Vec<String> {
    let stats = node.command(&["INFO", "commandstats"]).await.unwrap();
    let names = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split(':').next());
    names.map(str::to_owned).collect()
}

/// Fault 41: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_rules_suffice_and_all_are_used() {
    let nodes = Nodes::start(4).await;
    let rules = rules();
    for node in 0..4 {
        let user = ["ACL", "SETUSER", "jobs", "reset", "on", ">correct-horse"];
        nodes.node(node).command(&[&user[..], &rules].concat()).await.unwrap();
        nodes.node(node).command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    }
    let login = |url: String| url.replace("redlock://", "redlock://jobs:correct-horse@");
    let old = login(nodes.url(&[0, 1, 2], PARAMS));
    init(&old).await.unwrap();
    let locks = connect(&old).await.unwrap();
    exclusive(&locks, &nodes, &old).await;
    shared(&locks).await;
    locks.close().await.unwrap();

    let new = login(nodes.url(&[0, 1, 3], &format!("{PARAMS}&set_epoch=2")));
    replace(&old, &new).await.unwrap();
    open_when_due(&new).await.unwrap();

    let mut all = Vec::new();
    for node in 0..4 {
        all.extend(used(nodes.node(node)).await);
    }
    for command in rules.iter().filter_map(|rule| rule.strip_prefix('+')) {
        assert!(all.iter().any(|used| used == command), "{command} is not needed: {all:?}");
    }
}

async fn exclusive(locks: &Locks, nodes: &Nodes, url: &str) {
    let guard = acquire(locks, "a").await;
    let waiter = spawn_waiter(locks, "a");
    until_queued(locks, "a", 1).await;
    release(guard).await;
    let guard = until_granted(waiter).await;
    until_renewed(locks, &guard, TTL).await;
    // A lost connection: the next one ends it, if it is still open.
    let killed = nodes.node(0).command(&["CLIENT", "KILL", "USER", "jobs"]).await.unwrap();
    assert_ne!(killed, "0");
    until("it is connected again", async || {
        used(nodes.node(0)).await.iter().any(|command| command == "client|kill")
    })
    .await;
    // A node that was too busy to vote has it by a renewal.
    until("each node says its token", async || {
        status(url, Some("a")).await.unwrap().iter().all(|node| {
            let seen = || node.seen.as_ref().ok()?.lock.as_ref()?.as_ref().ok()?.last_token;
            node.takes_part() && seen().is_some()
        })
    })
    .await;
    let holder = locks.inspect("a").await.unwrap().holders.pop().expect("it is held");
    assert!(locks.evict("a", &holder.id).await.unwrap());
    // A node that a busy machine keeps from answering in time may still have it.
    until("it is notified", async || {
        let is_lost = timeout(ms(1000), guard.lost()).await.is_ok();
        if !is_lost {
            // By the answer of the others it was removed.
            let _ = locks.evict("a", &holder.id).await;
        }
        is_lost
    })
    .await;
}

async fn shared(locks: &Locks) {
    let reader = || locks.rw_lock("b").read();
    let (one, two) = (reader().acquire().await.unwrap(), reader().acquire().await.unwrap());
    let writer = locks.rw_lock("b").write();
    let writer = tokio::spawn(async move { writer.acquire().await });
    until_queued(locks, "b", 1).await;
    until_renewed(locks, &one, TTL).await;
    release(one).await;
    release(two).await;
    release(until_granted(writer).await).await;
}
