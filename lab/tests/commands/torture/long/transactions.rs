//! Transactions on the lock's own database: what their check prevents, and what is lost without it.

use super::{report, sum};

/// All holds have transactions.
const ALL: [&str; 2] = ["--transactions", "100"];
/// Several holders hold at any time, others wait, and all tasks have transactions.
const HOLDS: [&str; 6] = ["--workers", "8", "--locks", "16", "--hold-at-most", "200ms"];

/// Clients are frozen for longer than the TTL, within transactions too.
#[tokio::test]
#[ignore = "in ./test --long: minutes of the processor"]
async fn a_check_keeps_the_updates_that_are_lost_without_it() {
    // Where in a transaction a client is frozen is a matter of chance.
    const TRIES: usize = 4;
    let (mut lost, mut refused) = (0, 0);
    for _ in 0..TRIES {
        let frozen = ["postgres", "--fault", "clients-frozen", "--rounds", "4"];
        let report = report(&[&frozen[..], &ALL, &HOLDS].concat()).await;
        assert!(sum(&report, "/transactions/checked/commits") > 0, "{report:#}");
        assert_eq!(sum(&report, "/transactions/checked/lost_updates"), 0, "{report:#}");
        assert_eq!(sum(&report, "/transactions/lost_commits"), 0, "{report:#}");
        lost += sum(&report, "/transactions/unchecked/lost_updates");
        refused += sum(&report, "/transactions/refused");
        if lost > 0 && refused > 0 {
            return;
        }
    }
    panic!("{lost} updates were lost without a check, and {refused} checks were refused");
}

/// The commits that it loses are lost with the grants that they were checked against: one history.
#[tokio::test]
#[ignore = "in ./test --long: minutes of the processor"]
async fn a_failover_that_loses_commits_loses_no_update_of_those_that_survive() {
    let lossy = ["postgres-failover", "--fault", "master-killed", "--rounds", "2"];
    let report = report(&[&lossy[..], &ALL, &HOLDS].concat()).await;
    assert!(sum(&report, "/transactions/lost_commits") > 0, "{report:#}");
    assert_eq!(sum(&report, "/transactions/checked/lost_updates"), 0, "{report:#}");
    assert_eq!(report["violations"], 0, "{report:#}");
}

#[tokio::test]
#[ignore = "in ./test --long: minutes of the processor"]
async fn a_failover_to_a_synchronous_standby_loses_no_commit() {
    let safe = ["postgres-sync", "--fault", "master-killed", "--rounds", "1"];
    let report = report(&[&safe[..], &ALL, &HOLDS].concat()).await;
    assert!(sum(&report, "/transactions/checked/commits") > 0, "{report:#}");
    assert_eq!(sum(&report, "/transactions/lost_commits"), 0, "{report:#}");
    assert_eq!(report["violations"], 0, "{report:#}");
}
