//! Runs with servers, without servers, interrupted, and with wrong arguments.

use std::path::PathBuf;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::support::*;
use crate::support::{self, ABSENT, ended, interrupt, keys, output, server_in_use, until};

/// Processes with a working directory below this one, such as servers in their data directory.
fn servers_in(directory: &TempDir) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc").expect("processes").flatten();
    let places =
        processes.filter_map(|process| std::fs::read_link(process.path().join("cwd")).ok());
    let below = |place: &PathBuf| place != directory.path() && place.starts_with(directory.path());
    places.filter(below).collect()
}

#[tokio::test]
async fn an_interrupt_leaves_a_report_of_what_is_done_and_no_servers() {
    let directory = directory();
    let mut command = command(&directory, &["memory", "redis", "--seconds", "0.05"]);
    let mut child = command.env("TMPDIR", directory.path()).spawn().expect("it starts");
    let mut progress = BufReader::new(child.stderr.take().expect("its progress")).lines();
    while let Some(line) = progress.next_line().await.expect("text") {
        if line.starts_with("redis: ") {
            break;
        }
    }
    assert!(!servers_in(&directory).is_empty(), "there is one to be ended");
    let (code, printed) = ended(&interrupt(child, Signal::INT).await);
    assert_eq!(code, 0, "{printed}");
    let figures = figures(&directory);
    assert_eq!(figures["stores"][0]["own_locks"].as_array().map(Vec::len), Some(4), "{figures:#}");
    assert!(page(&directory).contains("Stopped early"));
    assert!(servers_in(&directory).is_empty(), "its servers are still there");
}

/// With the command that installs it, in the report too; the others are compared as a whole.
#[tokio::test]
async fn a_store_whose_servers_are_not_installed_is_left_out_visibly() {
    let directory = directory();
    let mut command = command(&directory, &["redis", "file", "--seconds", "0.05"]);
    let (code, printed) = ended(&output(command.env("PATH", "/nowhere")).await);
    assert_eq!(code, 0, "{printed}");
    assert!(
        printed.contains("redis is left out") && printed.contains("apt-get install"),
        "{printed}"
    );
    let figures = figures(&directory);
    assert_eq!(figures["left_out"][0]["store"], "redis");
    assert_eq!(figures["stores"][0]["store"], "file");
    assert_whole(&figures["stores"][0]);
    assert!(page(&directory).contains("apt-get install"));
}

/// On one that is absent, too: it is left out without its password.
#[tokio::test]
async fn a_flash_sale_is_right_with_a_lock_and_wrong_without() {
    let directory = directory();
    let stores = [ABSENT, "memory", "file", "redis", "--workload", "flash-sale"];
    let (code, printed) = run(&directory, &stores).await;
    assert_eq!(code, 0, "{printed}");
    let figures = figures(&directory);
    let stores = figures["stores"].as_array().expect("stores");
    assert_eq!(stores.len(), 3, "{printed}");
    for store in stores {
        let sales = store["flash_sales"].as_array().expect("sales");
        assert_eq!(sales.len(), 2, "{store:#}");
        for sale in sales {
            let locked = &sale["with_lock"];
            assert_eq!((count(locked, "left"), count(locked, "oversold")), (0, 0), "{store:#}");
            assert!(count(&sale["without_lock"], "oversold") > 0, "{store:#}");
        }
    }
    let drawn = page(&directory);
    assert!(drawn.contains("oversold"));
    assert!(figures["left_out"][0]["why"].as_str().expect("why").contains("127.0.0.1:1"));
    for text in [printed, figures.to_string(), drawn.clone()] {
        assert!(!text.contains("correct-horse"), "{text}");
    }
    // The page can be drawn again from the figures; the last bit of what a table is sorted by may differ.
    let head = |page: &str| page.split("data-value").next().map(str::to_owned);
    std::fs::remove_file(directory.path().join("fencelock-compare.html")).expect("removed");
    let mut again = support::command("compare", &["--from", "figures.json"]);
    let (code, printed) = ended(&output(again.current_dir(directory.path())).await);
    assert_eq!(code, 0, "{printed}");
    assert_eq!(head(&page(&directory)), head(&drawn));
}

/// A release and the grant after it take a way each, and 500 pieces of a product are sold one after
/// the other.
#[tokio::test]
async fn a_round_trip_is_in_what_is_measured() {
    let directory = directory();
    let distant = ["redis", "--workload", "flash-sale", "--rtt", "4ms"];
    let (code, printed) = run(&directory, &distant).await;
    assert_eq!(code, 0, "{printed}");
    let figures = figures(&directory);
    assert_eq!(figures["network"]["round_trip_us"], 4000.0);
    let sale = &figures["stores"][0]["flash_sales"][0];
    assert_eq!((count(sale, "products"), count(sale, "pieces")), (2, 500));
    assert!(sale["with_lock"]["took_s"].as_f64() > Some(500.0 * 0.004), "{sale:#}");
    assert!(page(&directory).contains("round trips of 4 ms"));
}

#[tokio::test]
async fn mistakes_are_reported_before_anything_is_measured() {
    let directory = directory();
    for (arguments, code, says) in [
        (&["reddis"][..], 64, "redis-sentinel"),
        (&["memory", "--out", "/nowhere/report.html"], 78, "a directory that exists"),
        (&["memory", "--seconds", "0"], 64, "expected seconds"),
        (&["memory", "--quick", "--seconds", "1"], 64, "--quick"),
        (&["memory", "--rtt", "1"], 64, "expected a time from 0.1ms"),
        (&["memory", "--require", "speed>3"], 64, "unknown metric"),
        // A store alone that is not there.
        (&[ABSENT], 69, "127.0.0.1:1"),
    ] {
        let (exit, printed) = run(&directory, arguments).await;
        assert!(exit == code && printed.contains(says), "{exit}: {printed}");
        assert!(!printed.contains("pairs/s") && !printed.contains("correct-horse"), "{printed}");
    }
}

#[tokio::test]
async fn nothing_stays_in_a_store_that_was_named() {
    let server = server_in_use().await;
    let directory = directory();
    let (code, printed) = run(&directory, &[&server.url(), "--workload", "flash-sale"]).await;
    assert_eq!((code, keys(&server).await), (0, vec!["lock:orders".to_owned()]), "{printed}");

    let child = command(&directory, &[&server.url(), "--quick"]).spawn().expect("it starts");
    // It measures many clients with a lock each.
    until(async || keys(&server).await.len() > 50).await;
    let (code, printed) = ended(&interrupt(child, Signal::INT).await);
    assert_eq!((code, keys(&server).await), (0, vec!["lock:orders".to_owned()]), "{printed}");
}
