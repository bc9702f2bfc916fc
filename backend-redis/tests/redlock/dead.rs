//! Crowds of waiters whose process has ended, in the queues of all nodes.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::crowd_process::{Crowd, End, LOCK, size};
use crate::support::*;

/// So many ask at once that nodes on a busy machine are slow.
const PARAMS: &str =
    "restart_delay=90s&clock_tolerance=10s&node_timeout=5s&unreachable_after=5m&ttl=60s";
/// What one of them was granted as it ended is soon free.
const OF_THE_CROWD: &str =
    "restart_delay=90s&clock_tolerance=10s&node_timeout=5s&unreachable_after=5m&ttl=5s";

/// How many wait, node by node.
async fn waiting(rig: &Rig) -> Vec<usize> {
    let mut counts = Vec::new();
    for node in &rig.nodes {
        let queue = format!("{{{}}}:q", key(LOCK));
        let count = ask(node, &["ZCOUNT", &queue, "1000000000000000", "+inf"]).await;
        counts.push(count.parse().expect("a number"));
    }
    counts
}

/// Awaits that so many wait at a majority of the nodes: another may have missed some.
async fn wait(rig: &Rig, waiters: usize, bound: Duration) {
    let deadline = Instant::now() + bound;
    while waiting(rig).await.iter().filter(|count| **count == waiters).count() < 2 {
        assert!(Instant::now() < deadline, "{:?} wait, not {waiters}", waiting(rig).await);
        sleep(ms(20)).await;
    }
}

async fn behind_a_crowd(end: End, freed_at_once: bool) {
    let crowd_size = size(2000);
    let rig = Rig::new(3, PARAMS).await;
    let locks = rig.direct(PARAMS).await;
    let held = hold(&locks, LOCK).await;
    let mut crowd = Crowd::start(&rig.url(OF_THE_CROWD), crowd_size);
    wait(&rig, crowd_size, PATIENCE * 5).await;
    let waiter = wait_for(&locks, LOCK);
    wait(&rig, crowd_size + 1, PATIENCE).await;
    crowd.end(end);
    if !freed_at_once {
        // Those who look pass over the dead while the lock is held, too.
        wait(&rig, 1, PATIENCE).await;
    }
    let freed = Instant::now();
    give_back(held).await;
    let guard = granted(waiter).await;
    println!("{crowd_size} {end:?}, freed at once: {freed_at_once}: {:?}", freed.elapsed());
    give_back(guard).await;
    drop(crowd);
    rig.drained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_crowd_of_waiters_delays_the_others_by_seconds() {
    behind_a_crowd(End::Killed, true).await;
    behind_a_crowd(End::Killed, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_crowd_of_waiters_delays_the_others_by_seconds() {
    behind_a_crowd(End::Stopped, true).await;
}

/// More than a process on a small machine can queue at all nodes: as they would lie there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_dead_delay_the_others_by_seconds() {
    const PLANT: &str = "
    local time = redis.call('TIME')
    for n = 1, 10000 do
      local owner = string.format('%032x', n)
      redis.call('ZADD', KEYS[1], time[1] * 1000000 + n, 'x 60000 lock:@dead ' .. owner .. ' host')
    end
    redis.call('ZADD', KEYS[1], time[1] * 1000 + 3000, '@lock:@dead')
    redis.call('PEXPIRE', KEYS[1], 5000)
    return 1";
    let rig = Rig::new(3, PARAMS).await;
    let locks = rig.direct(PARAMS).await;
    let held = hold(&locks, LOCK).await;
    // The same arrivals everywhere, before those who come now.
    for node in &rig.nodes {
        ask(node, &["EVAL", PLANT, "1", &format!("{{{}}}:q", key(LOCK))]).await;
    }
    sleep(ms(20)).await;
    let waiter = wait_for(&locks, LOCK);
    wait(&rig, 10_001, PATIENCE).await;
    let freed = Instant::now();
    give_back(held).await;
    let guard = granted(waiter).await;
    println!("10000 planted: {:?}", freed.elapsed());
    give_back(guard).await;
    rig.drained().await;
}
