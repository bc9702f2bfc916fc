//! A foreign client that acquires the lock again as soon as it has released it.

use std::time::Duration;

use tokio::time::Instant;

use crate::foreign::peer::{Library, Peer};
use crate::foreign::testbed::Testbed;

const TRIES: usize = 30;
/// Without being notified of their releases, one grant would take minutes.
const AT_MOST: Duration = Duration::from_secs(10);

#[tokio::test]
async fn three_redis_py_without_a_pause_do_not_starve_us() {
    against(3, 0).await;
}

/// Nearly always held: occasional polling would hardly ever find it free.
#[tokio::test]
async fn a_redis_py_that_works_under_its_lock_without_a_pause_does_not_starve_us() {
    against(1, 5).await;
}

/// `FOREIGN_HOLD_MS` sets how long they hold the lock.
async fn against(processes: usize, hold_ms: u64) {
    let hold = std::env::var("FOREIGN_HOLD_MS").unwrap_or_else(|_| hold_ms.to_string());
    let testbed = Testbed::start().await;
    let mut peers = Vec::new();
    for _ in 0..processes {
        let mut peer = Peer::start(Library::RedisPy, &testbed.server).await;
        assert_eq!(peer.ask(&format!("hammer lock:a {hold}")).await, "hammering");
        peers.push(peer);
    }
    let lock = testbed.locks.lock("a");
    let mut waits = Vec::new();
    for _ in 0..TRIES {
        // They compete again.
        testbed.until_refused(4).await;
        let asked = Instant::now();
        let guard = lock.acquire().await.unwrap();
        waits.push(asked.elapsed());
        guard.release().await.unwrap();
    }
    waits.sort();
    let at = |percent: usize| waits[(TRIES - 1) * percent / 100];
    let (p50, p90, max) = (at(50), at(90), at(100));
    println!("{processes} redis-py, held {hold} ms: p50 {p50:?}, p90 {p90:?}, max {max:?}");
    assert!(max < AT_MOST, "granted after {waits:?}");
}
