//! What takes minutes of the processor: all stores, and whether the command notices what it must.

mod clocks;
mod forgetting;
mod transactions;

use fencelock_testkit::deployments::Kind;
use futures_util::{StreamExt, stream};
use serde_json::Value;

use super::{keeps_its_promises, report};

/// The sum of a figure over all rounds.
fn sum(report: &Value, figure: &str) -> u64 {
    let rounds = report["rounds"].as_array().expect("rounds").iter();
    rounds.map(|round| round.pointer(figure).and_then(Value::as_u64).expect("a count")).sum()
}

#[tokio::test]
#[ignore = "in ./test --long: minutes of both processors"]
async fn every_store_keeps_its_promises() {
    let others = Kind::ALL.map(|kind| kind.to_string()).into_iter().filter(|it| it != "file");
    let torture = |store: String| async move { keeps_its_promises(&store).await };
    stream::iter(others).for_each_concurrent(2, torture).await;
}

/// Without this the register would prove nothing.
#[tokio::test]
#[ignore = "in ./test --long: minutes of the processor"]
async fn frozen_clients_lose_updates_only_where_tokens_are_not_checked() {
    // A process that stands still has locks then, for it has most of them at any time.
    let holds = ["--workers", "12", "--locks", "24", "--hold-at-most", "300ms"];
    let frozen = ["redis", "--fault", "clients-frozen", "--rounds", "3"];
    let report = report(&[&frozen[..], &holds].concat()).await;
    assert!(sum(&report, "/writes/unchecked/lost_updates") > 0, "no lost update: {report:#}");
    assert_eq!(sum(&report, "/writes/checked/lost_updates"), 0, "{report:#}");
}

/// A failover that loses locks: two hold one for real, and the resource refuses the first one's
/// write.
#[tokio::test]
#[ignore = "in ./test --long: minutes of the processor"]
async fn a_failover_that_loses_locks_shows_the_overlaps_that_its_profile_names() {
    let lossy = ["redis-failover", "--fault", "master-killed", "--rounds", "4"];
    // The replica may still know an earlier holder of a lock, and does not grant it then: some are
    // free now and then.
    let many = ["--workers", "12", "--locks", "48", "--hold-at-most", "300ms"];
    let report = report(&[&lossy[..], &many].concat()).await;
    assert!(sum(&report, "/admitted_overlaps") > 0, "{report:#}");
    assert!(sum(&report, "/writes/unchecked/lost_updates") > 0, "{report:#}");
    assert_eq!(report["violations"], 0, "{report:#}");
}

/// A master that delays writes does not publish for its sentinels either: they consider it dead, and
/// when it continues there are two.
#[tokio::test]
#[ignore = "in ./test --long: minutes of the processor"]
async fn an_unrequested_failover_is_detected() {
    let report = report(&["redis-sentinel", "--fault", "writes-paused", "--rounds", "4"]).await;
    let mut rounds = report["rounds"].as_array().expect("rounds").iter();
    assert!(rounds.any(|round| round["failed_over"] == true), "{report:#}");
    assert_eq!(report["violations"], 0, "{report:#}");
}

#[tokio::test]
#[ignore = "in ./test --long: minutes of the processor"]
async fn a_seed_decides_what_goes_wrong() {
    let faults = async || {
        let report = report(&["redis", "--rounds", "3", "--seed", "11", "--workers", "2"]).await;
        let rounds = report["rounds"].as_array().expect("rounds").iter();
        rounds.map(|round| round["faults"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(faults().await, faults().await);
}
