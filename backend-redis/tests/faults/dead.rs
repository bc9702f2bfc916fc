//! Many waiters of a client that is gone: they delay the others by seconds, not minutes. The conformance
//! suite kills and stops real processes that wait; here the crowd is put into the queues.
//!
//! The tests of the store on one server and those of a quorum share this file; `dead_store` is the store.

use futures_util::future::join_all;

use crate::dead_store::DeadStore;
use crate::support::*;

const LOCK: &str = "many";

/// With a second for each step that removes some of them, they would take longer than [`PATIENCE`].
const CROWD: usize = 10_000;

/// Puts the crowd before all others that wait. Its client is silent from `deadline` ms from now on.
async fn crowd(store: &DeadStore, deadline: i64) {
    const PUT: &str = "
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    redis.call('ZADD', KEYS[1], now + ARGV[1], '@lock:@0123456789abcdef')
    for n = 1, ARGV[2] do
      local owner = string.format('%032x', n)
      local waiter = 'x 5000 lock:@0123456789abcdef ' .. owner .. ' host'
      redis.call('ZADD', KEYS[1], string.format('%.0f', (now - 60000) * 1000 + n), waiter)
    end";
    let (queue, deadline) = (format!("{{lock:{LOCK}}}:q"), deadline.to_string());
    let put = ["EVAL", PUT, "1", &queue, &deadline, &CROWD.to_string()];
    join_all(store.nodes().iter().map(|node| redis_command(node, &put))).await;
}

/// Whether exactly `waiters` are queued at a majority of nodes.
async fn are_waiting(store: &DeadStore, waiters: usize) -> bool {
    let queue = format!("{{lock:{LOCK}}}:q");
    let mut agreeing = 0;
    for node in store.nodes() {
        let count = redis_command(node, &["ZCOUNT", &queue, "1000000000000000", "+inf"]).await;
        agreeing += usize::from(count == waiters.to_string());
    }
    agreeing > store.nodes().len() / 2
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_of_a_dead_client_are_removed_while_the_lock_is_held() {
    with_a_crowd(-1, async |store| {
        until("the dead are removed", async || are_waiting(store, 1).await).await;
    })
    .await;
}

/// The lock is handed to one of them, before its end is certain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_of_a_dying_client_delay_the_others_by_seconds() {
    with_a_crowd(2000, async |_| {}).await;
}

async fn with_a_crowd(deadline: i64, before_the_release: impl AsyncFn(&DeadStore)) {
    let store = DeadStore::start().await;
    let locks = store.locks().await;
    let held = acquire(&locks, LOCK).await;
    let waiter = spawn_waiter(&locks, LOCK);
    until("it waits", async || are_waiting(&store, 1).await).await;
    crowd(&store, deadline).await;
    before_the_release(&store).await;
    release(held).await;
    release(until_granted(waiter).await).await;
    store.drained().await;
}
