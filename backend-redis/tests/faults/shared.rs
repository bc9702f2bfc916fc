//! What one server and a quorum promise alike, and each tests on its own stores: `#[path]` has both programs
//! use this file.

use std::time::Duration;

use fencelock_core::Locks;
use fencelock_testkit::servers::TestRedis;

use crate::support::*;

/// Row 24: flushes the scripts before each step.
pub(crate) async fn scripts_flushed(
    one: &Locks,
    other: &Locks,
    ttl: Duration,
    flush: impl AsyncFn(),
) {
    flush().await;
    let guard = soon("acquired", one.lock("lock").ttl(ttl).acquire()).await.expect("acquired");
    flush().await;
    let waiter = spawn_waiter(other, "lock");
    until_queued(one, "lock", 1).await;
    flush().await;
    until_renewed(one, &guard, ttl).await;
    flush().await;
    assert!(is_busy(other, "lock").await);
    flush().await;
    release(guard).await;
    flush().await;
    release(until_granted(waiter).await).await;
}

/// A live holder renews its lock, whatever expiry its keys were given meanwhile.
pub(crate) async fn held_without_an_expiry(locks: &Locks, nodes: &[TestRedis], ttl: Duration) {
    let held = acquire(locks, "lock").await;
    let waiter = spawn_waiter(locks, "lock");
    until_queued(locks, "lock", 1).await;
    for _ in 0..3 {
        for node in nodes {
            redis_command(node, &["PERSIST", "lock:lock"]).await;
            until("it has an end", async || {
                redis_command(node, &["PTTL", "lock:lock"]).await != "-1"
            })
            .await;
        }
        until_renewed(locks, &held, ttl).await;
    }
    assert!(!waiter.is_finished(), "two hold it");
    release(held).await;
    release(until_granted(waiter).await).await;
}

/// Other libraries write random bytes, and somebody what looks like a claim, nearly or all of it: of a channel that nobody
/// here may use, or of a TTL that the server takes for an error.
pub(crate) async fn what_another_program_wrote(locks: &Locks, nodes: &[TestRedis]) {
    let owner = "0a".repeat(16);
    let [none, endless] =
        ["0", "9999999999999999999"].map(|ttl| format!("x1 {ttl} lock:@z {owner} l"));
    let elsewhere = format!("x 30000 elsewhere {owner} label");
    let values = ["\\255\\254\\1", "x 30000 elsewhere 0123 label", &elsewhere, &none, &endless];
    for value in values {
        let set = format!("return redis.call('SET', KEYS[1], '{value}', 'PX', 60000)");
        for node in nodes {
            redis_command(node, &["ACL", "SETUSER", "default", "resetchannels", "&lock:*"]).await;
            redis_command(node, &["EVAL", &set, "1", "lock:lock"]).await;
        }
        let seen = locks.inspect("lock").await.expect("an answer");
        assert_eq!(seen.holders.len(), 1, "{value}");
        let waiter = spawn_waiter(locks, "lock");
        until_queued(locks, "lock", 1).await;
        let removed = locks.evict("lock", &seen.holders[0].id).await;
        assert!(removed.expect(value), "{value} was there");
        release(until_granted(waiter).await).await;
    }
    for node in nodes {
        // Who writes a lock chooses no channel.
        assert!(!redis_command(node, &["ACL", "LOG"]).await.contains("elsewhere"));
    }
}

/// Whose attempts a server that was frozen carries out after everybody has given them up. Each check of the waiters
/// meets the first of them only.
pub(crate) async fn waiters_that_are_over(locks: &Locks, nodes: &[TestRedis]) {
    let held = acquire(locks, "lock").await;
    let over = spawn_waiter(locks, "lock");
    until_queued(locks, "lock", 1).await;
    let queue = "{lock:lock}:q";
    let mut entry = String::new();
    // Of a quorum, others may have it before this node.
    until("an entry", async || {
        entry = redis_command(&nodes[0], &["ZRANGE", queue, "1", "1", "WITHSCORES"]).await;
        entry.contains('\n')
    })
    .await;
    let (entry, arrival) = entry.trim_end().split_once('\n').expect("an entry");
    over.abort();
    until_queued(locks, "lock", 0).await;
    let waiter = spawn_waiter(locks, "lock");
    until_queued(locks, "lock", 1).await;
    let owner = entry.split(' ').nth(3).expect("an owner");
    for (node, n) in nodes.iter().flat_map(|node| (10..90).map(move |n| (node, n))) {
        let entry = entry.replace(owner, &format!("{n}{}", &owner[2..]));
        redis_command(node, &["ZADD", queue, arrival, &entry]).await;
    }
    release(held).await;
    release(until_granted(waiter).await).await;
}
