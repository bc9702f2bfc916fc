//! Redis Cluster.

use fencelock_testkit::servers::{RedisOptions, ServerError, TestCluster, TestRedis};

use crate::is_running;

#[tokio::test]
async fn a_cluster_serves_all_slots_and_ends_with_its_handle() {
    let cluster = TestCluster::start().await.unwrap();
    assert_eq!(cluster.nodes().len(), 6);
    for key in ["foo", "{user1000}.following", "a{}{b}", "{", "lock:ä"] {
        let slot = TestCluster::slot_of(key);
        let master = cluster.master_of(slot).await.unwrap();
        let said = master.command(&["CLUSTER", "KEYSLOT", key]).await.unwrap();
        assert_eq!(said, slot.to_string(), "{key}");
        master.command(&["SET", key, "v"]).await.unwrap();

        let replica = cluster.replica_of(slot).await.unwrap();
        let moved = replica.command(&["GET", key]).await.unwrap_err().to_string();
        assert_eq!(moved, format!("MOVED {slot} {}", master.addr()));
    }
    // They are where the documentation says.
    let (masters, replicas) = cluster.nodes().split_at(3);
    for (slot, (master, replica)) in [0, 8000, 16_383].into_iter().zip(masters.iter().zip(replicas))
    {
        assert_eq!(cluster.master_of(slot).await.unwrap().port(), master.port());
        assert_eq!(cluster.replica_of(slot).await.unwrap().port(), replica.port());
    }

    let pids: Vec<_> = cluster.nodes().iter().map(|node| node.pid()).collect();
    drop(cluster);
    assert!(!pids.into_iter().any(is_running));
}

#[tokio::test]
async fn a_slot_half_way_answers_ask_and_after_it_moved() {
    let cluster = RedisOptions::new().password("p@ss word").cluster().await.unwrap();
    let slot = TestCluster::slot_of("{k}");
    let from = cluster.master_of(slot).await.unwrap();
    let to = cluster.nodes()[..3].iter().find(|node| node.port() != from.port()).unwrap();
    for key in ["{k}1", "{k}2", "{k}3"] {
        from.command(&["SET", key, key]).await.unwrap();
    }
    let ask = format!("ASK {slot} {}", to.addr());
    let refusal =
        async |node: &TestRedis, key| node.command(&["GET", key]).await.unwrap_err().to_string();

    let migration = cluster.begin_migration(slot, to).await.unwrap();
    assert_eq!(from.command(&["GET", "{k}1"]).await.unwrap(), "{k}1");
    assert_eq!(refusal(from, "{k}new").await, ask);
    migration.move_key("{k}1").await.unwrap();
    assert_eq!(refusal(from, "{k}1").await, ask);
    assert_eq!(from.command(&["GET", "{k}2"]).await.unwrap(), "{k}2");
    let both = from.command(&["MGET", "{k}1", "{k}2"]).await.unwrap_err().to_string();
    assert!(both.starts_with("TRYAGAIN"), "{both}");
    migration.move_keys().await.unwrap();
    assert_eq!(refusal(from, "{k}3").await, ask);
    // Without ASKING the new one does not answer yet.
    assert_eq!(refusal(to, "{k}3").await, format!("MOVED {slot} {}", from.addr()));
    assert_eq!(cluster.master_of(slot).await.unwrap().port(), from.port());

    migration.finish().await.unwrap();
    assert_eq!(cluster.master_of(slot).await.unwrap().port(), to.port());
    assert_eq!(to.command(&["GET", "{k}3"]).await.unwrap(), "{k}3");
    for node in cluster.nodes().iter().filter(|node| node.port() != to.port()) {
        assert_eq!(refusal(node, "{k}1").await, format!("MOVED {slot} {}", to.addr()));
    }

    cluster.migrate_slot(slot, from).await.unwrap();
    assert_eq!(from.command(&["GET", "{k}2"]).await.unwrap(), "{k}2");
    cluster.settled().await.unwrap();
    let replica = cluster.replica_of(slot).await.unwrap();
    assert!(matches!(cluster.migrate_slot(slot, replica).await, Err(ServerError::Io { .. })));
}
