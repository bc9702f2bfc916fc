//! Sessions that are cut off, lost and replaced.

use fencelock_core::ErrorKind;
use fencelock_testkit::proxy::{Close, Direction, NewConnections};
use tokio::time::sleep;

use crate::support::*;

fn black_hole(testbed: &Testbed) {
    both_ways(|direction| testbed.proxy.black_hole(direction));
}

/// The guarantee itself: a loss detected after the next grant would mean two owners in between.
/// Fault 10: zookeeper
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_cut_off_detects_its_loss_before_the_next_grant() {
    const LOCKS: [&str; 3] = ["zero", "one", "two"];
    let testbed = Testbed::start().await;
    let (near, far) = (testbed.direct().await, testbed.behind().await);
    for round in 0..rounds(3) {
        let mut contests = Vec::new();
        for lock in LOCKS {
            contests.push(Contest::between(&testbed, &far, &near, lock).await);
        }
        // At some point between two heartbeats.
        sleep(ms(150) + T * (round % 10) / 100).await;
        black_hole(&testbed);
        let cut = far.now();
        let mut outcomes = Vec::new();
        for contest in contests {
            outcomes.push(contest.decided(cut).await);
        }
        print(round, &outcomes);
        testbed.proxy.heal().await.unwrap();
        for (lock, outcome) in LOCKS.into_iter().zip(outcomes) {
            // The release of the expired holder releases no other lock.
            let error = soon("a late release ends", outcome.loser.release()).await.unwrap_err();
            assert_kind(&error, ErrorKind::NotHeld);
            assert!(outcome.winner.is_held() && testbed.nodes(lock).await.len() == 1);
            release(outcome.winner).await;
        }
    }
    testbed.drained(&LOCKS).await;
}

/// A shorter interruption costs neither a lock nor a place in a queue.
/// Fault 10: zookeeper
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_back_within_half_the_session_timeout_costs_no_lock() {
    let (testbed, near, far) = Testbed::near_and_far().await;
    let held = acquire(&far, "held").await;
    let (blocker, waiter) = testbed.contested(&near, &far, "wanted").await;
    let place = testbed.nodes("wanted").await[1].clone();
    for break_by in 0..4 {
        match break_by {
            0 => black_hole(&testbed),
            1 => testbed.proxy.stall(Direction::ToServer),
            2 => testbed.proxy.cut(Close::Reset, NewConnections::Refused).await.unwrap(),
            _ => testbed.proxy.cut(Close::Fin, NewConnections::Closed).await.unwrap(),
        }
        // `expiring` reports that the hold is not renewed any more, while it is still held, for long
        // enough to be renewed on a busy machine.
        soon("the holder is warned", held.expiring(ms(3_000))).await;
        assert!(held.is_held(), "lost by break {break_by}");
        testbed.proxy.heal().await.unwrap();
        let before = held.valid_until();
        until("the hold is renewed", async || {
            assert!(held.is_held(), "lost by break {break_by}");
            held.valid_until() > before
        })
        .await;
        assert_eq!(testbed.nodes("wanted").await[1], place, "the waiter has kept its place");
    }
    hand_over(blocker, waiter).await;
    release(held).await;
    testbed.drained(&["held", "wanted"]).await;
}

/// CURATOR-498, 604: a node of the old session will be deleted, and must not be relied on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_session_adopts_nothing_of_the_old_one() {
    let testbed = Testbed::start().await;
    let (near, far) = (testbed.direct().await, testbed.behind().await);
    let held = acquire(&far, "held").await;
    let (blocker, waiter) = testbed.contested(&near, &far, "wanted").await;
    let old = testbed.nodes("wanted").await[1].clone();
    let owner = testbed.stat(&old).await.unwrap().ephemeral_owner;
    black_hole(&testbed);
    soon("the holder is notified", held.lost()).await;
    testbed.until_queued("wanted", 1).await;
    testbed.proxy.heal().await.unwrap();
    // It queues again, in the new session.
    until("the waiter has a new place", async || {
        let nodes = testbed.nodes("wanted").await;
        nodes.len() == 2 && nodes[1] != old
    })
    .await;
    let new = testbed.nodes("wanted").await[1].clone();
    assert_ne!(testbed.stat(&new).await.unwrap().ephemeral_owner, owner);
    let again = acquire(&far, "held").await;
    assert!(again.fencing_token() > held.fencing_token());
    drop(held);
    sleep(ms(100)).await;
    assert!(again.is_held(), "lost by what is left of the old session");
    hand_over(blocker, waiter).await;
    release(again).await;
    testbed.drained(&["held", "wanted"]).await;
}

/// An idle session may end unnoticed; the next acquisition opens a new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_client_that_was_cut_off_for_long_acquires_again() {
    let testbed = Testbed::start().await;
    let far = testbed.behind().await;
    release(acquire(&far, "one").await).await;
    black_hole(&testbed);
    sleep(T * 2).await;
    testbed.proxy.heal().await.unwrap();
    release(acquire(&far, "one").await).await;
    testbed.drained(&["one"]).await;
}

/// Lesson 8: neither a deadlock nor a grant while the servers are unreachable.
/// Faults 17, 20: zookeeper
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_restarted_loses_no_queue_place_and_no_lock() {
    let testbed = Testbed::alone().await;
    // A session that outlives the restart of a server on a busy machine.
    let url = testbed.url_for(T * 20, &testbed.servers.connect_string(), "");
    let (one, two) = (connect(&url).await, connect(&url).await);
    let (held, first) = testbed.contested(&one, &two, "one").await;
    let second = testbed.queued(&one, "one", 3).await;
    let [server] = testbed.servers.servers() else { panic!("one server") };
    server.kill().unwrap();
    server.restart().await.unwrap();
    release(held).await;
    let guard = until_granted(first).await;
    assert!(!second.is_finished());
    hand_over(guard, second).await;
    testbed.drained(&["one"]).await;
}

/// Closing ends the session on the servers, so that no waiter waits for a timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_and_dropping_end_the_session_at_once() {
    let testbed = Testbed::start().await;
    // Longer than this test waits for anything.
    let url = testbed.url_for(T * 20, &testbed.servers.connect_string(), "");
    for close in [true, false] {
        let locks = connect(&url).await;
        let guard = acquire(&locks, "one").await;
        let node = testbed.nodes("one").await.remove(0);
        let session = testbed.stat(&node).await.expect("it exists").ephemeral_owner;
        if close {
            soon("closed", locks.close()).await.unwrap();
        } else {
            drop((guard, locks));
        }
        until("the node is gone", async || testbed.nodes("one").await.is_empty()).await;
        until("the session is gone", async || {
            let sessions = testbed.servers.servers()[0].four_letter("cons").await.unwrap();
            !sessions.contains(&format!("sid={session:#x},"))
        })
        .await;
    }
}
