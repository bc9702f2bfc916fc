//! Mutual exclusion with clients of other libraries.

use std::time::Duration;

use fencelock_core::{ErrorKind, Guard, Locks};
use tokio::time::Instant;

use crate::foreign::peer::{Library, Peer};
use crate::foreign::testbed::Testbed;
use crate::support::redis_command;

const KEY: &str = "lock:a";
/// From a foreign release, which notifies no waiter, to our grant: far less than the TTL of 30 s. How often
/// it is polled is counted in `strangers`.
const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn their_lock_is_busy_for_us_and_ours_soon_after_their_release() {
    for library in Library::ALL {
        let testbed = Testbed::start().await;
        let mut peer = Peer::start(library, &testbed.server).await;
        assert_eq!(peer.ask("try lock:a 30000").await, "held", "{library:?}");
        assert_busy(&testbed.locks).await;
        // A waiter that gives up does not touch their lock.
        let lock = testbed.locks.lock("a").wait_at_most(Duration::from_millis(200));
        let error = lock.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WaitTimedOut, "{library:?}: {error}");

        let lock = testbed.locks.lock("a");
        let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
        testbed.until_queued(KEY).await;
        assert_eq!(peer.ask("release").await, "released", "{library:?}");
        let released = Instant::now();
        let guard = waiting.await.unwrap();
        assert!(released.elapsed() < SOON, "{library:?}: {:?}", released.elapsed());
        assert_eq!(peer.ask("try lock:a 30000").await, "busy", "{library:?}");
        guard.release().await.unwrap();
    }
}

async fn assert_busy(locks: &Locks) {
    let (lock, rw) = (locks.lock("a"), locks.rw_lock("a"));
    for lock in [lock, rw.read(), rw.write(), locks.semaphore("a", 3)] {
        assert!(lock.try_acquire().await.unwrap().is_none(), "{lock:?}");
    }
}

#[tokio::test]
async fn a_lock_that_we_hold_in_any_mode_is_theirs_only_after_our_release() {
    for library in Library::ALL {
        let testbed = Testbed::start().await;
        let mut peer = Peer::start(library, &testbed.server).await;
        let (rw, permits) = (testbed.locks.rw_lock("a"), testbed.locks.semaphore("a", 3));
        for ours in [testbed.locks.lock("a"), rw.read(), rw.write(), permits.permits(2)] {
            let guard = ours.acquire().await.unwrap();
            assert_eq!(peer.ask("try lock:a 30000").await, "busy", "{library:?}, {ours:?}");
            assert_kept_out(&testbed, &mut peer, guard).await;
            assert_eq!(peer.ask("release").await, "released", "{library:?}, {ours:?}");
        }
        // A writer that becomes a reader, too.
        let guard = rw.write().acquire().await.unwrap();
        guard.downgrade().await.unwrap();
        assert_eq!(peer.ask("try lock:a 30000").await, "busy", "{library:?}");
        assert_kept_out(&testbed, &mut peer, guard).await;
    }
}

/// It polls, and is granted after the release and not before.
async fn assert_kept_out(testbed: &Testbed, peer: &mut Peer, guard: Guard) {
    peer.send("acquire lock:a 30000").await;
    testbed.until_refused(3).await;
    let early = tokio::time::timeout(Duration::ZERO, peer.answer()).await;
    assert!(early.is_err(), "it got {early:?} together with {guard:?}");
    guard.release().await.unwrap();
    assert_eq!(peer.answer().await, "held");
}

#[tokio::test]
async fn the_lock_is_ours_after_their_lease_and_their_late_release_does_no_harm() {
    for library in Library::ALL {
        let testbed = Testbed::start().await;
        let mut peer = Peer::start(library, &testbed.server).await;
        let lease = Duration::from_millis(400);
        let asked = Instant::now();
        assert_eq!(peer.ask("try lock:a 400").await, "held", "{library:?}");
        let held = Instant::now();
        let guard = testbed.locks.lock("a").acquire().await.unwrap();
        assert!(asked.elapsed() >= lease, "{library:?}: granted while they held it");
        assert!(held.elapsed() < lease + SOON, "{library:?}: {:?}", held.elapsed());

        assert_eq!(peer.ask("release").await, "not owned", "{library:?}");
        assert!(
            redis_command(&testbed.server, &["GET", KEY]).await.starts_with("x "),
            "{library:?}"
        );
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn our_late_release_does_not_touch_their_lock() {
    for library in Library::ALL {
        let testbed = Testbed::start().await;
        let mut peer = Peer::start(library, &testbed.server).await;
        for ours in [testbed.locks.lock("a"), testbed.locks.rw_lock("a").read()] {
            let guard = ours.acquire().await.unwrap();
            redis_command(&testbed.server, &["DEL", KEY]).await;
            assert_eq!(peer.ask("try lock:a 30000").await, "held", "{library:?}");
            let error = guard.release().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotHeld, "{library:?}: {error}");
            assert_busy(&testbed.locks).await;
            assert_eq!(peer.ask("release").await, "released", "{library:?}");
        }
    }
}
