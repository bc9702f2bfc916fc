//! What a killed test leaves: nothing. The servers that a run shares: `testkit/tests/shared_servers.rs`.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fencelock::Locks;

#[fencelock_testkit::test(file, postgres, redis, zk, own_server)]
#[ignore = "a process of the test below, not a test"]
async fn holds_for_ever(locks: Locks) {
    let _held = locks.lock("job").acquire().await.unwrap();
    println!("\nholds");
    std::future::pending::<()>().await;
}

#[test]
fn a_killed_test_leaves_no_directory() {
    for store in ["file", "postgres", "redis", "zk"] {
        let temporary = tempfile::tempdir().unwrap();
        let is_empty = || temporary.path().read_dir().unwrap().next().is_none();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("testkit::killed::holds_for_ever::{store}")])
            .args(["--ignored", "--nocapture"])
            .env("TMPDIR", temporary.path())
            .env_remove("FENCELOCK_TEST_FILE_URL")
            .env_remove("FENCELOCK_TEST_POSTGRES_URL")
            .env_remove("FENCELOCK_TEST_REDIS_URL")
            .env_remove("FENCELOCK_TEST_ZK_URL")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "holds"), "{store}: the test holds its lock");
        assert!(!is_empty(), "{store}: its directory is among the temporary files");
        process.kill().unwrap();
        process.wait().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_empty() {
            assert!(Instant::now() < deadline, "{store}: its directory is left");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
