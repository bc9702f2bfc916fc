//! A cluster whose slots move, and whose masters fail.

use fencelock_core::{Guard, Locks};
use fencelock_testkit::servers::{TestCluster, TestRedis};
use futures_util::future::join_all;

use crate::server::while_loading;
use crate::support::*;

async fn client(servers: &TestCluster, params: &str) -> Locks {
    connect(&format!("{}?{params}", servers.url())).await
}

fn slot(name: &str) -> u16 {
    TestCluster::slot_of(&format!("lock:{name}"))
}

/// Names of locks at the first, second and third master of a fresh cluster.
fn names(what: &str) -> [String; 3] {
    let of_third = |third: u32| {
        let names = (0..).map(|n| format!("{what}-{n}"));
        let mut there = names.filter(|name| u32::from(slot(name)) * 3 / 16384 == third);
        there.next().expect("names do not end")
    };
    [0, 1, 2].map(of_third)
}

async fn all_drained(servers: &TestCluster) {
    for node in servers.nodes() {
        if redis_command(node, &["ROLE"]).await.starts_with("master") {
            drained(node).await;
        }
    }
}

/// A master other than the slot's.
async fn elsewhere(servers: &TestCluster, slot: u16) -> &TestRedis {
    let master = servers.master_of(slot).await.expect("a master").port();
    servers.nodes()[..3].iter().find(|node| node.port() != master).expect("two others")
}

/// Row 29: MOVED, and back.
/// Fault 29: cluster
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moved_slot_keeps_its_holders_and_waiters() {
    let servers = TestCluster::start().await.unwrap();
    let (one, other) = (client(&servers, "ttl=6s").await, client(&servers, "ttl=6s").await);
    let held = acquire(&one, "lock").await;
    let waiters = [&other, &one, &other].map(|locks| spawn_waiter(locks, "lock"));
    until_queued(&one, "lock", 3).await;
    for _ in 0..2 {
        let to = elsewhere(&servers, slot("lock")).await;
        servers.migrate_slot(slot("lock"), to).await.unwrap();
        assert!(is_busy(&other, "lock").await);
        until_renewed(&one, &held, ms(6000)).await;
        until_queued(&other, "lock", 3).await;
    }
    let token = held.fencing_token();
    release(held).await;
    let tokens = in_turns(waiters).await;
    assert!(tokens.len() == 3 && tokens.is_sorted() && token < tokens[0], "{tokens:?}");
    all_drained(&servers).await;
}

/// Row 29. Some keys of a lock may be on one node and others on another, or missing: then the cluster
/// replies TRYAGAIN until the slot has moved. With all keys on one node it is served there, or by ASK.
/// Fault 29: cluster
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moving_slot_serves_locks_in_one_place_and_the_others_later() {
    let servers = TestCluster::start().await.unwrap();
    let (one, other) = (client(&servers, "ttl=6s").await, client(&servers, "ttl=6s").await);
    let to = elsewhere(&servers, slot("lock")).await;
    let (held, first) = contested(&one, &other, "lock").await;
    let second = queued(&one, "lock", 2).await;
    let migration = servers.begin_migration(slot("lock"), to).await.unwrap();
    // All keys on the old node.
    assert!(is_busy(&other, "lock").await);
    until_renewed(&one, &held, ms(6000)).await;
    // Split.
    migration.move_key("lock:lock").await.unwrap();
    let in_between = tokio::spawn(held.release());
    refused_with(&one, "lock", "moving").await;
    // All keys on the new node, which does not yet own the slot.
    migration.move_keys().await.unwrap();
    soon("the release succeeds", in_between).await.unwrap().unwrap();
    let guard = until_granted(first).await;
    assert!(is_busy(&one, "lock").await);
    until_renewed(&other, &guard, ms(6000)).await;
    release(guard).await;
    let guard = until_granted(second).await;
    // No waiters: the queue does not exist.
    let waiter = spawn_waiter(&other, "lock");
    let releasing = tokio::spawn(guard.release());
    refused_with(&one, "lock", "moving").await;
    migration.finish().await.unwrap();
    soon("the release succeeds", releasing).await.unwrap().unwrap();
    release(until_granted(waiter).await).await;
    all_drained(&servers).await;
}

/// Row 29: a migration may take longer than a lease.
/// Fault 29: cluster
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_lock_is_renewed_while_its_slot_is_moving() {
    let servers = TestCluster::start().await.unwrap();
    let locks = client(&servers, "ttl=6s").await;
    let to = elsewhere(&servers, slot("lock")).await;
    let held = acquire(&locks, "lock").await;
    let migration = servers.begin_migration(slot("lock"), to).await.unwrap();
    until_renewed(&locks, &held, ms(6000)).await;
    migration.move_key("lock:lock").await.unwrap();
    until_renewed(&locks, &held, ms(6000)).await;
    migration.move_keys().await.unwrap();
    until_renewed(&locks, &held, ms(6000)).await;
    migration.finish().await.unwrap();
    until_renewed(&locks, &held, ms(6000)).await;
    release(held).await;
    all_drained(&servers).await;
}

