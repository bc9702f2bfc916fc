//! Row 26: replicas that take over without having a lock. Then two clients may hold it, as the profile
//! says; the test makes it happen, and the resource rejects the stale one.

use fencelock_conformance::ProtectedRegister;
use fencelock_testkit::proxy::{Direction, Proxy};
use fencelock_testkit::servers::{RedisOptions, TestCluster, TestRedis};

use crate::support::*;

async fn replication(server: &TestRedis, field: &str) -> String {
    let info = redis_command(server, &["INFO", "replication"]).await;
    let mut fields = info.lines().filter_map(|line| line.trim_end().split_once(':'));
    fields.find(|(name, _)| *name == field).map(|(_, value)| value.to_owned()).unwrap_or_default()
}

/// Plain replication, and an operator who promotes the replica while the master is still up.
/// Fault 26: redis (permitted: a replica that was promoted by hand grants a lock that is still
/// believed in)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_without_the_lock_grants_it_again_and_stale_writes_are_rejected() {
    let master = TestRedis::start().await.unwrap();
    redis_command(&master, &["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).await;
    let line = Proxy::start(master.addr()).await.unwrap();
    let follow = format!("replicaof 127.0.0.1 {}", line.addr().port());
    let replica = RedisOptions::new().config(&follow).start().await.unwrap();
    let one = direct(&master, "ttl=6s").await;
    let earlier = acquire(&one, "lock").await;
    let first = earlier.fencing_token();
    release(earlier).await;
    until("it follows", async || replication(&replica, "master_link_status").await == "up").await;
    master.has_told(&[&replica]).await.unwrap();
    line.stall(Direction::ToClient);
    let lost = acquire(&one, "lock").await;
    let register = ProtectedRegister::checking();
    assert!(lost.fencing_token() > first && register.write(lost.fencing_token().get(), 1));
    redis_command(&replica, &["REPLICAOF", "NO", "ONE"]).await;
    let other = direct(&replica, "ttl=30s").await;
    let second = acquire(&other, "lock").await;
    // Allowed: while the old master answers, its holder cannot know.
    assert!(lost.is_held() && second.is_held(), "no overlap: this shows nothing");
    the_second_writes_and_the_first_cannot(&register, &second, &lost);
    // The old master returns as a replica, and refuses renewals.
    line.heal().await.unwrap();
    redis_command(&master, &["REPLICAOF", "127.0.0.1", &replica.port().to_string()]).await;
    soon("the holder is notified", lost.lost()).await;
    drop(lost);
    until_renewed(&other, &second, ms(30_000)).await;
    release(second).await;
    assert_eq!((register.read(), register.stale_writes()), (2, 0));
    drained(&replica).await;
}

/// Fault 26: cluster (permitted: the new master of the slot grants a lock that is still believed
/// in)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slots_new_master_without_the_lock_grants_it_again_and_stale_writes_are_rejected() {
    let servers = TestCluster::start().await.unwrap();
    let slot = TestCluster::slot_of("lock:lock");
    let url = format!("{}?ttl=9s", servers.url());
    let clients = (&connect(&url).await, &connect(&url).await);
    let isolate = async || {
        servers.replicas_caught_up().await.unwrap();
        // Its master has no password.
        let replica = servers.replica_of(slot).await.unwrap();
        redis_command(replica, &["CONFIG", "SET", "masterauth", "no master"]).await;
        redis_command(replica, &["CLIENT", "KILL", "TYPE", "master"]).await;
        until("it follows no master", async || {
            replication(replica, "master_link_status").await == "down"
        })
        .await;
    };
    let kill = async || {
        servers.kill_master_of(slot).await.unwrap();
    };
    forgotten_in_a_failover(clients, ms(9000), isolate, kill).await;
    drained(servers.master_of(slot).await.unwrap()).await;
}
