//! Replies that never arrive, although the servers have carried out the request.

use fencelock_conformance::proxy::{AfterDrop, DropReply};

use crate::support::*;

const WAYS: [AfterDrop; 3] = [AfterDrop::Fin, AfterDrop::Reset, AfterDrop::BlackHole];

/// Lesson 17.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_creation_was_not_confirmed_is_adopted_and_not_created_twice() {
    let rig = Rig::start().await;
    let locks = rig.behind().await;
    let kept = hold(&locks, "kept").await;
    // The node of the lock itself exists from now on.
    give_back(hold(&locks, "one").await).await;
    for (round, way) in WAYS.into_iter().cycle().take(9).enumerate() {
        rig.proxy.drop_reply(DropReply::first(way).matching(is(Op::Create))).unwrap();
        let acquiring = wait_for(&locks, "one");
        soon("a reply is lost", rig.proxy.dropped_reply()).await;
        let [node] = &rig.nodes("one").await[..] else { panic!("one node is created") };
        let stat = rig.stat(node).await.expect("it exists");
        if matches!(way, AfterDrop::BlackHole) {
            // Less than half of the session timeout.
            tokio::time::sleep(T / 4).await;
            rig.proxy.heal().await.unwrap();
        }
        let guard = granted(acquiring).await;
        assert_eq!(guard.fencing_token().get(), stat.czxid as u64, "round {round}: {way:?}");
        assert_eq!(rig.nodes("one").await.len(), 1);
        give_back(guard).await;
        assert!(rig.nodes("one").await.is_empty());
        assert!(kept.is_held(), "the session has survived");
    }
    give_back(kept).await;
    rig.drained(&["one", "kept"]).await;
}

/// Lessons 16, 18: the node is deleted, and the release reports success.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_reply_was_lost_has_worked() {
    let rig = Rig::start().await;
    let (far, near) = (rig.behind().await, rig.direct().await);
    for way in WAYS.into_iter().cycle().take(6) {
        let guard = hold(&far, "one").await;
        let next = wait_for(&near, "one");
        rig.queued("one", 2).await;
        rig.proxy.drop_reply(DropReply::first(way).matching(is(Op::Delete))).unwrap();
        let releasing = tokio::spawn(guard.release());
        soon("a reply is lost", rig.proxy.dropped_reply()).await;
        let next = granted(next).await;
        if matches!(way, AfterDrop::BlackHole) {
            tokio::time::sleep(T / 4).await;
            rig.proxy.heal().await.unwrap();
        }
        soon("the release ends", releasing).await.unwrap().expect("released");
        // The repeated request has not released the next holder's lock.
        assert!(next.is_held() && is_busy(&far, "one").await, "{way:?}");
        give_back(next).await;
    }
    rig.drained(&["one"]).await;
}

/// A queued claim whose reply was lost keeps its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_place_whose_reply_was_lost_is_kept() {
    let rig = Rig::start().await;
    let (far, near) = (rig.behind().await, rig.direct().await);
    let guard = hold(&near, "one").await;
    rig.proxy.drop_reply(DropReply::first(AfterDrop::Reset).matching(is(Op::Create))).unwrap();
    let first = wait_for(&far, "one");
    soon("a reply is lost", rig.proxy.dropped_reply()).await;
    rig.queued("one", 2).await;
    let second = wait_for(&near, "one");
    rig.queued("one", 3).await;
    give_back(guard).await;
    let first = granted(first).await;
    assert!(!second.is_finished());
    give_back(first).await;
    give_back(granted(second).await).await;
    rig.drained(&["one"]).await;
}

/// The reply to a heartbeat can be lost too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_heartbeat_costs_no_lock() {
    let rig = Rig::start().await;
    let locks = rig.behind().await;
    let guard = hold(&locks, "one").await;
    for way in [AfterDrop::Fin, AfterDrop::Reset, AfterDrop::Fin] {
        rig.proxy.drop_reply(DropReply::first(way).matching(is(Op::Multi))).unwrap();
        soon("a heartbeat is lost", rig.proxy.dropped_reply()).await;
        let before = guard.valid_until();
        until("the hold is renewed", async || guard.valid_until() > before).await;
    }
    give_back(guard).await;
    rig.drained(&["one"]).await;
}
