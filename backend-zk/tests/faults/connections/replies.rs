//! Replies that never arrive, although the servers have carried out the request.

use fencelock_testkit::proxy::{AfterDrop, DropReply};

use crate::support::*;

const WAYS: [AfterDrop; 3] = [AfterDrop::Fin, AfterDrop::Reset, AfterDrop::BlackHole];

/// Lesson 17.
/// Fault 7: zookeeper
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_creation_was_not_confirmed_is_adopted_and_not_created_twice() {
    let testbed = Testbed::start().await;
    let locks = testbed.behind_for_long().await;
    let kept = acquire(&locks, "kept").await;
    // The node of the lock itself exists from now on.
    release(acquire(&locks, "one").await).await;
    for (round, way) in WAYS.into_iter().cycle().take(9).enumerate() {
        testbed.proxy.drop_reply(DropReply::first(way).matching(is(Op::Create))).unwrap();
        let acquiring = spawn_waiter(&locks, "one");
        soon("a reply is lost", testbed.proxy.dropped_reply()).await;
        let [node] = &testbed.nodes("one").await[..] else { panic!("one node is created") };
        let stat = testbed.stat(node).await.expect("it exists");
        if matches!(way, AfterDrop::BlackHole) {
            // Less than half of the session timeout.
            tokio::time::sleep(T / 4).await;
            testbed.proxy.heal().await.unwrap();
        }
        let guard = until_granted(acquiring).await;
        assert_eq!(guard.fencing_token().get(), stat.czxid as u64 * 64, "round {round}: {way:?}");
        assert_eq!(testbed.nodes("one").await.len(), 1);
        release(guard).await;
        assert!(testbed.nodes("one").await.is_empty());
        assert!(kept.is_held(), "the session has survived");
    }
    release(kept).await;
    testbed.drained(&["one", "kept"]).await;
}

/// A queued claim whose reply was lost keeps its place.
/// Fault 7: zookeeper
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_place_whose_reply_was_lost_is_kept() {
    let testbed = Testbed::start().await;
    let (far, near) = (testbed.behind_for_long().await, testbed.direct().await);
    let guard = acquire(&near, "one").await;
    testbed.proxy.drop_reply(DropReply::first(AfterDrop::Reset).matching(is(Op::Create))).unwrap();
    let first = spawn_waiter(&far, "one");
    soon("a reply is lost", testbed.proxy.dropped_reply()).await;
    testbed.until_queued("one", 2).await;
    let second = testbed.queued(&near, "one", 3).await;
    release(guard).await;
    let first = until_granted(first).await;
    assert!(!second.is_finished());
    hand_over(first, second).await;
    testbed.drained(&["one"]).await;
}
