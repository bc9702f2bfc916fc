//! Three servers: leaders that are killed, and followers that are cut off from their leader.

use std::sync::Arc;

use fencelock_conformance::servers::{TestZooKeeper, ZooKeeperOptions, ZooKeeperServer};
use fencelock_core::ErrorKind;
use tokio::time::{Instant, sleep};

use crate::support::*;

async fn leader_at(servers: &TestZooKeeper) -> usize {
    let leader = servers.leader().await.expect("a leader").port();
    servers.servers().iter().position(|server| server.port() == leader).expect("one of them")
}

fn others(servers: &TestZooKeeper, but: usize) -> Vec<&ZooKeeperServer> {
    let all = servers.servers().iter().enumerate();
    all.filter(|(at, _)| *at != but).map(|(_, server)| server).collect()
}

/// Reads and pings are answered by the follower alone; a lock that is kept by them has two owners.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_on_a_follower_without_a_quorum_is_told_in_time() {
    let options = ZooKeeperOptions::new().sync_limit(50);
    let servers = Arc::new(options.ensemble(3).await.expect("ZooKeeper starts"));
    let leader = leader_at(&servers).await;
    let follower = (leader + 1) % 3;
    let rig = Rig::on(servers.clone(), follower).await;
    let far = rig.behind().await;
    for _ in 0..3 {
        let guard = hold(&far, "one").await;
        sleep(ms(300)).await;
        let frozen = Instant::now();
        for server in others(&servers, follower) {
            server.freeze().await.unwrap();
        }
        soon("the holder is told", guard.lost()).await;
        let told = frozen.elapsed();
        println!("told {told:?} after the follower lost its leader");
        assert!(told < T, "told {told:?} after the follower lost its leader");
        assert_eq!(rig.proxy.stats().open, 1, "the follower itself was there all the time");
        for server in others(&servers, follower) {
            server.thaw().unwrap();
        }
        drop(guard);
        until("the servers serve again", async || servers.leader().await.is_some()).await;
        give_back(hold(&far, "one").await).await;
    }
    rig.queued("one", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_keeps_locks_and_places_and_its_tokens_are_larger() {
    let servers = Arc::new(ZooKeeperOptions::new().ensemble(3).await.expect("ZooKeeper starts"));
    let rig = Rig::on(servers.clone(), 0).await;
    let url = format!("zk://{}{}?prefix=&session=4s", servers.connect_string(), rig.root);
    let (one, two) = (connect(&url).await, connect(&url).await);
    let mut last = None;
    for _ in 0..3 {
        let held = hold(&one, "one").await;
        assert!(Some(held.fencing_token()) > last);
        let waiter = wait_for(&two, "one");
        rig.queued("one", 2).await;
        sleep(ms(100)).await;
        let leader = leader_at(&servers).await;
        let killed = Instant::now();
        servers.servers()[leader].kill().unwrap();
        let before = held.valid_until();
        until("the hold is renewed", async || {
            assert!(held.is_held(), "lost with the leader, {:?} ago", killed.elapsed());
            held.valid_until() > before && two.now() < held.valid_until()
        })
        .await;
        println!("renewed {:?} after the leader was killed", killed.elapsed());
        let token = held.fencing_token();
        give_back(held).await;
        let next = granted(waiter).await;
        println!("handed over {:?} after the leader was killed", killed.elapsed());
        assert!(next.fencing_token() > token);
        last = Some(next.fencing_token());
        give_back(next).await;
        servers.servers()[leader].restart().await.unwrap();
    }
    rig.queued("one", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_can_only_be_read_is_refused() {
    let options = ZooKeeperOptions::new().java_arg("-Dreadonlymode.enabled=true");
    let servers = options.ensemble(3).await.expect("ZooKeeper starts");
    let [one, rest @ ..] = servers.servers() else { panic!("three servers") };
    for server in rest {
        server.kill().unwrap();
    }
    until("it is for reading only", async || {
        one.four_letter("isro").await.is_ok_and(|answer| answer == "ro")
    })
    .await;
    let error = try_connect(&format!("zk://{}/locks", one.connect_string())).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
}
