//! Three servers: leaders that are killed, and followers that are cut off from their leaders.

use fencelock_core::ErrorKind;
use fencelock_testkit::proxy::{Proxy, Stats};
use fencelock_testkit::servers::{TestZooKeeper, ZooKeeperOptions};
use tokio::time::sleep;

use crate::support::*;

async fn leader_at(servers: &TestZooKeeper) -> usize {
    let leader = servers.elected().await.expect("a leader").port();
    servers.servers().iter().position(|server| server.port() == leader).expect("one of them")
}

/// The follower does not notice it, since its sync limit is high, and answers reads and pings by
/// itself: a lock that relies on those would have two owners. After a write that it cannot get
/// committed it answers nothing more in that session, so a second session observes the reads.
/// Fault 31b: zookeeper-3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_follower_is_cut_off_detects_its_loss_before_the_next_grant() {
    const LOCKS: [&str; 4] = ["zero", "one", "two", "three"];
    let borrowed = Borrowed::wired_ensemble().await;
    let servers = borrowed.servers();
    for round in 0..rounds(2) {
        let follower = (leader_at(&servers).await + 1) % 3;
        let testbed = Testbed::on(servers.clone(), follower).await;
        let near = testbed.direct().await;
        let mut contests = Vec::new();
        let mut holders = Vec::new();
        for lock in LOCKS {
            // Each in a session of its own, with heartbeats at different times.
            let far = testbed.behind().await;
            contests.push(Contest::between(&testbed, &far, &near, lock).await);
            holders.push(far);
            sleep(T / 50).await;
        }
        let window = Proxy::start(servers.servers()[follower].connect_string()).await.unwrap();
        let bystander = transport(&window.addr().to_string()).await;
        let [node, _] = &testbed.nodes(LOCKS[0]).await[..] else { panic!("a holder and a waiter") };
        // At some point between two heartbeats, and between two messages of follower and leader.
        sleep(T * (round % 10) / 100).await;
        for wire in servers.peer_links_of(follower) {
            match round % 2 {
                0 => both_ways(|direction| wire.stall(direction)),
                _ => both_ways(|direction| wire.black_hole(direction)),
            }
        }
        let cut = near.now();
        let mut outcomes = Vec::new();
        for contest in contests {
            outcomes.push(contest.decided(cut).await);
        }
        print(round, &outcomes);
        let stale = bystander.check_stat(node).await.expect("the follower answers");
        assert!(stale.is_some(), "the follower does not know of the loss");
        let Stats { accepted, open, .. } = window.stats();
        assert_eq!((accepted, open), (1, 1), "it stayed connected");
        for wire in servers.peer_links_of(follower) {
            // Requests of lost sessions arrive late, or the follower has to join again.
            wire.heal().await.unwrap();
        }
        for (lock, outcome) in LOCKS.into_iter().zip(outcomes) {
            // The release of the expired holder releases no other lock.
            let error = soon("a late release ends", outcome.loser.release()).await.unwrap_err();
            assert_kind(&error, ErrorKind::NotHeld);
            assert!(outcome.winner.is_held() && testbed.nodes(lock).await.len() == 1);
            release(outcome.winner).await;
        }
        for (lock, holder) in LOCKS.into_iter().zip(&holders) {
            release(acquire(holder, lock).await).await;
        }
        testbed.drained(&LOCKS).await;
    }
}

/// Faults 17, 26: zookeeper-3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_keeps_locks_and_queue_places_and_gives_larger_tokens() {
    let borrowed = Borrowed::ensemble().await;
    let servers = borrowed.servers();
    let testbed = Testbed::on(servers.clone(), 0).await;
    // The election of a leader on a busy machine takes less.
    let url = format!("zk://{}{}?prefix=&session=20s", servers.connect_string(), testbed.root);
    let (one, two) = (connect(&url).await, connect(&url).await);
    let mut last = None;
    for _ in 0..2 {
        let held = acquire(&one, "one").await;
        assert!(Some(held.fencing_token()) > last);
        let waiter = testbed.queued(&two, "one", 2).await;
        sleep(ms(100)).await;
        let leader = leader_at(&servers).await;
        servers.servers()[leader].kill().unwrap();
        let before = held.valid_until();
        until("the hold is renewed", async || {
            assert!(held.is_held(), "lost with the leader");
            held.valid_until() > before && two.now() < held.valid_until()
        })
        .await;
        let token = held.fencing_token();
        release(held).await;
        let next = until_granted(waiter).await;
        assert!(next.fencing_token() > token);
        last = Some(next.fencing_token());
        release(next).await;
        servers.servers()[leader].restart().await.unwrap();
    }
    testbed.until_queued("one", 0).await;
}

/// Fault 27: zookeeper-3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_server_is_refused() {
    // One of three, without the others.
    let free = [(); 2].map(|()| std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port"));
    let [quorum, election] = free.map(|port| port.local_addr().expect("an address").port());
    let servers = ZooKeeperOptions::new()
        .java_arg("-Dreadonlymode.enabled=true")
        .config(&format!("server.1=127.0.0.1:{quorum}:{election}"))
        .config("server.2=127.0.0.1:1:2\nserver.3=127.0.0.1:3:4")
        .standalone()
        .await
        .expect("ZooKeeper starts");
    let read_only = servers.servers()[0].four_letter("isro").await.expect("an answer");
    assert_eq!(read_only, "ro");
    let url = format!("zk://{}/locks?unreachable_after=2s", servers.connect_string());
    let error = try_connect(&url).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
}
