//! Crowds of waiters whose process has ended: what they may cost those who live.

use fencelock_conformance::servers::TestRedis;

use crate::crowd_process::{self, End, LOCK};
use crate::support::*;

async fn behind_a_crowd(end: End, freed_at_once: bool) {
    let server = TestRedis::start().await.expect("a server starts");
    let locks = direct(&server, "ttl=60s").await;
    let waiting = async || {
        let queue = format!("{{lock:{LOCK}}}:q");
        let count = ask(&server, &["ZCOUNT", &queue, "1000000000000000", "+inf"]).await;
        count.parse().expect("a number")
    };
    // What one of them was granted as it ended is soon free.
    let url = format!("redis://{}/0?ttl=5s", server.addr());
    crowd_process::behind_a_crowd(&locks, &url, waiting, end, freed_at_once).await;
    drained(&server).await;
}

/// Of a process that ends, all waiters are passed over together: also before anyone could know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_crowd_of_waiters_delays_the_others_by_seconds() {
    behind_a_crowd(End::Killed, true).await;
    behind_a_crowd(End::Killed, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_crowd_of_waiters_delays_the_others_by_seconds() {
    behind_a_crowd(End::Stopped, true).await;
}
