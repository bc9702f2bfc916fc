//! `fencelock-lab torture` as CI runs it: a few rounds on every store that can be started here, and
//! whether it bites.
//!
//! The long run is the same command: docs/torture.md.

use std::process::{Output, Stdio};
use std::time::Duration;

use fencelock_testkit::servers::TestRedis;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::NamedTempFile;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

mod clocks;
mod forgetting;
mod transactions;

/// Longer than a TTL, which is 2 s there.
const SHORT: [&str; 4] = ["--faults-for", "2500ms", "--quiet-for", "1s"];

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencelock-lab"));
    command.arg("torture").args(arguments).args(SHORT).env_remove("RUST_LOG");
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Exit code, output and progress.
async fn run(arguments: &[&str]) -> (i32, String, String) {
    said(&command(arguments).output().await.expect("it runs"))
}

fn said(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().expect("it exits");
    (code, text(&output.stdout), text(&output.stderr))
}

/// What `--json` wrote of the one store.
async fn report(arguments: &[&str]) -> Value {
    let file = NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a plain path");
    let (code, printed, progress) = run(&[arguments, &["--json", path]].concat()).await;
    assert_eq!(code, 0, "{printed}\n{progress}");
    let text = std::fs::read_to_string(path).expect("a report");
    let stores: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    stores.into_iter().next().expect("a store")
}

/// Another seed each time; a failure prints the command that repeats it.
async fn keeps_its_promises(store: &str) {
    let (code, printed, progress) = run(&[store, "--rounds", "3"]).await;
    assert_eq!(code, 0, "{printed}\n{progress}");
    assert!(printed.contains(" in 3 rounds, 0 violations (at most one in "), "{printed}");
    assert!(
        printed.contains(&format!("again: fencelock-lab torture {store} --rounds 3 --seed ")),
        "{printed}"
    );
    // Counters, jobs with ticks and elections are there besides the locks, where there are cells.
    assert_eq!(printed.contains(" additions ("), !store.starts_with("redlock"), "{printed}");
}

#[tokio::test]
async fn memory_keeps_its_promises() {
    keeps_its_promises("memory").await;
}

#[tokio::test]
async fn file_keeps_its_promises() {
    keeps_its_promises("file").await;
}

#[tokio::test]
async fn postgres_keeps_its_promises() {
    keeps_its_promises("postgres").await;
}

#[tokio::test]
async fn postgres_pgbouncer_keeps_its_promises() {
    keeps_its_promises("postgres-pgbouncer").await;
}

#[tokio::test]
async fn postgres_failover_keeps_its_promises() {
    keeps_its_promises("postgres-failover").await;
}

#[tokio::test]
async fn postgres_sync_keeps_its_promises() {
    keeps_its_promises("postgres-sync").await;
}

#[tokio::test]
async fn redis_keeps_its_promises() {
    keeps_its_promises("redis").await;
}

#[tokio::test]
async fn redis_aof_keeps_its_promises() {
    keeps_its_promises("redis-aof").await;
}

#[tokio::test]
async fn redis_failover_keeps_its_promises() {
    keeps_its_promises("redis-failover").await;
}

#[tokio::test]
async fn redis_sentinel_keeps_its_promises() {
    keeps_its_promises("redis-sentinel").await;
}

#[tokio::test]
async fn redis_cluster_keeps_its_promises() {
    keeps_its_promises("redis-cluster").await;
}

#[tokio::test]
async fn redlock_3_keeps_its_promises() {
    keeps_its_promises("redlock-3").await;
}

#[tokio::test]
async fn redlock_5_keeps_its_promises() {
    keeps_its_promises("redlock-5").await;
}

#[tokio::test]
async fn zookeeper_keeps_its_promises() {
    keeps_its_promises("zookeeper").await;
}

#[tokio::test]
async fn zookeeper_3_keeps_its_promises() {
    keeps_its_promises("zookeeper-3").await;
}

/// Without this the register would prove nothing.
#[tokio::test]
async fn frozen_clients_lose_updates_only_where_tokens_are_not_checked() {
    // A process that stands still has locks then, for it has most of them at any time.
    let holds = ["--workers", "12", "--locks", "24", "--hold-at-most", "300ms"];
    let frozen = ["redis", "--fault", "clients-frozen", "--rounds", "3"];
    let report = report(&[&frozen[..], &holds].concat()).await;
    let lost = |register: &str| -> u64 {
        let rounds = report["rounds"].as_array().expect("rounds").iter();
        let lost = |round: &Value| round["writes"][register]["lost_updates"].as_u64();
        rounds.map(|round| lost(round).expect("a count")).sum()
    };
    assert!(lost("unchecked") > 0, "no lost update: {report:#}");
    assert_eq!(lost("checked"), 0, "{report:#}");
}

/// Two kills a second at least, of processes that label their ticks by clocks that are hours apart.
#[tokio::test]
async fn only_cells_are_used_if_these_are_asked_for() {
    let killed = ["file", "--only", "cells", "--fault", "clients-killed", "--rounds", "1"];
    let report = report(&killed).await;
    let round = &report["rounds"][0];
    for figure in ["additions", "ticks", "terms", "observed"] {
        assert!(round["cells"][figure].as_u64() > Some(0), "{report:#}");
    }
    assert_eq!(round["writes"]["checked"]["accepted"], 0, "{report:#}");
    let (code, _, error) = run(&["file", "--only", "doors"]).await;
    assert!(code == 64 && error.contains("expected locks or cells"), "{code}: {error}");
}

