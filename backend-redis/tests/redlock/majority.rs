//! Too few nodes, and grants that come too late: what is said then, and what is left.

use std::time::Duration;

use fencelock_core::ErrorKind;
use fencelock_testkit::proxy::{Close, Direction, NewConnections};
use tokio::time::Instant;

use crate::support::*;

/// Row 30.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_the_error_lists_each_nodes_report() {
    let testbed = Testbed::new(3, LONG).await;
    let lines = testbed.lines().await;
    let locks = lines.connect(LONG).await;
    testbed.nodes[1].kill().unwrap();
    testbed.nodes[2].freeze().await.unwrap();
    let error = acquire_error(&locks, "lock", ms(700)).await;
    assert_kind(&error, ErrorKind::Unreachable);
    let said = error_chain(&error);
    assert!(said.contains("2 of 3 nodes must agree"), "{said}");
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
    assert!(error_chain(&error).contains(&lines.proxies[1].addr().to_string()), "{error}");
    testbed.nodes[1].restart().await.unwrap();
    testbed.nodes[2].thaw().unwrap();
    let thawed = Instant::now();
    testbed.drained().await;
    println!("{:?} after the last node was back nothing was left", thawed.elapsed());
    release(acquire(&locks, "lock").await).await;
    testbed.drained().await;
}

/// Row 41, for what a person asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_that_the_nodes_refuse_reports_each_reply() {
    let testbed = Testbed::new(3, LONG).await;
    let locks = testbed.direct(LONG).await;
    let held = acquire(&locks, "lock").await;
    testbed.held_everywhere("lock", &[]).await;
    let seen = locks.inspect("lock").await.unwrap();
    for node in &testbed.nodes {
        redis_command(node, &["ACL", "SETUSER", "default", "-del"]).await;
    }
    let error = soon("it is told", locks.evict("lock", &seen.holders[0].id)).await.unwrap_err();
    assert_kind(&error, ErrorKind::Refused);
    assert_eq!(error.to_string().matches("ACL").count(), 3, "{error}");
    for node in &testbed.nodes {
        redis_command(node, &["ACL", "SETUSER", "default", "+del"]).await;
    }
    release(held).await;
    testbed.drained().await;
}

/// The counterpart of row 30: a release that too few nodes hear of is an error, not a silent
/// success, and is made up for when they are back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_without_a_majority_is_reported_and_completed_later() {
    let params = format!("{LONG}&unreachable_after=1s");
    let testbed = Testbed::new(3, &params).await;
    let lines = testbed.lines().await;
    let locks = lines.connect(&params).await;
    let guard = acquire(&locks, "lock").await;
    testbed.held_everywhere("lock", &[]).await;
    lines.lose(&[0, 1]);
    let error = soon("the release ends", guard.release()).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    lines.heal().await;
    // Long before the TTL.
    testbed.drained().await;
}

/// Row 30: what a round got of too few is given back while the others are still away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_without_a_majority_is_released_at_once() {
    let testbed = Testbed::new(5, LONG).await;
    let lines = testbed.lines().await;
    let locks = lines.connect(LONG).await;
    lines.lose(&[0, 1, 2]);
    for round in 0..5 {
        let error = acquire_error(&locks, &format!("lock-{round}"), ms(300)).await;
        assert_kind(&error, ErrorKind::Unreachable);
    }
    testbed.drained().await;
    lines.heal().await;
    release(acquire(&locks, "lock-0").await).await;
    testbed.drained().await;
}

/// Lesson 26: another library left a key on some node in 20 of 20 rounds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_round_leaves_a_key_on_any_node() {
    let testbed = Testbed::new(5, LONG).await;
    let lines = testbed.lines().await;
    let locks = lines.connect(LONG).await;
    for round in 0..20 {
        let name = format!("lock-{round}");
        let guard = acquire(&locks, &name).await;
        assert!(is_busy(&locks, &name).await);
        release(guard).await;
        testbed.drained().await;
    }
}

/// Lesson 19: other libraries returned locks that had expired on the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_arrives_after_its_expiry_is_not_a_grant() {
    let params = "ttl=300ms&restart_delay=90s&clock_tolerance=10s&node_timeout=5s";
    let testbed = Testbed::new(3, params).await;
    let lines = testbed.lines().await;
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
    testbed.drained().await;
}

