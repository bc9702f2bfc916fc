//! Too few nodes, and grants that come too late: what is said then, and what is left.

use std::time::Duration;

use fencelock_conformance::proxy::{Close, Direction, NewConnections};
use fencelock_core::ErrorKind;
use tokio::time::Instant;

use crate::support::*;

/// Row 30.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_the_error_lists_each_nodes_report() {
    let rig = Rig::new(3, LONG).await;
    let lines = rig.lines().await;
    let locks = lines.connect(LONG).await;
    rig.nodes[1].kill().unwrap();
    rig.nodes[2].freeze().await.unwrap();
    let error = in_vain(&locks, "lock", ms(700)).await;
    assert_kind(&error, ErrorKind::Unreachable);
    let said = words(&error);
    assert!(said.contains("no quorum (2 of 3 nodes required)"), "{said}");
    for (proxy, says) in lines.proxies.iter().zip(["yes", "connect", ""]) {
        let node = format!("{}: ", proxy.addr());
        let of_node = said.split(&node).nth(1).unwrap_or_else(|| panic!("{node} in {said}"));
        let said = of_node.split(';').next().unwrap();
        assert!(said.contains(says) && !said.is_empty(), "{node}{said}");
    }
    // Who connects now is told the same.
    let briefly = format!("{LONG}&unreachable_after=10s");
    let error = try_connect(&lines.url(&briefly)).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(words(&error).contains(&lines.proxies[1].addr().to_string()), "{error}");
    rig.nodes[1].restart().await.unwrap();
    rig.nodes[2].thaw().unwrap();
    let thawed = Instant::now();
    rig.drained().await;
    println!("{:?} after the last node was back nothing was left", thawed.elapsed());
    give_back(hold(&locks, "lock").await).await;
    rig.drained().await;
}

/// Row 41, for what a person asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_that_the_nodes_refuse_reports_each_reply() {
    let rig = Rig::new(3, LONG).await;
    let locks = rig.direct(LONG).await;
    let held = hold(&locks, "lock").await;
    rig.held_everywhere("lock", &[]).await;
    let seen = locks.inspect("lock").await.unwrap();
    for node in &rig.nodes {
        ask(node, &["ACL", "SETUSER", "default", "-del"]).await;
    }
    let error = soon("it is told", locks.evict("lock", &seen.holders[0].id)).await.unwrap_err();
    assert_kind(&error, ErrorKind::Refused);
    assert_eq!(error.to_string().matches("ACL").count(), 3, "{error}");
    for node in &rig.nodes {
        ask(node, &["ACL", "SETUSER", "default", "+del"]).await;
    }
    give_back(held).await;
    rig.drained().await;
}

/// The counterpart of row 30: a release that too few nodes hear of is an error, not a silent
/// success, and is made up for when they are back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_without_a_majority_is_reported_and_completed_later() {
    let params = format!("{LONG}&unreachable_after=1s");
    let rig = Rig::new(3, &params).await;
    let lines = rig.lines().await;
    let locks = lines.connect(&params).await;
    let guard = hold(&locks, "lock").await;
    rig.held_everywhere("lock", &[]).await;
    lines.lose(&[0, 1]);
    let error = soon("the release ends", guard.release()).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    lines.heal().await;
    // Long before the TTL.
    rig.drained().await;
}

/// Row 30: what a round got of too few is given back while the others are still away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_without_a_majority_is_released_at_once() {
    let rig = Rig::new(5, LONG).await;
    let lines = rig.lines().await;
    let locks = lines.connect(LONG).await;
    lines.lose(&[0, 1, 2]);
    for round in 0..5 {
        let error = in_vain(&locks, &format!("lock-{round}"), ms(300)).await;
        assert_kind(&error, ErrorKind::Unreachable);
    }
    rig.drained().await;
    lines.heal().await;
    give_back(hold(&locks, "lock-0").await).await;
    rig.drained().await;
}

/// Lesson 26: another library left a key on some node in 20 of 20 rounds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_round_leaves_a_key_on_any_node() {
    let rig = Rig::new(5, LONG).await;
    let lines = rig.lines().await;
    let locks = lines.connect(LONG).await;
    for round in 0..20 {
        let name = format!("lock-{round}");
        let guard = hold(&locks, &name).await;
        assert!(is_busy(&locks, &name).await);
        give_back(guard).await;
        rig.drained().await;
    }
}

