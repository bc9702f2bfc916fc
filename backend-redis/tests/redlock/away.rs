//! A minority of nodes that fails, each in its own way: the others suffice, no request waits for the
//! failed ones, and nothing is left on them when they are back.

use fencelock_core::{Locks, Scratch};
use fencelock_testkit::proxy::{Close, Direction, NewConnections};

use crate::support::*;

const TTL: std::time::Duration = ms(3000);

/// Performs all that a client does, with the nodes as they are.
async fn all_operations_work(locks: &Locks, other: &Locks) {
    let fresh = acquire(locks, "fresh").await;
    assert!(is_busy(other, "fresh").await);
    let waiter = spawn_waiter(other, "fresh");
    until_queued(locks, "fresh", 1).await;
    let before = fresh.fencing_token();
    release(fresh).await;
    let next = until_granted(waiter).await;
    assert!(next.fencing_token() > before);
    release(next).await;
    let reader = soon("a reader", locks.rw_lock("shared").read().acquire()).await.unwrap();
    let second = soon("a reader", other.rw_lock("shared").read().acquire()).await.unwrap();
    assert!(is_busy(other, "shared").await);
    release(reader).await;
    release(second).await;
}

/// Breaks nodes, which heal only after everything else was done: so no request has waited for them.
pub(crate) async fn with_a_minority(
    sizes: &[(usize, &[usize])],
    break_it: impl AsyncFn(&TestQuorum, &Lines, usize),
    heal_it: impl AsyncFn(&TestQuorum, &Lines, usize),
) {
    for (count, broken) in sizes {
        let quorum = TestQuorum::new(*count, LONG).await;
        with_these(&quorum, broken, &break_it, &heal_it).await;
    }
}

async fn with_these(
    quorum: &TestQuorum,
    broken: &[usize],
    break_it: impl AsyncFn(&TestQuorum, &Lines, usize),
    heal_it: impl AsyncFn(&TestQuorum, &Lines, usize),
) {
    let lines = quorum.lines().await;
    let (locks, other) = (lines.connect(LONG).await, lines.connect(LONG).await);
    let renewing = locks.lock("renewed").ttl(TTL).acquire().await.unwrap();
    let held = acquire(&locks, "held").await;
    quorum.held_everywhere("renewed", &[]).await;
    quorum.held_everywhere("held", &[]).await;
    for node in broken {
        break_it(quorum, &lines, *node).await;
    }
    all_operations_work(&locks, &other).await;
    until_renewed(&locks, &renewing, TTL).await;
    until_renewed(&locks, &renewing, TTL).await;
    release(held).await;
    // A client that connects meanwhile does not need them either.
    let late = lines.connect(LONG).await;
    all_operations_work(&late, &locks).await;
    assert!(is_busy(&late, "renewed").await);
    release(renewing).await;
    for node in broken {
        heal_it(quorum, &lines, *node).await;
    }
    quorum.drained().await;
    all_operations_work(&locks, &other).await;
    quorum.drained().await;
}

pub(crate) const ONE: (usize, &[usize]) = (3, &[1]);
const TWO: (usize, &[usize]) = (5, &[0, 3]);

/// Fault 30: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_of_dead_nodes_is_not_needed() {
    with_a_minority(
        &[ONE, TWO],
        async |quorum, _, node| quorum.nodes[node].kill().unwrap(),
        async |quorum, _, node| quorum.nodes[node].restart().await.unwrap(),
    )
    .await;
}

/// Fault 19: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_nodes_are_not_waited_for() {
    with_a_minority(
        &[ONE, TWO],
        async |quorum, _, node| quorum.nodes[node].freeze().await.unwrap(),
        async |quorum, _, node| quorum.nodes[node].thaw().unwrap(),
    )
    .await;
}

/// Fault 10: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_receive_nothing_are_not_waited_for() {
    with_a_minority(
        &[ONE, TWO],
        async |_, lines, node| lines.lose(&[node]),
        async |_, lines, node| lines.proxies[node].heal().await.unwrap(),
    )
    .await;
}

/// The nodes execute the requests, and the replies are lost.
/// Fault 11: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_execute_without_replying_are_not_waited_for() {
    with_a_minority(
        &[ONE, TWO],
        async |_, lines, node| lines.proxies[node].black_hole(Direction::ToClient),
        async |_, lines, node| lines.proxies[node].heal().await.unwrap(),
    )
    .await;
}

/// Replies held back for longer than the whole test: a delay that works on any machine.
/// Fault 13: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_nodes_are_not_waited_for() {
    with_a_minority(
        &[ONE],
        async |_, lines, node| lines.proxies[node].stall(Direction::ToClient),
        async |_, lines, node| lines.proxies[node].heal().await.unwrap(),
    )
    .await;
    with_a_minority(
        &[TWO],
        async |_, lines, node| lines.proxies[node].delay(Direction::ToClient, ms(400)),
        async |_, lines, node| lines.proxies[node].heal().await.unwrap(),
    )
    .await;
}

/// Fault 16: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flapping_nodes_are_not_waited_for() {
    let quorum = TestQuorum::new(3, LONG).await;
    let lines = quorum.lines().await;
    let (locks, other) = (lines.connect(LONG).await, lines.connect(LONG).await);
    let renewing = locks.lock("renewed").ttl(TTL).acquire().await.unwrap();
    let flapping = &lines.proxies[2];
    flapping.flap(ms(100), ms(100), Close::Reset, NewConnections::Refused).await.unwrap();
    while flapping.stats().cuts < 5 {
        all_operations_work(&locks, &other).await;
    }
    until_renewed(&locks, &renewing, TTL).await;
    release(renewing).await;
    flapping.heal().await.unwrap();
    quorum.drained().await;
}

/// Faults 26, 27: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_became_replicas_are_not_asked() {
    with_a_minority(
        &[ONE, TWO],
        async |quorum, _, node| {
            redis_command(&quorum.nodes[2], &["CONFIG", "SET", "repl-diskless-sync-delay", "0"])
                .await;
            let master = quorum.nodes[2].port().to_string();
            redis_command(&quorum.nodes[node], &["REPLICAOF", "127.0.0.1", &master]).await;
            until("it follows", async || {
                redis_command(&quorum.nodes[node], &["INFO", "replication"])
                    .await
                    .contains("master_link_status:up")
            })
            .await;
        },
        async |quorum, _, node| {
            drop(redis_command(&quorum.nodes[node], &["REPLICAOF", "NO", "ONE"]).await);
        },
    )
    .await;
}

#[tokio::test]
async fn an_unreachable_node_does_not_keep_others_from_being_cleared() {
    let quorum = TestQuorum::new(3, LONG).await;
    let scratch = Scratch::fresh("", "test");
    let locks = quorum.direct(&format!("{LONG}&prefix={}", scratch.prefix())).await;
    for name in ["a", "b", "c"] {
        release(acquire(&locks, name).await).await;
    }
    quorum.nodes[0].kill().unwrap();
    let error = locks.clear(&scratch, ms(1500)).await.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains(&quorum.nodes[0].addr().to_string()), "{cause}");
    for node in &quorum.nodes[1..] {
        assert_eq!(node.command(&["KEYS", "*"]).await.unwrap(), "fencelock:redlock");
    }
}
