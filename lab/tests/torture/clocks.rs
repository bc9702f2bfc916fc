//! Wall clocks that step while the store is in use: what each store's profile says of that, and
//! whether the verdict notices tokens that follow the clock.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::{command, report, said};

const SERVERS: [&str; 2] = ["--fault", "server-clock-stepped"];
/// Several holders hold at any time.
const HOLDS: [&str; 4] = ["--workers", "12", "--hold-at-most", "300ms"];

fn overlaps(report: &Value) -> u64 {
    let rounds = report["rounds"].as_array().expect("rounds").iter();
    rounds.map(|round| round["admitted_overlaps"].as_u64().expect("a count")).sum()
}

fn names_the_clock(report: &Value) -> bool {
    let reasons = report["exclusion_fails_when"].as_array().expect("a list");
    reasons.iter().any(|reason| reason.as_str().expect("a text").contains("clock"))
}

/// Leases end early, which is counted; tokens rise and the register refuses what is stale, or there
/// would be violations.
/// Fault 33: redis (permitted: two hold when steps ahead end leases; tokens rise over all steps)
#[tokio::test]
async fn a_redis_whose_clock_steps_shows_the_overlaps_that_its_profile_names() {
    let report = report(&[&["redis", "--rounds", "2"][..], &SERVERS, &HOLDS].concat()).await;
    assert!(names_the_clock(&report) && overlaps(&report) > 0, "{report:#}");
    assert_eq!(report["violations"], 0, "{report:#}");
}

/// A node that steps ahead frees the locks that it holds, and another client may find a majority with it.
/// Whether that happens in one round is chance, so the overlaps have no least number here.
/// Fault 33: redlock (permitted: two may hold when a step ahead frees a lock at one node; tokens rise over
/// all steps)
#[tokio::test]
async fn a_quorum_with_a_node_whose_clock_steps_overlaps_only_as_its_profile_admits() {
    let report = report(&[&["redlock-3", "--rounds", "1"][..], &SERVERS, &HOLDS].concat()).await;
    assert!(names_the_clock(&report), "{report:#}");
    assert_eq!(report["violations"], 0, "{report:#}");
}

/// Each server's clock steps by itself.
/// Fault 33: zookeeper-3
#[tokio::test]
async fn an_ensemble_whose_clocks_step_notices_nothing() {
    let report = report(&[&["zookeeper-3", "--rounds", "1"][..], &SERVERS, &HOLDS].concat()).await;
    assert!(!names_the_clock(&report) && overlaps(&report) == 0, "{report:#}");
    assert_eq!(report["violations"], 0, "{report:#}");
}

/// Fault 34: file, redis
#[tokio::test]
async fn clients_whose_clocks_step_notice_nothing() {
    for store in ["file", "redis"] {
        let clients = [store, "--rounds", "1", "--fault", "client-clock-stepped"];
        let report = report(&[&clients[..], &HOLDS].concat()).await;
        assert!(overlaps(&report) == 0 && report["violations"] == 0, "{report:#}");
    }
}

/// A server that forgets each token, so that the next one is that of its clock alone: what a store
/// would give that does not remember.
#[tokio::test]
async fn tokens_of_a_clock_that_is_not_remembered_are_violations() {
    let directory = tempfile::tempdir().expect("a directory");
    let (server, arguments) = (directory.path().join("server"), directory.path().join("arguments"));
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] || printf '%s\\n' \"$@\" > {}\nexec redis-server \"$@\"\n",
        arguments.display()
    );
    std::fs::write(&server, script).expect("written");
    std::fs::set_permissions(&server, PermissionsExt::from_mode(0o755)).expect("a program");
    let json = directory.path().join("report");
    let path = json.to_str().expect("a plain path");
    let mut torture =
        command(&[&["redis", "--rounds", "2", "--json", path][..], &SERVERS].concat());
    let torture = torture.env("FENCELOCK_REDIS_SERVER", &server).output();
    let output = tokio::select! {
        output = torture => output.expect("it runs"),
        () = forget_tokens(&arguments) => unreachable!("it forgets for as long as it can"),
    };
    let (code, printed, progress) = said(&output);
    let report: Value =
        serde_json::from_slice(&std::fs::read(json).expect("a report")).expect("JSON");
    for round in report[0]["rounds"].as_array().expect("rounds") {
        if let Some(histories) = round["histories"].as_str() {
            std::fs::remove_dir_all(histories).expect("removed");
        }
    }
    assert_eq!(code, 1, "{printed}\n{progress}");
    assert!(progress.contains(" was granted after "), "{printed}\n{progress}");
}

/// Deletes the tokens of the server that was started with these arguments, until it ends.
async fn forget_tokens(arguments: &Path) {
    loop {
        // It is not there yet, or no more.
        let _ = forget_while_it_lives(arguments).await;
        sleep(Duration::from_millis(5)).await;
    }
}

async fn forget_while_it_lives(arguments: &Path) -> io::Result<()> {
    let arguments = std::fs::read_to_string(arguments)?;
    let port = arguments.lines().skip_while(|it| *it != "--port").nth(1).unwrap_or_default();
    let mut server = TcpStream::connect(format!("127.0.0.1:{port}")).await?;
    let forget = "EVAL \"for _, key in ipairs(redis.call('KEYS', '*:f')) do redis.call('DEL', key) end\" 0\r\n";
    loop {
        server.write_all(forget.as_bytes()).await?;
        // The answer is nil.
        server.read_exact(&mut [0; 5]).await?;
        sleep(Duration::from_millis(5)).await;
    }
}
