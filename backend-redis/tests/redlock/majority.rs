//! Too few nodes, and grants that arrive too late: what the error says, and what is left.

use std::time::Duration;

use fencelock_core::{ErrorKind, LostReason};
use fencelock_testkit::proxy::{Close, Direction, NewConnections};
use tokio::time::Instant;

use crate::shared::what_another_program_wrote;
use crate::support::*;

/// Row 30.
/// Fault 30: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_the_error_lists_each_nodes_report() {
    let params = "ttl=60s&restart_delay=90s&clock_tolerance=10s&node_timeout=3s";
    let quorum = TestQuorum::new(3, params).await;
    let lines = quorum.lines().await;
    let locks = lines.connect(params).await;
    quorum.nodes[1].kill().unwrap();
    quorum.nodes[2].freeze().await.unwrap();
    let error = acquire_error(&locks, "lock", ms(4000)).await;
    assert_kind(&error, ErrorKind::Unreachable);
    let said = error_chain(&error);
    assert!(said.contains("no quorum (2 of 3 nodes required)"), "{said}");
    for (proxy, says) in lines.proxies.iter().zip([&["yes", "ready"][..], &["connect"], &[""]]) {
        // The last time: the URL names it, too.
        let node = proxy.addr().to_string();
        let (_, of_node) = said.rsplit_once(&node).unwrap_or_else(|| panic!("{node} in {said}"));
        let said = of_node.split(';').next().unwrap();
        assert!(says.iter().any(|word| said.contains(word)) && !said.is_empty(), "{node}{said}");
    }
    // A client that connects now gets the same error.
    let briefly = format!("{params}&unreachable_after=3s");
    let error = try_connect(&lines.url(&briefly)).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(error_chain(&error).contains(&lines.proxies[1].addr().to_string()), "{error}");
    quorum.nodes[1].restart().await.unwrap();
    quorum.nodes[2].thaw().unwrap();
    quorum.drained().await;
    release(acquire(&locks, "lock").await).await;
    quorum.drained().await;
}

/// Not at a node that never had it either, whatever the third, which was silent, says later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_operator_evicts_is_not_taken_back() {
    let quorum = TestQuorum::new(3, LONG).await;
    let lines = quorum.lines().await;
    let (locks, operator) = (lines.connect(LONG).await, quorum.direct(LONG).await);
    lines.proxies[2].cut(Close::Reset, NewConnections::Refused).await.unwrap();
    let held = acquire(&locks, "lock").await;
    quorum.held_everywhere("lock", &[2]).await;
    quorum.nodes[0].freeze().await.unwrap();
    lines.proxies[2].heal().await.unwrap();
    // By a majority, which needs it.
    let other = acquire(&locks, "other").await;
    let seen = operator.inspect("lock").await.unwrap();
    let value = value(&quorum.nodes[1], "lock").await;
    let holds = value.split(' ').nth(3).expect("an owner").to_owned();
    assert!(operator.evict("lock", &seen.holders[0].id).await.unwrap());
    let reason = soon("the holder is notified", held.lost()).await;
    assert_eq!(reason, LostReason::TakenAway);
    quorum.nodes[0].thaw().unwrap();
    release(other).await;
    // Who may use other keys alone may list these.
    let remembered = redis_command(&quorum.nodes[1], &["KEYS", "*:e:*"]).await;
    assert!(remembered.contains(":e:"), "{remembered}");
    assert!(!remembered.contains(&holds), "an owner in the name of a key: {remembered}");
    drop(held);
    quorum.drained().await;
}

/// One node of three has carried it out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_that_a_majority_refuses_costs_a_waiter_nothing() {
    let quorum = TestQuorum::new(3, LONG).await;
    let locks = quorum.direct(LONG).await;
    let held = acquire(&locks, "lock").await;
    let first = spawn_waiter(&locks, "lock");
    until_queued(&locks, "lock", 1).await;
    let evicted = locks.inspect("lock").await.unwrap().waiters.remove(0).id;
    let second = spawn_waiter(&locks, "lock");
    until_queued(&locks, "lock", 2).await;
    redis_command(&quorum.nodes[2], &["CONFIG", "RESETSTAT"]).await;
    for node in &quorum.nodes[..2] {
        redis_command(node, &["ACL", "SETUSER", "default", "-publish"]).await;
    }
    let error = locks.evict("lock", &evicted).await.unwrap_err();
    assert_kind(&error, ErrorKind::Refused);
    quorum.rule("+publish").await;
    let stats = async || redis_command(&quorum.nodes[2], &["INFO", "commandstats"]).await;
    until("the third has done it", async || stats().await.contains("cmdstat_publish:")).await;
    // What the client makes of it is sent before this.
    release(acquire(&locks, "other").await).await;
    release(held).await;
    release(until_granted(first).await).await;
    release(until_granted(second).await).await;
    quorum.drained().await;
}