/// The two that are cut off say nothing; the third one's word is not enough to go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_majority_gets_an_error_by_the_deadline() {
    let testbed = Testbed::new(3, QUICK).await;
    let lines = testbed.lines().await;
    let (locks, other) = (lines.connect(QUICK).await, testbed.direct(QUICK).await);
    let guard = acquire(&locks, "lock").await;
    let waiter = spawn_waiter(&other, "lock");
    until_queued(&other, "lock", 1).await;
    until_renewed(&locks, &guard, QUICK_TTL).await;
    let cut = locks.now();
    lines.lose(&[0, 2]);
    assert_lost_in_time(&locks, &guard, cut, QUICK_TTL).await;
    let next = until_granted(waiter).await;
    assert!(next.fencing_token() > guard.fencing_token());
    // What the late one gives back is not the next one's.
    drop(guard);
    lines.heal().await;
    until_renewed(&other, &next, QUICK_TTL).await;
    assert!(is_busy(&locks, "lock").await);
    release(next).await;
    testbed.drained().await;
}

/// An extension plants the lock anew on a node that came later. If nobody hears of it, it is given
/// back all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_lost_reply_acquired_is_released() {
    const TTL: Duration = ms(12_000);
    let testbed = Testbed::new(3, LONG).await;
    let lines = testbed.lines().await;
    lines.proxies[2].cut(Close::Reset, NewConnections::Refused).await.unwrap();
    let locks = lines.connect(LONG).await;
    let guard = locks.lock("lock").ttl(TTL).acquire().await.unwrap();
    lines.heal().await;
    until("the node takes part", async || {
        let probe = acquire(&locks, "probe").await;
        let takes_part = !value(&testbed.nodes[2], "probe").await.is_empty();
        release(probe).await;
        takes_part
    })
    .await;
    testbed.drained_but(&["lock"]).await;
    for (_, text) in fencelock_redis::quorum_scripts() {
        // So that the node needs no second message to know the script.
        redis_command(&testbed.nodes[2], &["SCRIPT", "LOAD", text]).await;
    }
    lines.proxies[2].black_hole(Direction::ToClient);
    until("it is planted", async || !value(&testbed.nodes[2], "lock").await.is_empty()).await;
    let planted = Instant::now();
    release(guard).await;
    lines.heal().await;
    testbed.drained().await;
    assert!(planted.elapsed() < TTL - SLACK, "it was not given back, and expired");
}

/// Other libraries write random bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_is_no_text_is_shown_and_evicted() {
    let testbed = Testbed::new(3, LONG).await;
    let locks = testbed.direct(LONG).await;
    let set = "return redis.call('SET', KEYS[1], '\\255\\254\\1', 'PX', 60000)";
    for node in &testbed.nodes {
        redis_command(node, &["EVAL", set, "1", &key("lock")]).await;
    }
    let seen = locks.inspect("lock").await.unwrap();
    assert_eq!(seen.holders.len(), 1);
    let removed = locks.evict("lock", &seen.holders[0].id).await;
    assert!(removed.unwrap(), "it was there");
    testbed.drained().await;
}

/// What may not be read is not known to be another's: a release is refused, and says what the nodes
/// said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_may_not_look_is_refused() {
    let testbed = Testbed::new(3, LONG).await;
    let locks = testbed.direct(LONG).await;
    let held = acquire(&locks, "lock").await;
    testbed.held_everywhere("lock", &[]).await;
    let users = async |rule: &str| {
        for node in &testbed.nodes {
            redis_command(node, &["ACL", "SETUSER", "default", rule]).await;
        }
    };
    users("-get").await;
    let error = soon("it ends", held.release()).await.expect_err("it may not look");
    assert_kind(&error, ErrorKind::Refused);
    assert!(error_chain(&error).contains("the ACL denies it"), "{}", error_chain(&error));
    users("+get").await;
    // The nodes may be asked again before this looks: then nothing is left to evict.
    let seen = locks.inspect("lock").await.unwrap();
    if let Some(left) = seen.holders.first() {
        locks.evict("lock", &left.id).await.unwrap();
    }
    testbed.drained().await;
}
