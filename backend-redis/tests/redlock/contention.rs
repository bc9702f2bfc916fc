//! Many clients that want one lock at the same time: split rounds must not continue for ever, and a
//! release must not send all waiters to the nodes.

use std::time::Duration;

use fencelock_conformance::How;
use fencelock_conformance::checker::{Rules, assert_clean};
use fencelock_conformance::history::Worker;
use fencelock_testkit::proxy::Direction;
use fencelock_testkit::servers::TestRedis;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use crate::shared::waiters_that_are_over;
use crate::support::*;

/// How many steps the nodes ran.
async fn calls(nodes: &[TestRedis]) -> u64 {
    let mut all = 0;
    for node in nodes {
        let stats = redis_command(node, &["INFO", "commandstats"]).await;
        let count = |line: &str| {
            let calls = line.strip_prefix("cmdstat_evalsha:calls=")?;
            calls.split(',').next()?.parse::<u64>().ok()
        };
        all += stats.lines().find_map(count).unwrap_or(0);
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contention_causes_no_thundering_herd() {
    const STORES: usize = 5;
    const EACH: usize = 10;
    const TIMES: usize = 3;
    const GRANTS: u64 = (STORES * EACH * TIMES) as u64;
    let quorum = TestQuorum::new(3, LONG).await;
    let stores = join_all((0..STORES).map(|_| quorum.direct(LONG))).await;
    // Loads the scripts, so that no call is counted twice.
    release(acquire(&stores[0], "warm").await).await;
    let (before, started) = (calls(&quorum.nodes).await, Instant::now());
    let clients = stores.iter().cycle().take(STORES * EACH).map(|locks| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let mut worker = Worker::new();
            for _ in 0..TIMES {
                let granted = worker.acquire(&locks, "lock", How::Exclusive).await;
                let (guard, claim) = granted.unwrap();
                sleep(ms(1)).await;
                worker.release(guard, &claim).await.unwrap();
            }
            worker.into_events()
        })
    });
    let clients: Vec<_> = clients.collect();
    let all =
        within(Duration::from_secs(100), "all clients were granted the lock", join_all(clients))
            .await;
    let took = started.elapsed();
    let calls = calls(&quorum.nodes).await - before;
    let rounds = calls as f64 / 3.0 / GRANTS as f64;
    println!("{GRANTS} grants in {took:?}, {rounds:.1} calls of a node for each");
    assert_clean(all.into_iter().flat_map(Result::unwrap).collect(), Rules::default());
    // The minimum is two: a vote and its release. A herd would need fifty.
    assert!(rounds < 25.0, "{rounds} calls of each node for each grant");
    quorum.drained().await;
}

/// Their requests wait in the client for longer than a node has to reply: that is no silence of a node, and what was not
/// sent is not rolled back, which once was all that such a client sent any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_one_client_with_locks_of_its_own_is_served() {
    const CROWD: usize = 5000;
    let quorum = TestQuorum::new(3, LONG).await;
    let briefly = LONG.replace("node_timeout=1s", "node_timeout=100ms");
    let (locks, other) = (quorum.direct(&briefly).await, quorum.direct(LONG).await);
    let clients = (0..CROWD).map(|n| {
        let lock = locks.lock(format!("lock-{n}"));
        tokio::spawn(async move {
            let mut granted = 0;
            for _ in 0..2 {
                if let Ok(guard) = lock.acquire().await {
                    granted += usize::from(guard.release().await.is_ok());
                }
            }
            granted
        })
    });
    let clients: Vec<_> = clients.collect();
    release(acquire(&other, "lock").await).await;
    let served = within(Duration::from_secs(100), "all have ended", join_all(clients)).await;
    let granted: usize = served.into_iter().map(Result::unwrap).sum();
    // On a busy machine a node may be silent for so long itself. Otherwise it was one in a hundred.
    assert!(granted >= CROWD / 4, "{granted} of {}", 2 * CROWD);
    quorum.drained().await;
}

/// Row 12.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_are_over_do_not_keep_others_of_their_client_out() {
    let quorum = TestQuorum::new(3, LONG).await;
    waiters_that_are_over(&quorum.direct(LONG).await, &quorum.nodes).await;
    quorum.drained().await;
}

/// Clients that do not queue and try again and again must not keep the others from winning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tries_do_not_keep_a_waiter_out() {
    let quorum = TestQuorum::new(5, LONG).await;
    let stores = join_all((0..3).map(|_| quorum.direct(LONG))).await;
    let tries = stores[1..].iter().map(|locks| {
        let locks = locks.clone();
        tokio::spawn(async move {
            loop {
                if let Some(guard) = locks.lock("lock").try_acquire().await.unwrap() {
                    guard.release().await.unwrap();
                }
                sleep(ms(1)).await;
            }
        })
    });
    let tries: Vec<_> = tries.collect();
    for _ in 0..20 {
        release(acquire(&stores[0], "lock").await).await;
    }
    tries.iter().for_each(tokio::task::JoinHandle::abort);
    join_all(tries).await;
    quorum.drained().await;
}

/// What a lost reply left is the claim's own, even where it has yet to be rolled back: a try
/// that reported the lock as busy for it would never run a job that no other client runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_claim_is_rejected_for_its_own_earlier_round() {
    // The first round waits until the connections are given up, and cannot roll back.
    let params = "ttl=60s&restart_delay=90s&clock_tolerance=10s&node_timeout=5s";
    let quorum = TestQuorum::new(3, params).await;
    let lines = quorum.lines().await;
    let locks = lines.connect(params).await;
    // All nodes are connected, and have the scripts.
    let warm = acquire(&locks, "warm").await;
    quorum.held_everywhere("warm", &[]).await;
    release(warm).await;
    lines.proxies.iter().for_each(|proxy| proxy.black_hole(Direction::ToClient));
    let lock = locks.lock("lock");
    let tries = tokio::spawn(async move { lock.try_acquire().await });
    quorum.held_everywhere("lock", &[]).await;
    for node in &quorum.nodes {
        let left = value(node, "lock").await;
        // As of a round that is not rolled back before it expires.
        let (round, rest) = left.split_once(' ').unwrap();
        assert_eq!(round, "x1");
        redis_command(node, &["SET", &key("lock"), &format!("x99 {rest}"), "PX", "2000"]).await;
    }
    lines.heal().await;
    let tried = soon("the try ends", tries).await.unwrap();
    release(tried.unwrap().expect("no other client has it")).await;
    quorum.drained().await;
}
