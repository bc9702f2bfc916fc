//! Sessions that are cut off, lost and replaced.

use fencelock_conformance::proxy::{Close, Direction, NewConnections};
use fencelock_core::ErrorKind;
use tokio::time::{Instant, sleep};

use crate::support::*;

fn black_hole(rig: &Rig) {
    both_ways(|direction| rig.proxy.black_hole(direction));
}

/// The guarantee itself: a loss detected after the next grant would mean two owners in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_cut_off_detects_its_loss_before_the_next_grant() {
    const LOCKS: [&str; 3] = ["zero", "one", "two"];
    let rig = Rig::start().await;
    let (near, far) = (rig.patient().await, rig.behind().await);
    for round in 0..rounds(5) {
        let mut contests = Vec::new();
        for lock in LOCKS {
            contests.push(Contest::between(&rig, &far, &near, lock).await);
        }
        // At some point between two heartbeats.
        sleep(ms(150) + T * (round % 10) / 100).await;
        let cut = Instant::now();
        black_hole(&rig);
        let mut outcomes = Vec::new();
        for contest in contests {
            outcomes.push(contest.decided(cut).await);
        }
        print(round, &outcomes);
        rig.proxy.heal().await.unwrap();
        for (lock, outcome) in LOCKS.into_iter().zip(outcomes) {
            // The release of the expired holder releases no other lock.
            let error = soon("a late release ends", outcome.loser.release()).await.unwrap_err();
            assert_kind(&error, ErrorKind::NotHeld);
            assert!(outcome.winner.is_held() && rig.nodes(lock).await.len() == 1);
            give_back(outcome.winner).await;
        }
    }
    rig.drained(&LOCKS).await;
}

/// A shorter interruption costs neither a lock nor a place in a queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_back_within_half_the_session_timeout_costs_no_lock() {
    let rig = Rig::start().await;
    let (near, far) = (rig.direct().await, rig.behind().await);
    let held = hold(&far, "held").await;
    let blocker = hold(&near, "wanted").await;
    let waiter = wait_for(&far, "wanted");
    rig.queued("wanted", 2).await;
    let place = rig.nodes("wanted").await[1].clone();
    for break_by in 0..4 {
        match break_by {
            0 => black_hole(&rig),
            1 => rig.proxy.stall(Direction::ToServer),
            2 => rig.proxy.cut(Close::Reset, NewConnections::Refused).await.unwrap(),
            _ => rig.proxy.cut(Close::Fin, NewConnections::Closed).await.unwrap(),
        }
        // `expiring` reports that the hold is not renewed any more, while it is still held.
        soon("the holder is warned", held.expiring(T / 5)).await;
        assert!(held.is_held(), "lost by break {break_by}");
        rig.proxy.heal().await.unwrap();
        let before = held.valid_until();
        until("the hold is renewed", async || {
            assert!(held.is_held(), "lost by break {break_by}");
            held.valid_until() > before
        })
        .await;
        assert_eq!(rig.nodes("wanted").await[1], place, "the waiter has kept its place");
    }
    give_back(blocker).await;
    give_back(granted(waiter).await).await;
    give_back(held).await;
    rig.drained(&["held", "wanted"]).await;
}

/// CURATOR-498, 604: a node of the old session will be deleted, and must not be relied on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_session_adopts_nothing_of_the_old_one() {
    let rig = Rig::start().await;
    let (near, far) = (rig.direct().await, rig.behind().await);
    let held = hold(&far, "held").await;
    let blocker = hold(&near, "wanted").await;
    let waiter = wait_for(&far, "wanted");
    rig.queued("wanted", 2).await;
    let old = rig.nodes("wanted").await[1].clone();
    let owner = rig.stat(&old).await.unwrap().ephemeral_owner;
    black_hole(&rig);
    soon("the holder is notified", held.lost()).await;
    rig.queued("wanted", 1).await;
    rig.proxy.heal().await.unwrap();
    // It queues again, in the new session.
    until("the waiter has a new place", async || {
        let nodes = rig.nodes("wanted").await;
        nodes.len() == 2 && nodes[1] != old
    })
    .await;
    let new = rig.nodes("wanted").await[1].clone();
    assert_ne!(rig.stat(&new).await.unwrap().ephemeral_owner, owner);
    let again = hold(&far, "held").await;
    assert!(again.fencing_token() > held.fencing_token());
    drop(held);
    sleep(ms(100)).await;
    assert!(again.is_held(), "lost by what is left of the old session");
    give_back(blocker).await;
    give_back(granted(waiter).await).await;
    give_back(again).await;
    rig.drained(&["held", "wanted"]).await;
}

/// An idle session may end unnoticed; the next acquisition opens a new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_client_that_was_cut_off_for_long_acquires_again() {
    let rig = Rig::start().await;
    let far = rig.behind().await;
    give_back(hold(&far, "one").await).await;
    black_hole(&rig);
    sleep(T * 2).await;
    rig.proxy.heal().await.unwrap();
    let back = Instant::now();
    give_back(hold(&far, "one").await).await;
    assert!(back.elapsed() < T * 2, "it took {:?}", back.elapsed());
    rig.drained(&["one"]).await;
}

/// Lesson 8: neither a deadlock nor a grant while the servers are unreachable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_restarted_loses_no_queue_place_and_no_lock() {
    let servers = fencelock_conformance::servers::TestZooKeeper::standalone().await.unwrap();
    let rig = Rig::on(servers.into(), 0).await;
    let url = format!("zk://{}{}?prefix=&session=4s", rig.servers.connect_string(), rig.root);
    let (one, two) = (connect(&url).await, connect(&url).await);
    let held = hold(&one, "one").await;
    let first = wait_for(&two, "one");
    rig.queued("one", 2).await;
    let second = wait_for(&one, "one");
    rig.queued("one", 3).await;
    let [server] = rig.servers.servers() else { panic!("one server") };
    let down = Instant::now();
    server.kill().unwrap();
    server.restart().await.unwrap();
    println!("down for {:?}", down.elapsed());
    // A slow restart costs the session; the locks exclude each other nevertheless.
    match soon("the release ends", held.release()).await {
        Ok(()) => {}
        Err(error) => assert_kind(&error, ErrorKind::NotHeld),
    }
    let guard = granted(first).await;
    assert!(!second.is_finished());
    give_back(guard).await;
    give_back(granted(second).await).await;
    rig.drained(&["one"]).await;
}

/// Closing ends the session on the servers, so that no waiter waits for a timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_and_dropping_end_the_session_at_once() {
    let rig = Rig::start().await;
    let sessions = async || {
        let dump = rig.servers.servers()[0].four_letter("cons").await.unwrap();
        dump.lines().filter(|line| line.contains("sid=")).count()
    };
    for close in [true, false] {
        let before = sessions().await;
        let locks = rig.direct().await;
        let guard = hold(&locks, "one").await;
        let started = Instant::now();
        match close {
            true => soon("closed", locks.close()).await.unwrap(),
            false => drop((guard, locks)),
        }
        until("the node is gone", async || rig.nodes("one").await.is_empty()).await;
        assert!(started.elapsed() < T / 2, "gone after {:?}", started.elapsed());
        until("the session is gone", async || sessions().await <= before).await;
    }
}