/// A server that forgets its locks: what its profile admits is counted, and harms nothing.
#[tokio::test]
async fn a_redis_that_restarts_empty_shows_the_overlaps_that_its_profile_names() {
    // Several holders hold for longer than a restart takes in each round.
    let restarts = ["redis", "--fault", "server-restarted", "--rounds", "3", "--workers", "12"];
    let report = report(&[&restarts[..], &["--hold-at-most", "300ms"]].concat()).await;
    let rounds = report["rounds"].as_array().expect("rounds");
    let overlaps = rounds.iter().map(|round| round["admitted_overlaps"].as_u64().expect("a count"));
    assert!(overlaps.sum::<u64>() > 0, "{report:#}");
    assert_eq!(report["violations"], 0);
    assert!(!report["exclusion_fails_when"].as_array().expect("a list").is_empty());
}

/// A failover that loses locks: two hold one for real, and the resource refuses the first one's
/// write.
#[tokio::test]
async fn a_failover_that_loses_locks_shows_the_overlaps_that_its_profile_names() {
    let lossy = ["redis-failover", "--fault", "master-killed", "--rounds", "4"];
    // The replica may still know an earlier holder of a lock, and does not grant it then: some are
    // free now and then.
    let many = ["--workers", "12", "--locks", "48", "--hold-at-most", "300ms"];
    let report = report(&[&lossy[..], &many].concat()).await;
    let sum = |what: &dyn Fn(&Value) -> Option<u64>| -> u64 {
        let rounds = report["rounds"].as_array().expect("rounds").iter();
        rounds.map(|round| what(round).expect("a count")).sum()
    };
    assert!(sum(&|round| round["admitted_overlaps"].as_u64()) > 0, "{report:#}");
    assert!(sum(&|round| round["writes"]["unchecked"]["lost_updates"].as_u64()) > 0, "{report:#}");
    assert_eq!(report["violations"], 0, "{report:#}");
}

/// A master that delays writes does not publish for its sentinels either: they consider it dead, and
/// when it continues there are two.
#[tokio::test]
async fn an_unrequested_failover_is_detected() {
    let report = report(&["redis-sentinel", "--fault", "writes-paused", "--rounds", "4"]).await;
    let mut rounds = report["rounds"].as_array().expect("rounds").iter();
    assert!(rounds.any(|round| round["failed_over"] == true), "{report:#}");
    assert_eq!(report["violations"], 0, "{report:#}");
}

#[tokio::test]
async fn a_seed_decides_what_goes_wrong() {
    let faults = async || {
        let report = report(&["redis", "--rounds", "3", "--seed", "11", "--workers", "2"]).await;
        let rounds = report["rounds"].as_array().expect("rounds").clone();
        rounds.iter().map(|round| round["faults"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(faults().await, faults().await);
}

#[tokio::test]
async fn an_unknown_store_name_lists_the_known_ones() {
    let (code, _, error) = run(&["reddis"]).await;
    assert!(code == 64 && error.contains("zookeeper-3, or the URL"), "{code}: {error}");
    let (code, _, error) = run(&["redis", "--fault", "earthquake"]).await;
    assert!(code == 64 && error.contains(", server-frozen, "), "{code}: {error}");
}

#[tokio::test]
async fn an_absent_server_is_one_clear_error() {
    let (code, _, error) = run(&["redis://:correct-horse@127.0.0.1:1"]).await;
    assert!(code == 69 && error.contains("127.0.0.1:1"), "{code}: {error}");
    assert!(!error.contains("correct-horse"), "{error}");
}

#[tokio::test]
async fn an_interrupt_ends_it_with_what_is_done() {
    let mut child = command(&["redis", "--minutes", "10"]).spawn().expect("it starts");
    let mut progress = BufReader::new(child.stderr.take().expect("its progress")).lines();
    while let Some(line) = progress.next_line().await.expect("text") {
        if line.starts_with("redis: round 1,") {
            break;
        }
    }
    let pid = i32::try_from(child.id().expect("it runs")).expect("a pid");
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::INT).expect("interrupted");
    let ended = tokio::time::timeout(Duration::from_secs(60), child.wait_with_output()).await;
    let (code, printed, _) = said(&ended.expect("it ends").expect("it ended"));
    assert!(
        code == 0 && printed.contains("in 1 round,") && printed.contains("stopped early"),
        "{printed}"
    );
}

/// A server that another client uses too, with one key.
async fn server_in_use() -> TestRedis {
    let server = TestRedis::start().await.expect("a redis-server starts");
    server.command(&["SET", "lock:orders", "1"]).await.expect("it answers");
    server
}

async fn keys(server: &TestRedis) -> String {
    server.command(&["KEYS", "*"]).await.expect("it answers")
}

#[tokio::test]
async fn nothing_stays_in_a_store_that_was_named() {
    let server = server_in_use().await;
    let (code, printed, progress) = run(&[&server.url(), "--rounds", "1"]).await;
    assert_eq!(code, 0, "{printed}\n{progress}");
    assert_eq!(keys(&server).await, "lock:orders", "{printed}\n{progress}");
}

#[tokio::test]
async fn nothing_stays_in_a_store_that_was_named_when_the_run_is_interrupted() {
    let server = server_in_use().await;
    let child = command(&[&server.url(), "--minutes", "10"]).spawn().expect("it starts");
    while keys(&server).await.lines().count() < 5 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let pid = i32::try_from(child.id().expect("it runs")).expect("a pid");
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::TERM).expect("it runs");
    let ended = tokio::time::timeout(Duration::from_secs(60), child.wait_with_output()).await;
    let (_, printed, progress) = said(&ended.expect("it ends").expect("it ended"));
    assert_eq!(keys(&server).await, "lock:orders", "{printed}\n{progress}");
}
