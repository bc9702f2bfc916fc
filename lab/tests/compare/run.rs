//! `fencelock compare` as its users see it: interrupted, with wrong arguments, without servers.

use std::path::PathBuf;
use std::time::Duration;

use fencelock_testkit::servers::TestRedis;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::support::*;

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
    let mut command = command(&directory, &["memory", "redis"]);
    let mut child = command.env("TMPDIR", directory.path()).spawn().expect("it starts");
    let mut progress = BufReader::new(child.stderr.take().expect("its progress")).lines();
    while let Some(line) = progress.next_line().await.expect("text") {
        if line.starts_with("redis: ") {
            break;
        }
    }
    assert!(!servers_in(&directory).is_empty(), "there is one to be ended");
    let pid = i32::try_from(child.id().expect("it runs")).expect("a pid");
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::INT).expect("interrupted");
    let ended = tokio::time::timeout(Duration::from_secs(60), child.wait_with_output()).await;
    let (code, printed) = said(&ended.expect("it ends").expect("it ended"));
    assert_eq!(code, 0, "{printed}");
    let figures = figures(&directory);
    assert_eq!(figures["was_stopped"], true);
    assert_eq!(figures["stores"][0]["own_locks"].as_array().map(Vec::len), Some(4), "{figures:#}");
    assert!(page(&directory).contains("Stopped early"));
    assert!(servers_in(&directory).is_empty(), "its servers are still there");
}

/// With the command that installs it, in the report too.
#[tokio::test]
async fn a_store_whose_servers_are_not_installed_is_left_out_visibly() {
    let directory = directory();
    let mut command = command(&directory, &["redis", "file", "--quick"]);
    let (code, printed) = said(&command.env("PATH", "/nowhere").output().await.expect("it runs"));
    assert_eq!(code, 0, "{printed}");
    assert!(
        printed.contains("redis is left out") && printed.contains("apt-get install"),
        "{printed}"
    );
    let figures = figures(&directory);
    assert_eq!(figures["left_out"][0]["store"], "redis");
    assert_eq!(figures["stores"][0]["store"], "file");
    assert!(page(&directory).contains("apt-get install"));
}

#[tokio::test]
async fn a_flash_sale_is_right_with_a_lock_and_wrong_without() {
    let directory = directory();
    let stores = ["memory", "file", "redis", "--workload", "flash-sale"];
    let (code, printed) = run(&directory, &stores).await;
    assert_eq!(code, 0, "{printed}");
    let figures = figures(&directory);
    for store in figures["stores"].as_array().expect("stores") {
        let sales = store["flash_sales"].as_array().expect("sales");
        assert_eq!(sales.len(), 2, "{store:#}");
        for sale in sales {
            let locked = &sale["with_lock"];
            assert_eq!((count(locked, "left"), count(locked, "oversold")), (0, 0), "{store:#}");
            assert!(count(&sale["without_lock"], "oversold") > 0, "{store:#}");
        }
    }
    assert!(page(&directory).contains("oversold"));
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
    assert!(figures["network"]["measured_us"].as_f64() > Some(3_500.0), "{:#}", figures["network"]);
    let sale = &figures["stores"][0]["flash_sales"][0];
    assert_eq!((count(sale, "products"), count(sale, "pieces")), (2, 500));
    assert!(sale["with_lock"]["took_s"].as_f64() > Some(500.0 * 0.004), "{sale:#}");
    assert!(page(&directory).contains("round trips of 4 ms"));
}

#[tokio::test]
async fn a_page_is_drawn_again_from_its_figures() {
    let directory = directory();
    let (code, printed) = run(&directory, &["memory", "--workload", "flash-sale"]).await;
    assert_eq!(code, 0, "{printed}");
    let drawn = page(&directory);
    std::fs::remove_file(directory.path().join("fencelock-compare.html")).expect("removed");
    let mut again = Command::new(env!("CARGO_BIN_EXE_fencelock-lab"));
    again.args(["compare", "--from", "figures.json"]).current_dir(directory.path());
    assert_eq!(said(&again.output().await.expect("it runs")).0, 0);
    assert_eq!(page(&directory), drawn);
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
    ] {
        let (exit, printed) = run(&directory, arguments).await;
        assert!(exit == code && printed.contains(says), "{exit}: {printed}");
        assert!(!printed.contains("pairs/s"), "{printed}");
    }
}

#[tokio::test]
async fn an_absent_store_is_left_out_without_its_password() {
    let directory = directory();
    let absent = "redis://:correct-horse@127.0.0.1:1";
    let (code, printed) = run(&directory, &[absent, "memory", "--workload", "flash-sale"]).await;
    assert_eq!(code, 0, "{printed}");
    let figures = figures(&directory);
    assert!(figures["left_out"][0]["why"].as_str().expect("why").contains("127.0.0.1:1"));
    for text in [printed, figures.to_string(), page(&directory)] {
        assert!(!text.contains("correct-horse"), "{text}");
    }
}

#[tokio::test]
async fn a_store_alone_that_is_not_there_is_one_clear_error() {
    let (code, printed) = run(&directory(), &["redis://:correct-horse@127.0.0.1:1"]).await;
    assert!(code == 69 && printed.contains("127.0.0.1:1"), "{code}: {printed}");
    assert!(!printed.contains("correct-horse"), "{printed}");
}

#[tokio::test]
async fn nothing_stays_in_a_store_that_was_named() {
    let server = TestRedis::start().await.expect("a redis-server starts");
    server.command(&["SET", "lock:orders", "1"]).await.expect("it answers");
    let keys = async || server.command(&["KEYS", "*"]).await.expect("it answers");
    let directory = directory();
    let (code, printed) = run(&directory, &[&server.url(), "--workload", "flash-sale"]).await;
    assert_eq!((code, &*keys().await), (0, "lock:orders"), "{printed}");

    let child = command(&directory, &[&server.url()]).spawn().expect("it starts");
    // It measures many clients with a lock each.
    while keys().await.lines().count() < 50 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let pid = i32::try_from(child.id().expect("it runs")).expect("a pid");
    kill_process(Pid::from_raw(pid).expect("a pid"), Signal::INT).expect("interrupted");
    let ended = tokio::time::timeout(Duration::from_secs(60), child.wait_with_output()).await;
    let (code, printed) = said(&ended.expect("it ends").expect("it ended"));
    assert_eq!((code, &*keys().await), (0, "lock:orders"), "{printed}");
}
