//! The servers on demand, with the real programs, and the proxy in front of them. A server that does not
//! start, or a fault that breaks too much, fails the tests that use it. What is tested here would be
//! noticed by none of them: a fault that has no effect, and what is left behind.

// Helpers are tests too, which the lint's own exception does not see.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use fencelock_testkit::servers::{TestPostgres, TestRedis};
use tokio::io::AsyncReadExt;

mod cluster;
mod deployments;
mod postgres;
mod proxy;
mod tables;
mod zookeeper;

/// Runs this test program again as a process that starts a server and is then killed.
#[tokio::test]
async fn a_redis_server_does_not_outlive_a_killed_test_process() {
    does_not_outlive_a_killed_process("redis", async || {
        let redis = TestRedis::start().await.unwrap();
        println!("<{}|{}>", redis.pid(), redis.directory().display());
        std::future::pending::<()>().await;
    })
    .await;
}

#[tokio::test]
async fn a_postgres_server_does_not_outlive_a_killed_test_process() {
    does_not_outlive_a_killed_process("postgres", async || {
        let postgres = TestPostgres::start().await.unwrap();
        println!("<{}|{}>", postgres.pid(), postgres.directory().display());
        std::future::pending::<()>().await;
    })
    .await;
}

async fn does_not_outlive_a_killed_process(server: &str, start: impl AsyncFn()) {
    const CHILD: &str = "FENCELOCK_TEST_TO_BE_KILLED";
    if std::env::var_os(CHILD).is_some() {
        return start().await;
    }
    let mut child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg(format!("a_{server}_server_does_not_outlive_a_killed_test_process"))
        .env(CHILD, "1")
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut output = String::new();
    let mut stdout = child.stdout.take().unwrap();
    while !output.contains('>') {
        let byte = within(stdout.read_u8()).await.unwrap();
        output.push(char::from(byte));
    }
    let (pid, directory) = output.split_once('<').unwrap().1.split_once('|').unwrap();
    let (pid, directory) = (pid.parse().unwrap(), directory.trim_end_matches('>').to_owned());
    assert!(is_running(pid));
    within(child.kill()).await.unwrap();
    within(async {
        while is_running(pid) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    // No process was left to delete it.
    std::fs::remove_dir_all(directory).unwrap();
}

fn is_running(pid: u32) -> bool {
    !matches!(process_state(pid), None | Some('Z'))
}

/// The letter that `ps` shows: `T` for a stopped process, `Z` for one that waits to be reaped.
fn process_state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.ok()?.rsplit(')').next()?.trim_start().chars().next()
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(120), future).await.expect("this hangs")
}
