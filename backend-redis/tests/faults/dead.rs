//! Crowds of waiters whose process has ended: what they may cost those who live.

use fencelock_conformance::servers::TestRedis;
use tokio::time::Instant;

use crate::crowd_process::{Crowd, End, LOCK, size};
use crate::support::*;

/// Enough for minutes, were they passed over at the pace of looks.
const CROWD: usize = 3000;
/// For so many processes' worth of work on a busy machine.
const LONG: std::time::Duration = PATIENCE.saturating_mul(3);

async fn waiting(server: &TestRedis) -> usize {
    let queue = format!("{{lock:{LOCK}}}:q");
    let count = ask(server, &["ZCOUNT", &queue, "1000000000000000", "+inf"]).await;
    count.parse().expect("a number")
}

async fn wait(server: &TestRedis, waiters: usize) {
    until(&format!("{waiters} wait"), async || waiting(server).await == waiters).await;
}

/// A lock that is held, with a crowd in its queue and one who lives behind it.
async fn behind_a_crowd(end: End, freed_at_once: bool) {
    let crowd_size = size(CROWD);
    let server = TestRedis::start().await.expect("a server starts");
    let locks = direct(&server, "ttl=60s").await;
    let held = hold(&locks, LOCK).await;
    // What one of them was granted as it ended is soon free.
    let url = format!("redis://{}/0?ttl=5s", server.addr());
    let mut crowd = Crowd::start(&url, crowd_size);
    let deadline = Instant::now() + LONG;
    while waiting(&server).await < crowd_size {
        assert!(Instant::now() < deadline, "the crowd does not queue");
        tokio::time::sleep(ms(20)).await;
    }
    let waiter = wait_for(&locks, LOCK);
    wait(&server, crowd_size + 1).await;
    crowd.end(end);
    if !freed_at_once {
        // Those who look pass over the dead while the lock is held, too.
        wait(&server, 1).await;
    }
    let freed = Instant::now();
    give_back(held).await;
    let guard = granted(waiter).await;
    println!("{crowd_size} {end:?}, freed at once: {freed_at_once}: {:?}", freed.elapsed());
    give_back(guard).await;
    drop(crowd);
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
