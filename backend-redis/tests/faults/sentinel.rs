//! Failovers under Sentinel: how they are followed, and what no failover can promise.

use fencelock_core::Locks;
use fencelock_testkit::servers::TestSentinel;

use crate::support::*;

async fn client(servers: &TestSentinel, params: &str) -> Locks {
    connect(&format!("{}?{params}", servers.url())).await
}

/// Rows 26 and 27: an orderly failover, and one by a kill, with replicas in sync.
/// Faults 26, 27: sentinel
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_waiters_survive_a_failover() {
    let servers = TestSentinel::start().await.unwrap();
    // Longer than failovers whose elections are split, which is each time 6 s until the next.
    let (one, other) = (client(&servers, "ttl=30s").await, client(&servers, "ttl=30s").await);
    let mut held = acquire(&one, "lock").await;
    let kept = acquire(&other, "kept").await;
    for killed in [false, true] {
        let waiters = [&other, &one].map(|locks| (locks, spawn_waiter(locks, "lock")));
        until_queued(&one, "lock", 2).await;
        servers.replicas_caught_up().await.unwrap();
        match killed {
            false => servers.failover().await.unwrap(),
            true => servers.kill_master().await.unwrap(),
        };
        assert!(is_busy(&other, "lock").await);
        until_renewed(&one, &held, ms(30_000)).await;
        until_renewed(&other, &kept, ms(30_000)).await;
        let token = held.fencing_token();
        release(held).await;
        let tokens = in_turns(waiters.map(|(_, waiter)| waiter)).await;
        assert!(tokens.len() == 2 && tokens.is_sorted() && token < tokens[0], "{tokens:?}");
        held = acquire(&one, "lock").await;
    }
    release(held).await;
    release(kept).await;
    drained(servers.master().await.unwrap()).await;
}

/// Row 26: the promoted replica does not have the lock. Then two clients may hold it, as the profile
/// says, and the resource rejects the stale one.
/// Fault 26: sentinel (permitted: the new master grants a lock that is still believed in)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_lost_in_a_failover_is_reported_and_its_writes_are_rejected() {
    let servers = TestSentinel::start().await.unwrap();
    let (one, other) = (client(&servers, "ttl=9s").await, client(&servers, "ttl=9s").await);
    let isolate = async || {
        servers.replicas_caught_up().await.unwrap();
        let master = servers.master().await.unwrap();
        // Replicas cannot reconnect to it; connected clients stay.
        redis_command(master, &["CONFIG", "SET", "requirepass", "no replicas"]).await;
        master.command(&["PING"]).await.unwrap_err();
        let mut operator = Operator::of(master).await;
        operator.says("AUTH 'no replicas'").await;
        assert_eq!(operator.says("CLIENT KILL TYPE replica").await, ":2\r\n");
    };
    let kill = async || {
        servers.kill_master().await.unwrap();
    };
    forgotten_in_a_failover((&one, &other), ms(9000), isolate, kill).await;
    drained(servers.master().await.unwrap()).await;
}

/// A frozen master does not answer, and resumes later as a replica.
/// Fault 19: sentinel
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_master_is_replaced_by_the_next_one() {
    let servers = TestSentinel::start().await.unwrap();
    let locks = client(&servers, "ttl=30s").await;
    let (held, waiter) = contested(&locks, &locks, "lock").await;
    servers.replicas_caught_up().await.unwrap();
    let before = servers.master().await.unwrap();
    before.freeze().await.unwrap();
    // A sentinel that does not answer either is skipped.
    servers.sentinels()[2].freeze().await.unwrap();
    servers.next_master(before).await.unwrap();
    until_renewed(&locks, &held, ms(30_000)).await;
    before.thaw().unwrap();
    hand_over(held, waiter).await;
    drained(servers.master().await.unwrap()).await;
}
