//! Crowds of waiters whose process has ended, in the queues of all nodes.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::support::*;

const NAME: &str = "crowded";
const CROWD: usize = 10_000;

/// The waiters of a process that has just looked for the last time, as they lie in a node's queue: more
/// than a process on a small machine can enter at all nodes.
const PLANT: &str = "
local time = redis.call('TIME')
for n = 1, tonumber(ARGV[1]) do
  local owner = string.format('%032x', n)
  redis.call('ZADD', KEYS[1], time[1] * 1000000 + n, 'x 60000 lock:@dead ' .. owner .. ' host')
end
redis.call('ZADD', KEYS[1], time[1] * 1000 + 3000, '@lock:@dead')
redis.call('PEXPIRE', KEYS[1], 10000)
return 1";

/// Awaits that no more and no less wait at a majority of the nodes.
async fn wait(rig: &Rig, waiters: usize) {
    let queue = format!("{{{}}}:q", key(NAME));
    until(&format!("{waiters} wait"), async || {
        let mut nodes = 0;
        for node in &rig.nodes {
            let count = ask(node, &["ZCOUNT", &queue, "1000000000000000", "+inf"]).await;
            nodes += usize::from(count == waiters.to_string());
        }
        nodes >= 2
    })
    .await;
}

/// Nodes pass over the dead each at its own pace, and none of them holds the others up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_dead_waiters_delays_the_others_by_seconds() {
    // A busy machine plants for long.
    let params = &format!("{LONG}&node_timeout=5s");
    let rig = Rig::new(3, params).await;
    let locks = rig.direct(params).await;
    for freed_at_once in [true, false] {
        let held = hold(&locks, NAME).await;
        for node in &rig.nodes {
            let queue = format!("{{{}}}:q", key(NAME));
            ask(node, &["EVAL", PLANT, "1", &queue, &CROWD.to_string()]).await;
        }
        // Behind all of them, whose arrivals are the first of their second.
        sleep(Duration::from_micros(CROWD as u64)).await;
        let waiter = wait_for(&locks, NAME);
        if freed_at_once {
            wait(&rig, CROWD + 1).await;
        } else {
            // Those who look pass over the dead while the lock is held, too.
            wait(&rig, 1).await;
        }
        let freed = Instant::now();
        give_back(held).await;
        let guard = granted(waiter).await;
        println!("freed at once: {freed_at_once}: {:?}", freed.elapsed());
        give_back(guard).await;
        rig.drained().await;
    }
}
