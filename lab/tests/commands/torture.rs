//! `fencelock-lab torture` on the file store, how it ends, and what it says of wrong arguments.
//!
//! The other stores are in `long`; runs of hours are the same command: docs/torture.md.

mod long;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::NamedTempFile;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::support::{self, ABSENT, ended, interrupt, keys, output, server_in_use, until};

/// Longer than a TTL, which is 2 s there.
const SHORT: [&str; 4] = ["--faults-for", "2500ms", "--quiet-for", "1s"];

fn command(arguments: &[&str]) -> Command {
    support::command("torture", &[arguments, &SHORT].concat())
}

/// Exit code, output and progress.
async fn run(arguments: &[&str]) -> (i32, String) {
    ended(&output(&mut command(arguments)).await)
}

/// The report of the one store, which `--json` wrote to `file`.
fn read(file: &NamedTempFile) -> Value {
    let text = std::fs::read(file.path()).expect("a report");
    serde_json::from_slice::<[Value; 1]>(&text).expect("of a store")[0].take()
}

/// What is reported of a run without violations.
async fn report(arguments: &[&str]) -> Value {
    let file = NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a plain path");
    let (code, printed) = run(&[arguments, &["--json", path]].concat()).await;
    assert_eq!(code, 0, "{printed}");
    read(&file)
}

/// Another seed each time; a failure prints the command that repeats it.
async fn keeps_its_promises(store: &str) {
    let (code, printed) = run(&[store, "--rounds", "3"]).await;
    assert_eq!(code, 0, "{printed}");
    assert!(printed.contains(" in 3 rounds, 0 violations (at most one in "), "{printed}");
    assert!(
        printed.contains(&format!("again: fencelock-lab torture {store} --rounds 3 --seed ")),
        "{printed}"
    );
    // Counters, jobs with ticks and elections are there besides the locks, where there are cells.
    assert_eq!(printed.contains(" additions ("), !store.starts_with("redlock"), "{printed}");
}

#[tokio::test]
async fn file_keeps_its_promises() {
    keeps_its_promises("file").await;
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
}

#[tokio::test]
async fn mistakes_are_one_clear_error() {
    for (arguments, code, says) in [
        (&["reddis"][..], 64, "zookeeper-3, or the URL"),
        (&["redis", "--fault", "earthquake"], 64, "`server-frozen`"),
        (&["file", "--only", "doors"], 64, "expected `locks` or `cells`"),
        (&[ABSENT], 69, "127.0.0.1:1"),
    ] {
        let (exit, printed) = run(arguments).await;
        assert!(exit == code && printed.contains(says), "{exit}: {printed}");
        assert!(!printed.contains("correct-horse"), "{printed}");
    }
}

#[tokio::test]
async fn nothing_stays_in_a_store_that_was_named_at_the_end_or_after_an_interrupt() {
    let server = server_in_use().await;
    let (code, printed) = run(&[&server.url(), "--rounds", "1"]).await;
    assert_eq!((code, keys(&server).await), (0, vec!["lock:orders".to_owned()]), "{printed}");

    let mut child = command(&[&server.url(), "--minutes", "60"]).spawn().expect("it starts");
    let mut progress = BufReader::new(child.stderr.take().expect("its progress")).lines();
    while let Some(line) = progress.next_line().await.expect("text") {
        if line.contains(": round 1,") {
            break;
        }
    }
    until(async || keys(&server).await.len() > 5).await;
    let (code, printed) = ended(&interrupt(child, Signal::TERM).await);
    assert!(
        code == 0 && printed.contains(" round") && printed.contains("stopped early"),
        "{printed}"
    );
    assert_eq!(keys(&server).await, ["lock:orders"], "{printed}");
}
