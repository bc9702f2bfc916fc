//! Servers' clocks that step while the store is in use: what each store's profile says of that.

use serde_json::Value;

use super::{report, sum};

const SERVERS: [&str; 2] = ["--fault", "server-clock-stepped"];
/// Several holders hold at any time.
const HOLDS: [&str; 4] = ["--workers", "12", "--hold-at-most", "300ms"];

fn names_the_clock(report: &Value) -> bool {
    let reasons = report["exclusion_fails_when"].as_array().expect("a list");
    reasons.iter().any(|reason| reason.as_str().expect("a text").contains("clock"))
}

/// Leases end early, which is counted; tokens rise and the register refuses what is stale, or there
/// would be violations.
/// Fault 33: redis (permitted: two hold when steps ahead end leases; tokens rise over all steps)
#[tokio::test]
#[ignore = "in ./test --long: minutes of the processor"]
async fn a_redis_whose_clock_steps_shows_the_overlaps_that_its_profile_names() {
    let report = report(&[&["redis", "--rounds", "2"][..], &SERVERS, &HOLDS].concat()).await;
    assert!(names_the_clock(&report) && sum(&report, "/admitted_overlaps") > 0, "{report:#}");
    assert_eq!(report["violations"], 0, "{report:#}");
}

/// A node that steps ahead frees the locks that it holds, and another client may find a majority with it.
/// Whether that happens in one round is chance, so the overlaps have no least number here.
/// Fault 33: redlock (permitted: two may hold when a step ahead frees a lock at one node; tokens rise over
/// all steps)
#[tokio::test]
#[ignore = "in ./test --long: minutes of the processor"]
async fn a_quorum_with_a_node_whose_clock_steps_overlaps_only_as_its_profile_admits() {
    let report = report(&[&["redlock-3", "--rounds", "1"][..], &SERVERS, &HOLDS].concat()).await;
    assert!(names_the_clock(&report), "{report:#}");
    assert_eq!(report["violations"], 0, "{report:#}");
}

/// Each server's clock steps by itself.
/// Fault 33: zookeeper-3
#[tokio::test]
#[ignore = "in ./test --long: minutes of the processor"]
async fn an_ensemble_whose_clocks_step_notices_nothing() {
    let report = report(&[&["zookeeper-3", "--rounds", "1"][..], &SERVERS, &HOLDS].concat()).await;
    assert!(!names_the_clock(&report) && sum(&report, "/admitted_overlaps") == 0, "{report:#}");
    assert_eq!(report["violations"], 0, "{report:#}");
}