/// Row 41, for an operator's request: by rules that name the keys of single locks, or where they may not notify the holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_that_the_nodes_may_not_remember_is_an_error() {
    let quorum = TestQuorum::new(3, LONG).await;
    let locks = quorum.direct(LONG).await;
    let held = acquire(&locks, "lock").await;
    quorum.held_everywhere("lock", &[]).await;
    let holder = locks.inspect("lock").await.unwrap().holders.remove(0).id;
    let key = key("lock");
    let of_one =
        ["resetkeys", &format!("~{key}"), &format!("~{{{key}}}:q"), &format!("~{{{key}}}:f")];
    let of_one = [&of_one[..], &["~fencelock:redlock"]].concat();
    for (denied, allowed) in [
        (&of_one[..], "allkeys"),
        (&["-publish"], "+publish"),
        (&["-set"], "+set"),
        (&["-del"], "+del"),
        (&["-zrem"], "+zrem"),
        (&["-zrange"], "+zrange"),
    ] {
        for rule in denied {
            quorum.rule(rule).await;
        }
        let evicted = soon("the eviction ends", locks.evict("lock", &holder)).await;
        let error = evicted.unwrap_err();
        assert_kind(&error, ErrorKind::Refused);
        assert_eq!(error.to_string().matches("ACL").count(), 3, "{error}");
        quorum.held_everywhere("lock", &[]).await;
        quorum.rule(allowed).await;
    }
    release(held).await;
    quorum.drained().await;
}

/// The counterpart of row 30: a release that reaches too few nodes is an error, not a silent success,
/// and is completed when they are back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_without_a_majority_is_reported_and_completed_later() {
    let params = format!("{LONG}&unreachable_after=2s");
    let quorum = TestQuorum::new(3, &params).await;
    let lines = quorum.lines().await;
    let locks = lines.connect(&params).await;
    let guard = acquire(&locks, "lock").await;
    quorum.held_everywhere("lock", &[]).await;
    lines.lose(&[0, 1]);
    let error = soon("the release ends", guard.release()).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    lines.heal().await;
    // Long before the TTL.
    quorum.drained().await;
}

/// Row 30: what a round acquired on too few nodes is released while the others are unreachable.
/// Fault 30: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_without_a_majority_is_released_at_once() {
    let quorum = TestQuorum::new(5, LONG).await;
    let lines = quorum.lines().await;
    let locks = lines.connect(LONG).await;
    lines.lose(&[0, 1, 2]);
    for round in 0..5 {
        let error = acquire_error(&locks, &format!("lock-{round}"), ms(300)).await;
        assert_kind(&error, ErrorKind::Unreachable);
    }
    quorum.drained().await;
    lines.heal().await;
    release(acquire(&locks, "lock-0").await).await;
    quorum.drained().await;
}

/// Lesson 19: other libraries returned locks that had expired in transit.
/// Fault 4: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_arrives_after_its_expiry_is_not_a_grant() {
    let params = "ttl=300ms&restart_delay=90s&clock_tolerance=10s&node_timeout=5s";
    let quorum = TestQuorum::new(3, params).await;
    let lines = quorum.lines().await;
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
    quorum.drained().await;
}

/// The two nodes that are cut off do not reply; the third one's reply is not enough to continue.
/// Fault 10: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_majority_gets_an_error_by_the_deadline() {
    let quorum = TestQuorum::new(3, QUICK).await;
    let lines = quorum.lines().await;
    let (locks, other) = (lines.connect(QUICK).await, quorum.direct(QUICK).await);
    let guard = acquire(&locks, "lock").await;
    let waiter = spawn_waiter(&other, "lock");
    until_queued(&other, "lock", 1).await;
    until_renewed(&locks, &guard, QUICK_TTL).await;
    let cut = locks.now();
    lines.lose(&[0, 2]);
    assert_lost_in_time(&locks, &guard, cut, QUICK_TTL).await;
    let next = until_granted(waiter).await;
    assert!(next.fencing_token() > guard.fencing_token());
    // The late release does not free the next holder's lock.
    drop(guard);
    lines.heal().await;
    until_renewed(&other, &next, QUICK_TTL).await;
    assert!(is_busy(&locks, "lock").await);
    release(next).await;
    quorum.drained().await;
}

