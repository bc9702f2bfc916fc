//! The command in a directory of its own, and what it leaves there.

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::support::{self, ended, output};

pub(super) fn command(directory: &TempDir, arguments: &[&str]) -> Command {
    let mut command = support::command("compare", arguments);
    command.args(["--json", "figures.json"]).current_dir(directory.path());
    command
}

pub(super) fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Exit code and all that was said.
pub(super) async fn run(directory: &TempDir, arguments: &[&str]) -> (i32, String) {
    ended(&output(&mut command(directory, arguments)).await)
}

/// What `--json` wrote.
pub(super) fn figures(directory: &TempDir) -> Value {
    let text = std::fs::read(directory.path().join("figures.json")).expect("figures");
    serde_json::from_slice(&text).expect("JSON")
}

pub(super) fn page(directory: &TempDir) -> String {
    std::fs::read_to_string(directory.path().join("fencelock-compare.html")).expect("a page")
}

pub(super) fn count(value: &Value, what: &str) -> u64 {
    value[what].as_u64().unwrap_or_else(|| panic!("no {what} in {value:#}"))
}

/// These may be held twice, as their profiles say. Sentinel's failovers lose what was
/// not replicated yet, which here is little or nothing.
pub(super) const FORGETFUL: [&str; 4] =
    ["postgres-failover", "redis", "redis-failover", "redis-sentinel"];

/// Each stage has found something, and what may overlap did, but nothing else.
pub(super) fn assert_whole(store: &Value) {
    let word = store["store"].as_str().expect("a word");
    assert_eq!(store["failures"], json!([]), "{word}");
    assert_measured(store, word);
    assert_faults(store, word);
}

fn assert_measured(store: &Value, word: &str) {
    for list in ["own_locks", "one_lock", "shared_locks"] {
        let points = store[list].as_array().expect("points");
        assert!(!points.is_empty(), "{word}: {list}");
        for point in points {
            let rate = &point["pairs_per_s"];
            let [min, median, max] = ["min", "median", "max"].map(|it| rate[it].as_f64());
            // On a busy machine nothing may be done in one of the short times that are measured.
            assert!(min <= median && median <= max && max > Some(0.0), "{word}: {point:#}");
        }
    }
    assert!(count(&store["hand_over"], "grants") > 0, "{word}");
    assert!(store["fixed_rate"]["done_per_s"].as_f64() > Some(0.0), "{word}");
    let has_servers = !["memory", "file"].contains(&word);
    let cost = &store["cost"];
    for what in ["requests_per_pair", "commands_per_pair", "server_cpu_us_per_pair"] {
        assert_eq!(cost[what].as_f64() > Some(0.0), has_servers, "{word}: {what}: {cost:#}");
    }
}

fn assert_faults(store: &Value, word: &str) {
    let timelines = store["timelines"].as_array().expect("lines");
    // Nothing can fail that is in the same process.
    assert_eq!(timelines.is_empty(), word == "memory", "{word}");
    for line in timelines {
        assert_eq!(line["came_back"], true, "{word}: {line:#}");
    }
    let faults = &store["faults"];
    assert!(count(faults, "acquisitions") > 0, "{word}");
    assert_eq!(count(faults, "lost_with_fencing"), 0, "{word}: {faults:#}");
    assert_eq!(faults["violations"], json!([]), "{word}: {faults:#}");
    assert_eq!(count(faults, "overlaps"), count(faults, "admitted_overlaps"), "{word}");
    if !FORGETFUL.contains(&word) {
        assert_eq!(count(faults, "overlaps"), 0, "{word}: {faults:#}");
    }
}
