//! Three servers of which some are dead or frozen.

use fencelock_core::{ErrorKind, Guard, Moment};
use tokio::time::sleep;

use crate::support::*;

async fn follower_of(servers: &fencelock_testkit::servers::TestZooKeeper) -> usize {
    let leader = servers.leader().await.expect("a leader").port();
    let follower = servers.servers().iter().position(|server| server.port() != leader);
    follower.expect("two of them")
}

/// Rows 19 and 30: its clients connect to another server, and a majority decides. A client that takes
/// too long, for example by trying the frozen one again, is notified of its loss, and can acquire
/// the lock again.
/// Faults 19, 30: zookeeper-3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_follower_blocks_no_client() {
    let borrowed = Borrowed::ensemble().await;
    let servers = borrowed.servers();
    let follower = follower_of(&servers).await;
    let testbed = Testbed::on(servers.clone(), follower).await;
    // Sessions that outlast the stalls of a busy machine.
    let url = format!("zk://{}{}?prefix=&session=10s", servers.connect_string(), testbed.root);
    let (mut clients, mut guards) = (Vec::new(), Vec::new());
    // Enough that some of them are connected to the follower: which ones is unknown.
    for at in 0..8 {
        let locks = connect(&url).await;
        guards.push(acquire(&locks, &format!("lock-{at}")).await);
        clients.push(locks);
    }
    let waiter = testbed.queued(&clients[1], "lock-0", 2).await;
    servers.servers()[follower].freeze().await.unwrap();
    let ends: Vec<_> = guards.iter().map(Guard::valid_until).collect();
    until("each hold was renewed past its end, or lost", async || {
        let past = |(guard, end): (&Guard, &Moment)| guard.valid_until() > *end + ms(10_000);
        guards.iter().zip(&ends).all(|pair| !pair.0.is_held() || past(pair))
    })
    .await;
    let kept = guards.iter().filter(|guard| guard.is_held()).count();
    println!("{kept} of {} holds were kept", guards.len());
    assert!(kept > 0, "all holds were lost");
    let first = guards.remove(0);
    if first.is_held() {
        release(first).await;
    }
    release(until_granted(waiter).await).await;
    for (guard, locks) in guards.into_iter().zip(&clients[1..]) {
        let (name, old) = (guard.name().as_str().to_owned(), guard.fencing_token());
        if guard.is_held() {
            release(guard).await;
        }
        let again = acquire(locks, &name).await;
        assert!(again.fencing_token() > old);
        release(again).await;
    }
    servers.servers()[follower].thaw().unwrap();
    testbed.drained(&["lock-0", "lock-1", "lock-7"]).await;
}

/// Rows 20, 30 and 31.
/// Faults 20, 30, 31: zookeeper-3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_claims_wait_and_a_dead_holders_lock_is_freed_afterwards() {
    let borrowed = Borrowed::ensemble().await;
    let servers = borrowed.servers();
    let testbed = Testbed::on(servers.clone(), 0).await;
    let (far, near) = (testbed.behind().await, testbed.direct().await);
    let (held, waiter) = testbed.contested(&far, &near, "one").await;
    let all = servers.servers();
    for dead in &all[1..] {
        dead.kill().unwrap();
    }
    // The holder is cut off for good.
    both_ways(|direction| testbed.proxy.black_hole(direction));
    let cut = far.now();
    soon("the holder is notified", held.lost()).await;
    assert_ends_in_time(&held, cut, T);
    let lock = near.lock("other").wait_at_most(ms(500));
    let error = soon("a short wait ends", lock.acquire()).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
    until("the error of connecting names the cause", async || {
        let url = testbed.url(&all[0].connect_string(), "unreachable_after=3s");
        let error = try_connect(&url).await.expect_err("without a quorum");
        assert_kind(&error, ErrorKind::Unreachable);
        error_chain(&error).contains("without a quorum")
    })
    .await;
    let fresh = spawn_waiter(&near, "fresh");
    // Longer than all session timeouts.
    sleep((cut + T * 5 / 2).duration_since(near.now())).await;
    assert!(!waiter.is_finished() && !fresh.is_finished(), "granted without a quorum");
    all[1].restart().await.unwrap();
    release(until_granted(fresh).await).await;
    let next = until_granted(waiter).await;
    assert!(!held.is_held());
    all[2].restart().await.unwrap();
    testbed.proxy.heal().await.unwrap();
    let error = soon("a late release ends", held.release()).await.unwrap_err();
    assert_kind(&error, ErrorKind::NotHeld);
    assert!(next.is_held());
    release(next).await;
    release(acquire(&far, "one").await).await;
    until_free(&near, "one").await;
}

/// Row 32: it answers reads from its old state, and its client reconnects to it.
/// Fault 32: zookeeper-3
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thawed_follower_grants_no_lock_that_was_lost() {
    let borrowed = Borrowed::ensemble().await;
    let servers = borrowed.servers();
    let follower = follower_of(&servers).await;
    let testbed = Testbed::on(servers.clone(), follower).await;
    let (far, near) = (testbed.behind().await, testbed.direct().await);
    for _ in 0..3 {
        let contest = Contest::between(&testbed, &far, &near, "one").await;
        servers.servers()[follower].freeze().await.unwrap();
        let cut = far.now();
        let Outcome { loser, winner, .. } = contest.decided(cut).await;
        servers.servers()[follower].thaw().unwrap();
        // At once, and repeatedly while the follower catches up.
        for _ in 0..20 {
            match far.lock("one").wait_at_most(ms(200)).try_acquire().await {
                Ok(granted) => assert!(granted.is_none(), "granted twice"),
                Err(error) => assert_kind(&error, ErrorKind::Unreachable),
            }
            assert!(!loser.is_held() && winner.is_held());
        }
        let error = soon("a late release ends", loser.release()).await.unwrap_err();
        assert_kind(&error, ErrorKind::NotHeld);
        assert!(winner.is_held());
        release(winner).await;
        release(acquire(&far, "one").await).await;
    }
    testbed.drained(&["one"]).await;
}
