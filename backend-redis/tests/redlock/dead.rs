//! Crowds of waiters whose process has ended, in the queues of all nodes.

use crate::crowd_process::{self, End, LOCK};
use crate::support::*;

async fn behind_a_crowd(end: End, freed_at_once: bool) {
    // A busy machine queues for long.
    let rig = Rig::new(3, &format!("{LONG}&node_timeout=5s")).await;
    let locks = rig.direct(&format!("{LONG}&node_timeout=5s")).await;
    // The shortest queue of a majority.
    let waiting = async || {
        let queue = format!("{{{}}}:q", key(LOCK));
        let mut counts = Vec::new();
        for node in &rig.nodes {
            let count = ask(node, &["ZCOUNT", &queue, "1000000000000000", "+inf"]).await;
            counts.push(count.parse().expect("a number"));
        }
        counts.sort_unstable();
        counts[1]
    };
    // What one of them was granted as it ended is soon free.
    let url = rig.url("ttl=5s&restart_delay=90s&clock_tolerance=10s&node_timeout=5s");
    crowd_process::behind_a_crowd(&locks, &url, waiting, end, freed_at_once).await;
    rig.drained().await;
}

/// Nodes pass over the dead each at its own pace, and none of them holds the others up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_crowd_of_waiters_delays_the_others_by_seconds() {
    behind_a_crowd(End::Killed, true).await;
    behind_a_crowd(End::Killed, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_crowd_of_waiters_delays_the_others_by_seconds() {
    behind_a_crowd(End::Stopped, true).await;
}
