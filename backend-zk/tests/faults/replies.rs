//! Replies that never arrive, though the servers did what was asked.

use fencelock_testkit::proxy::{AfterDrop, DropReply};

use crate::support::*;

const WAYS: [AfterDrop; 3] = [AfterDrop::Fin, AfterDrop::Reset, AfterDrop::BlackHole];

/// Lesson 17.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_creation_was_not_confirmed_is_adopted_and_not_created_twice() {
    let testbed = Testbed::start().await;
    let locks = testbed.behind().await;
    let kept = acquire(&locks, "kept").await;
    // The node of the lock itself is there from now on.
    release(acquire(&locks, "one").await).await;
    for (round, way) in WAYS.into_iter().cycle().take(9).enumerate() {
        testbed.proxy.drop_reply(DropReply::first(way).matching(is(Op::Create))).unwrap();
        let acquiring = spawn_waiter(&locks, "one");
        soon("a reply is lost", testbed.proxy.dropped_reply()).await;
        let [made] = &testbed.nodes("one").await[..] else { panic!("one node is made") };
        let made = testbed.stat(made).await.expect("it is there");
        if matches!(way, AfterDrop::BlackHole) {
            // For less than half of the session timeout.
            tokio::time::sleep(T / 4).await;
            testbed.proxy.heal().await.unwrap();
        }
        let guard = until_granted(acquiring).await;
        assert_eq!(guard.fencing_token().get(), made.czxid as u64, "round {round}: {way:?}");
        assert_eq!(testbed.nodes("one").await.len(), 1);
        release(guard).await;
        assert!(testbed.nodes("one").await.is_empty());
        assert!(kept.is_held(), "the session has survived");
    }
    release(kept).await;
    testbed.drained(&["one", "kept"]).await;
}

/// Lessons 16, 18: it is gone, and the caller is told that it worked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_reply_was_lost_has_worked() {
    let testbed = Testbed::start().await;
    let (far, near) = (testbed.behind().await, testbed.direct().await);
    for way in WAYS.into_iter().cycle().take(6) {
        let guard = acquire(&far, "one").await;
        let next = spawn_waiter(&near, "one");
        testbed.until_queued("one", 2).await;
        testbed.proxy.drop_reply(DropReply::first(way).matching(is(Op::Delete))).unwrap();
        let releasing = tokio::spawn(guard.release());
        soon("a reply is lost", testbed.proxy.dropped_reply()).await;
        let next = until_granted(next).await;
        if matches!(way, AfterDrop::BlackHole) {
            tokio::time::sleep(T / 4).await;
            testbed.proxy.heal().await.unwrap();
        }
        soon("the release ends", releasing).await.unwrap().expect("released");
        // Repeating it has not freed the next one's.
        assert!(next.is_held() && is_busy(&far, "one").await, "{way:?}");
        release(next).await;
    }
    testbed.drained(&["one"]).await;
}

/// A queued claim whose reply was lost keeps its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_place_whose_reply_was_lost_is_kept() {
    let testbed = Testbed::start().await;
    let (far, near) = (testbed.behind().await, testbed.direct().await);
    let guard = acquire(&near, "one").await;
    testbed.proxy.drop_reply(DropReply::first(AfterDrop::Reset).matching(is(Op::Create))).unwrap();
    let first = spawn_waiter(&far, "one");
    soon("a reply is lost", testbed.proxy.dropped_reply()).await;
    testbed.until_queued("one", 2).await;
    let second = spawn_waiter(&near, "one");
    testbed.until_queued("one", 3).await;
    release(guard).await;
    let first = until_granted(first).await;
    assert!(!second.is_finished());
    release(first).await;
    release(until_granted(second).await).await;
    testbed.drained(&["one"]).await;
}

/// The heartbeat is one more request whose reply can be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_heartbeat_costs_no_lock() {
    let testbed = Testbed::start().await;
    let locks = testbed.behind().await;
    let guard = acquire(&locks, "one").await;
    for way in [AfterDrop::Fin, AfterDrop::Reset, AfterDrop::Fin] {
        testbed.proxy.drop_reply(DropReply::first(way).matching(is(Op::Multi))).unwrap();
        soon("a heartbeat is lost", testbed.proxy.dropped_reply()).await;
        let before = guard.valid_until();
        until("the hold is renewed", async || guard.valid_until() > before).await;
    }
    release(guard).await;
    testbed.drained(&["one"]).await;
}