/// Lesson 19: other libraries returned locks that had expired on the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_arrives_after_its_expiry_is_not_a_grant() {
    let params = "ttl=300ms&restart_delay=90s&clock_tolerance=10s&node_timeout=5s";
    let rig = Rig::new(3, params).await;
    let lines = rig.lines().await;
    let locks = lines.connect(params).await;
    for delay in [ms(250), ms(320), ms(400)] {
        lines.proxies.iter().for_each(|proxy| proxy.delay(Direction::ToClient, delay));
        for _ in 0..3 {
            let lock = locks.lock("lock").wait_at_most(ms(900));
            match soon("an answer", lock.acquire()).await {
                Ok(guard) => {
                    assert!(delay < ms(300), "granted after {delay:?}");
                    drop(guard);
                }
                Err(error) => {
                    let kinds = [ErrorKind::Lost, ErrorKind::Unreachable, ErrorKind::WaitTimedOut];
                    assert!(kinds.contains(&error.kind()), "{error}");
                }
            }
        }
    }
    lines.heal().await;
    rig.drained().await;
}

/// The two that are cut off say nothing; the third one's word is not enough to go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_majority_gets_an_error_by_the_deadline() {
    let rig = Rig::new(3, QUICK).await;
    let lines = rig.lines().await;
    let (locks, other) = (lines.connect(QUICK).await, rig.direct(QUICK).await);
    let guard = hold(&locks, "lock").await;
    let waiter = wait_for(&other, "lock");
    queued(&other, "lock", 1).await;
    renewed(&locks, &guard, QUICK_TTL).await;
    let cut = locks.now();
    lines.lose(&[0, 2]);
    lost_in_time(&locks, &guard, cut, QUICK_TTL).await;
    let next = granted(waiter).await;
    assert!(next.fencing_token() > guard.fencing_token());
    // What the late one gives back is not the next one's.
    drop(guard);
    lines.heal().await;
    renewed(&other, &next, QUICK_TTL).await;
    assert!(is_busy(&locks, "lock").await);
    give_back(next).await;
    rig.drained().await;
}

/// An extension plants the lock anew on a node that came later. If nobody hears of it, it is given
/// back all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_lost_reply_acquired_is_released() {
    const TTL: Duration = ms(12_000);
    let rig = Rig::new(3, LONG).await;
    let lines = rig.lines().await;
    lines.proxies[2].cut(Close::Reset, NewConnections::Refused).await.unwrap();
    let locks = lines.connect(LONG).await;
    let guard = locks.lock("lock").ttl(TTL).acquire().await.unwrap();
    lines.heal().await;
    until("the node takes part", async || {
        let probe = hold(&locks, "probe").await;
        let takes_part = !value(&rig.nodes[2], "probe").await.is_empty();
        give_back(probe).await;
        takes_part
    })
    .await;
    rig.drained_but(&["lock"]).await;
    for (_, text) in fencelock_redis::quorum_scripts() {
        // So that the node needs no second message to know the script.
        ask(&rig.nodes[2], &["SCRIPT", "LOAD", text]).await;
    }
    lines.proxies[2].black_hole(Direction::ToClient);
    until("it is planted", async || !value(&rig.nodes[2], "lock").await.is_empty()).await;
    let planted = Instant::now();
    give_back(guard).await;
    lines.heal().await;
    rig.drained().await;
    assert!(planted.elapsed() < TTL - SLACK, "it was not given back, and expired");
}

/// Other libraries write random bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_is_no_text_is_shown_and_evicted() {
    let rig = Rig::new(3, LONG).await;
    let locks = rig.direct(LONG).await;
    let set = "return redis.call('SET', KEYS[1], '\\255\\254\\1', 'PX', 60000)";
    for node in &rig.nodes {
        ask(node, &["EVAL", set, "1", &key("lock")]).await;
    }
    let seen = locks.inspect("lock").await.unwrap();
    assert_eq!(seen.holders.len(), 1);
    let removed = locks.evict("lock", &seen.holders[0].id).await;
    assert!(removed.unwrap(), "it was there");
    rig.drained().await;
}

/// What may not be read is not known to be another's: a release is refused, and says what the nodes
/// said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_may_not_look_is_refused() {
    let rig = Rig::new(3, LONG).await;
    let locks = rig.direct(LONG).await;
    let held = hold(&locks, "lock").await;
    rig.held_everywhere("lock", &[]).await;
    let users = async |rule: &str| {
        for node in &rig.nodes {
            ask(node, &["ACL", "SETUSER", "default", rule]).await;
        }
    };
    users("-get").await;
    let error = soon("it ends", held.release()).await.expect_err("it may not look");
    assert_kind(&error, ErrorKind::Refused);
    assert!(words(&error).contains("the ACL denies it"), "{}", words(&error));
    users("+get").await;
    // The nodes may be asked again before this looks: then nothing is left to evict.
    let seen = locks.inspect("lock").await.unwrap();
    if let Some(left) = seen.holders.first() {
        locks.evict("lock", &left.id).await.unwrap();
    }
    rig.drained().await;
}
