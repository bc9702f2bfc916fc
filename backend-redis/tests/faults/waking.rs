//! Late wake-ups, and the cost of a wake-up.

use fencelock_conformance::proxy::Direction;
use fencelock_conformance::servers::TestRedis;
use tokio::time::Instant;

use crate::support::*;

/// Hand-off rules 1 and 5: a grant stays in a socket while its owner cannot read it, lapses, and goes
/// to the next waiter; when it is read later, it is verified first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_arrives_too_late_is_discarded() {
    let rig = Rig::start().await;
    let (near, far) = (rig.direct("ttl=60s").await, rig.behind("ttl=60s").await);
    let blocker = hold(&near, "lock").await;
    let late = wait_for(&far, "lock");
    queued(&near, "lock", 1).await;
    let next = wait_for(&near, "lock");
    queued(&near, "lock", 2).await;
    rig.proxy.stall(Direction::ToClient);
    let handed_over = Instant::now();
    give_back(blocker).await;
    // Within seconds, although the lease of the skipped waiter is a minute.
    let guard = granted(next).await;
    assert!(handed_over.elapsed() < ms(6000), "after {:?}", handed_over.elapsed());
    rig.proxy.heal().await.unwrap();
    // Its client is back, and is not granted.
    assert!(is_busy(&far, "lock").await);
    queued(&near, "lock", 1).await;
    assert!(!late.is_finished(), "two were granted");
    let token = guard.fencing_token();
    give_back(guard).await;
    let late = granted(late).await;
    assert!(late.fencing_token() > token);
    give_back(late).await;
    drained(&rig.server).await;
}

/// Invariant 6: one release wakes one waiter; the others cost nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_costs_the_server_the_same_however_many_wait() {
    const CROWD: usize = 300;
    let server = TestRedis::start().await.unwrap();
    let locks = direct(&server, "ttl=60s").await;
    let blocker = hold(&locks, "lock").await;
    let waiters = (0..CROWD).map(|_| wait_for(&locks, "lock")).collect::<Vec<_>>();
    queued(&locks, "lock", CROWD).await;
    ask(&server, &["CONFIG", "RESETSTAT"]).await;
    let asked = Instant::now();
    give_back(blocker).await;
    assert_eq!(in_turns(waiters).await.len(), CROWD);
    let stats = ask(&server, &["INFO", "commandstats"]).await;
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
    let calls: usize = line.split(',').next().unwrap().parse().unwrap();
    // A release and a confirmation each, and the checks of the seconds that it took.
    let checks = usize::try_from(asked.elapsed().as_secs()).unwrap() + 2;
    assert!(calls <= 2 * CROWD + 2 * checks + 10, "{calls} calls for {CROWD} hand-offs");
    drained(&server).await;
}