/// An extension reinstalls the lock on a node that came later. It is released there even if the reply
/// is lost.
/// Fault 7: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_lost_reply_acquired_is_released() {
    const TTL: Duration = ms(12_000);
    let quorum = TestQuorum::new(3, LONG).await;
    let lines = quorum.lines().await;
    lines.proxies[2].cut(Close::Reset, NewConnections::Refused).await.unwrap();
    let locks = lines.connect(LONG).await;
    let guard = locks.lock("lock").ttl(TTL).acquire().await.unwrap();
    lines.heal().await;
    until("the node takes part", async || {
        let probe = acquire(&locks, "probe").await;
        let takes_part = !value(&quorum.nodes[2], "probe").await.is_empty();
        release(probe).await;
        takes_part
    })
    .await;
    quorum.drained_but(&["lock"]).await;
    for (_, text) in fencelock_redis::quorum_scripts() {
        // So that the node needs no second request to load the script.
        redis_command(&quorum.nodes[2], &["SCRIPT", "LOAD", text]).await;
    }
    lines.proxies[2].black_hole(Direction::ToClient);
    until("it is reinstalled", async || !value(&quorum.nodes[2], "lock").await.is_empty()).await;
    let reinstalled = Instant::now();
    release(guard).await;
    lines.heal().await;
    quorum.drained().await;
    assert!(reinstalled.elapsed() < TTL - SLACK, "it was not released, and expired");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_program_wrote_is_shown_and_evicted() {
    let quorum = TestQuorum::new(3, LONG).await;
    what_another_program_wrote(&quorum.direct(LONG).await, &quorum.nodes).await;
    quorum.drained().await;
}

/// A key that may not be read may still be the claim's: the release fails, with each node's reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_may_not_look_is_refused() {
    let quorum = TestQuorum::new(3, LONG).await;
    let locks = quorum.direct(LONG).await;
    let held = acquire(&locks, "lock").await;
    quorum.held_everywhere("lock", &[]).await;
    quorum.rule("-get").await;
    let error = soon("it ends", held.release()).await.expect_err("it may not read");
    assert_kind(&error, ErrorKind::Refused);
    assert!(error_chain(&error).contains("the ACL denies it"), "{}", error_chain(&error));
    quorum.rule("+get").await;
    // The nodes may be asked again before this reads: then nothing is left to evict.
    let seen = locks.inspect("lock").await.unwrap();
    if let Some(left) = seen.holders.first() {
        locks.evict("lock", &left.id).await.unwrap();
    }
    quorum.drained().await;
}

/// Two votes of one server would be a majority of three, and two clients would hold the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_two_names_has_one_vote() {
    let quorum = TestQuorum::new(3, QUICK).await;
    let [two, three] = [1, 2].map(|node| quorum.nodes[node].port());
    for others in [vec![three, two], vec![three, 1]] {
        let hosts = others.into_iter().map(|port| format!("127.0.0.1:{port}"));
        let hosts = hosts.chain([format!("localhost:{three}")]).collect::<Vec<_>>().join(",");
        let url = format!("redlock://{hosts}/0?{QUICK}");
        // With a majority it may be connected before the last name is resolved.
        if let Err(error) = try_connect(&url).await {
            assert_kind(&error, ErrorKind::Refused);
            assert!(error_chain(&error).contains("are one server"), "{error}");
        } else {
            assert!(url.contains(&format!(":{two},")), "one server is no majority");
        }
        let seen = fencelock_redis::redlock::status(&url, None).await.unwrap();
        assert!(seen[0].seen.is_ok() && !seen[2].takes_part(), "{seen:?}");
    }
    // A name leads to another of them later, and the third is away: after the delay of a node without its data.
    let lines = quorum.lines().await;
    let locks = lines.connect(QUICK).await;
    lines.proxies[1].lead_to(quorum.nodes[2].addr());
    lines.proxies[1].close_connections(Close::Reset).await;
    lines.proxies[0].cut(Close::Reset, NewConnections::Refused).await.unwrap();
    until("one vote is refused", async || {
        let tried = locks.lock("lock").wait_at_most(ms(300)).acquire().await;
        error_chain(&tried.expect_err("one server is no majority")).contains("are one server")
    })
    .await;
    let error = soon("it ends", locks.inspect("lock")).await.unwrap_err();
    assert!(error_chain(&error).contains("are one server"), "{error}");
    lines.proxies[1].lead_to(quorum.nodes[1].addr());
    lines.proxies[1].close_connections(Close::Reset).await;
    lines.heal().await;
    release(until_granted(spawn_waiter(&locks, "lock")).await).await;
    quorum.drained().await;
}