/// Row 26, with the replica in sync.
/// Faults 26, 27: cluster
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_waiters_survive_a_failover_of_their_slot() {
    let servers = TestCluster::start().await.unwrap();
    let (one, other) = (client(&servers, "ttl=30s").await, client(&servers, "ttl=30s").await);
    let (held, waiter) = contested(&one, &other, "lock").await;
    servers.replicas_caught_up().await.unwrap();
    servers.failover(slot("lock")).await.unwrap();
    assert!(is_busy(&other, "lock").await);
    until_renewed(&one, &held, ms(30_000)).await;
    servers.settled().await.unwrap();
    servers.replicas_caught_up().await.unwrap();
    // Leases on the other masters that are shorter than the failover takes.
    let short = client(&servers, "ttl=2s").await;
    let mut elsewhere = Vec::new();
    for name in names("elsewhere") {
        if servers.master_of(slot(&name)).await.unwrap().port()
            != servers.master_of(slot("lock")).await.unwrap().port()
        {
            elsewhere.push(acquire(&short, &name).await);
        }
    }
    let killed = short.now();
    servers.kill_master_of(slot("lock")).await.unwrap();
    assert!(elsewhere.len() == 2 && elsewhere.iter().all(Guard::is_held), "starved");
    assert!(short.now().duration_since(killed) > ms(1000), "too soon to be conclusive");
    assert!(is_busy(&other, "lock").await);
    until_renewed(&one, &held, ms(30_000)).await;
    hand_over(held, waiter).await;
}

/// Row 20: a client that connects to a node that loads its data gets the map from another one, if
/// there is one.
/// Fault 20: cluster
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_master_loads_its_data_new_clients_get_the_locks_of_the_others() {
    let servers = TestCluster::start().await.unwrap();
    let ill = servers.master_of(slot("lock")).await.unwrap();
    let other = elsewhere(&servers, slot("lock")).await;
    let at = servers.nodes().iter().position(|node| node.port() == other.port());
    let there = &names("there")[at.unwrap()];
    let straight = format!("redis-cluster://{}", ill.addr());
    let either = format!("{straight},{}", other.addr());
    // Each tries either of the two first.
    let newcomer = async |_| release(acquire(&connect(&either).await, there).await).await;
    let mut patient = None;
    while_loading(ill, async {
        let waits = patient.insert(tokio::spawn(async move { connect(&straight).await }));
        join_all((0..8).map(newcomer)).await;
        assert!(!waits.is_finished());
    })
    .await;
    let patient = soon("a client of that node alone is served", patient.unwrap()).await.unwrap();
    release(acquire(&patient, there).await).await;
    all_drained(&servers).await;
}

/// Lesson 11: while one master is frozen and no replica takes over, the locks of the others are
/// renewed, acquired and handed off.
/// Fault 19: cluster
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_master_delays_no_lock_of_the_others() {
    let servers = TestCluster::start().await.unwrap();
    for node in servers.nodes() {
        redis_command(node, &["CONFIG", "SET", "cluster-require-full-coverage", "no"]).await;
    }
    for replica in &servers.nodes()[3..] {
        redis_command(replica, &["CONFIG", "SET", "cluster-replica-no-failover", "yes"]).await;
    }
    let (one, other) = (client(&servers, "ttl=2s").await, client(&servers, "ttl=2s").await);
    let [on_ill, healthy @ ..] = names("kept");
    let [doomed, wanted @ ..] = names("wanted");
    let ill_held: Vec<Guard> = [acquire(&one, &on_ill).await, acquire(&one, &doomed).await].into();
    let mut kept = Vec::new();
    for name in &healthy {
        kept.push(acquire(&one, name).await);
    }
    let waiting_in_vain = spawn_waiter(&other, &on_ill);
    until_queued(&one, &on_ill, 1).await;
    let ill = servers.master_of(slot(&on_ill)).await.unwrap();
    let since = one.now();
    ill.freeze().await.unwrap();
    for held in &ill_held {
        assert_lost_in_time(&one, held, since, ms(2000)).await;
    }
    // Twice a lease, while all other work continues.
    while one.now().duration_since(since) < ms(4000) {
        for name in &wanted {
            let (blocker, waiter) = contested(&one, &other, name).await;
            hand_over(blocker, waiter).await;
        }
        assert!(kept.iter().all(Guard::is_held), "starved");
    }
    ill.thaw().unwrap();
    release(until_granted(waiting_in_vain).await).await;
    for guard in kept {
        release(guard).await;
    }
    drop(ill_held);
    all_drained(&servers).await;
}
