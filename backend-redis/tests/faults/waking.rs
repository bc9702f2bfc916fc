//! Late wake-ups, and the cost of a wake-up.

use fencelock_testkit::proxy::Direction;
use tokio::time::Instant;

use crate::support::*;

/// Hand-off rules 1 and 5: a grant stays in a socket while its owner cannot read it, lapses, and goes
/// to the next waiter; when it is read later, it is verified first.
/// Fault 4: redis
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_arrives_too_late_is_discarded() {
    let testbed = Testbed::start().await;
    let (near, far) = (testbed.direct("ttl=60s").await, testbed.through_proxy("ttl=60s").await);
    let (blocker, late) = contested(&near, &far, "lock").await;
    let next = queued(&near, "lock", 2).await;
    testbed.proxy.stall(Direction::ToClient);
    release(blocker).await;
    // Within `PATIENCE`, although the lease of the skipped waiter is a minute.
    let guard = until_granted(next).await;
    testbed.proxy.heal().await.unwrap();
    // Its client is back, and is not granted.
    assert!(is_busy(&far, "lock").await);
    until_queued(&near, "lock", 1).await;
    assert!(!late.is_finished(), "two were granted");
    let token = guard.fencing_token();
    release(guard).await;
    let late = until_granted(late).await;
    assert!(late.fencing_token() > token);
    release(late).await;
    drained(&testbed.server).await;
}

/// Invariant 6: one release wakes one waiter; the others cost nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_costs_the_server_the_same_however_many_wait() {
    const CLAIMS: usize = 300;
    let (server, locks) = started("ttl=60s").await;
    let blocker = acquire(&locks, "lock").await;
    let waiters = (0..CLAIMS).map(|_| spawn_waiter(&locks, "lock")).collect::<Vec<_>>();
    until_queued(&locks, "lock", CLAIMS).await;
    redis_command(&server, &["CONFIG", "RESETSTAT"]).await;
    let asked = Instant::now();
    release(blocker).await;
    assert_eq!(in_turns(waiters).await.len(), CLAIMS);
    let stats = redis_command(&server, &["INFO", "commandstats"]).await;
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
    let calls: usize = line.split(',').next().unwrap().parse().unwrap();
    // A release and a confirmation each, the checks of the seconds that it took, and what a busy machine
    // confirms too late. If each release woke all that wait, it would be some 45,000.
    let checks = usize::try_from(asked.elapsed().as_secs()).unwrap() + 2;
    assert!(calls <= 4 * CLAIMS + 2 * checks, "{calls} calls for {CLAIMS} hand-offs");
    drained(&server).await;
}
