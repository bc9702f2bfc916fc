//! Redis under Sentinel.

use fencelock_testkit::servers::{RedisOptions, TestSentinel};

use crate::is_running;

#[tokio::test]
async fn sentinels_name_the_master_and_end_with_their_handle() {
    let redis = TestSentinel::start().await.unwrap();
    assert_eq!((redis.sentinels().len(), redis.nodes().len()), (3, 3));
    let master = redis.master().await.unwrap();
    for sentinel in redis.sentinels() {
        let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", redis.service()];
        let addr = sentinel.command(&ask).await.unwrap();
        assert_eq!(addr.replace('\n', ":"), master.addr().to_string());
    }
    master.command(&["SET", "k", "v"]).await.unwrap();
    redis.replicas_caught_up().await.unwrap();
    for node in redis.nodes() {
        assert_eq!(node.command(&["GET", "k"]).await.unwrap(), "v");
    }

    let servers = || redis.nodes().iter().chain(redis.sentinels());
    let pids: Vec<_> = servers().map(|server| server.pid()).collect();
    let directories: Vec<_> = servers().map(|server| server.directory().to_owned()).collect();
    drop(redis);
    assert!(!pids.into_iter().any(is_running));
    assert!(!directories.iter().any(|directory| directory.exists()));
}

#[tokio::test]
async fn sentinels_fail_over_on_demand_again_and_again() {
    let redis = RedisOptions::new().password("p@ss \"word").sentinel_password("an other");
    let redis = redis.sentinel().await.unwrap();
    for _ in 0..3 {
        let before = redis.master().await.unwrap();
        let after = redis.failover().await.unwrap();
        assert_ne!(after.port(), before.port());
        assert_eq!(redis.master().await.unwrap().port(), after.port());
        after.command(&["SET", "k", "v"]).await.unwrap();
    }
    redis.settled().await.unwrap();
}

#[tokio::test]
async fn sentinels_promote_a_replica_of_a_killed_master_which_comes_back_as_a_replica() {
    let redis = RedisOptions::new().append_only().sentinel().await.unwrap();
    let first = redis.master().await.unwrap();
    let second = redis.kill_master().await.unwrap();
    assert_ne!(second.port(), first.port());
    second.command(&["SET", "k", "v"]).await.unwrap();

    first.restart().await.unwrap();
    redis.settled().await.unwrap();
    let error = first.command(&["SET", "k", "w"]).await.unwrap_err();
    assert!(error.to_string().starts_with("READONLY"), "{error}");
}

#[tokio::test]
async fn a_frozen_master_is_replaced_though_a_sentinel_is_frozen_too() {
    let redis = TestSentinel::start().await.unwrap();
    redis.sentinels()[0].freeze().await.unwrap();
    let before = redis.master().await.unwrap();
    before.freeze().await.unwrap();
    let after = redis.next_master(before).await.unwrap();
    assert_ne!(after.port(), before.port());
    before.thaw().unwrap();
    redis.sentinels()[0].thaw().unwrap();
    redis.settled().await.unwrap();
    assert_eq!(redis.master().await.unwrap().port(), after.port());
}

/// Tests that start servers do so from harnesses whose futures change threads.
#[tokio::test]
async fn a_topology_can_be_started_from_a_task() {
    let task = tokio::spawn(async {
        let redis = TestSentinel::start().await?;
        redis.failover().await?;
        redis.kill_master().await?;
        Ok::<_, fencelock_testkit::servers::ServerError>(())
    });
    task.await.unwrap().unwrap();
}
