//! Stores that are not there yet, never come, or go away: how long they are waited for, and that none
//! of them looks like a busy lock.

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use fencelock_testkit::deployments::{Fault, Kind, Wiring};
use fencelock_testkit::servers::{RedisOptions, ScriptedServer, TestZooKeeper};
use rustix::process::Signal;

use super::loss::LISTENS;
use crate::operator::every_store::LIBRARY;
use crate::support::{Job, Scratch, children, eventually, on_redis, redis};

/// Much longer than any wait here takes, much shorter than the wrong wait.
const SOON: Duration = Duration::from_secs(12);

/// Longer than a store is silent in any test here.
const LONG: Duration = Duration::from_secs(120);

/// More than a command that keeps its limit is late on a busy machine: half a second on a quiet one.
const LATE: Duration = Duration::from_secs(4);

/// Listens in place of a server, until two attempts to connect were made.
fn see_two_attempts(port: u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("the server's port is free");
    for _ in 0..2 {
        listener.accept().expect("an attempt to connect");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_later_is_waited_for() {
    let (here, server, url) = on_redis().await;
    server.kill().expect("killed");
    let mut job = here.start(&["-w", "60", "--url", &url, "job", "--", "echo", "ran"]);
    see_two_attempts(server.port());
    server.restart().await.expect("it comes back");
    assert_eq!(job.line(), "ran");
    assert_eq!(job.code(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ensemble_that_comes_later_is_waited_for() {
    let here = Scratch::new();
    let ensemble = TestZooKeeper::standalone().await.expect("a ZooKeeper starts");
    let [server] = ensemble.servers() else { panic!("it is alone") };
    server.kill().expect("killed");
    let url = format!("zk://{}/jobs", ensemble.connect_string());
    let options = ["-v", "-w", "120", "--ttl", "5s", "--url", &url];
    let mut job = here.start(&[&options[..], &["job", "--", "echo", "ran"]].concat());
    see_two_attempts(server.port());
    server.restart().await.expect("it comes back");
    assert_eq!(job.line(), "ran");
    assert_eq!(job.code(), 0);
    let said = job.complaints();
    assert!(said.contains("fencelock: --ttl has no effect on zk://"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_loss_a_silent_store_is_waited_for_until_a_second_after_the_lease() {
    let here = Scratch::new();
    for (frozen, script) in [
        (false, LISTENS),
        (true, LISTENS),
        // Killed shortly before the end of the lease.
        (true, "trap '' TERM; echo up; while :; do read -t 1 x; done"),
    ] {
        let server = redis().await;
        let url = server.url();
        let options = ["--ttl", "3s", "--status-json", "status", "--url", &url];
        let mut job = here.start(&[&options[..], &["job", "--", "bash", "-c", script]].concat());
        assert_eq!(job.line(), "up");
        let start = Instant::now();
        if frozen {
            server.freeze().await.expect("frozen");
        } else {
            server.kill().expect("killed");
        }
        assert_eq!(job.code(), 79);
        let took = start.elapsed();
        assert!(took < SOON, "frozen {frozen}: {took:?} after the loss of a lease of 3 s");
        let said = job.complaints();
        assert!(
            said.contains("no renewal was confirmed in time; the command gets SIGTERM"),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "reported once: {said}");
        let status = std::fs::read_to_string(here.path("status")).expect("written");
        assert!(status.contains("no renewal was confirmed in time"), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_does_not_prolong_the_wait_for_a_silent_store() {
    let (here, server, url) = on_redis().await;
    let options = ["--ttl", "4s", "--grace", "0s", "--url", &url];
    let script = "echo up; read x; echo done";
    let mut job = here.start(&[&options[..], &["job", "--", "sh", "-c", script]].concat());
    assert_eq!(job.line(), "up");
    server.freeze().await.expect("frozen");
    job.hang_up();
    assert_eq!(job.line(), "done");
    eventually("the command is over", || children(job.pid()).is_empty());
    let start = Instant::now();
    job.send(Signal::TERM);
    // It dies of the signal if that comes before it has noticed the end of the command.
    let code = job.code();
    assert!([0, 143].contains(&code), "{code}");
    // What is left of the lease, and a second.
    let took = start.elapsed();
    assert!(took < Duration::from_millis(6500), "{took:?} after a lease of 4 s");
}

/// The message and the duration of `fencelock run` on a store that does not answer.
fn unreachable(here: &Scratch, options: &[&str], url: &str) -> (String, Duration) {
    let (said, took) = in_vain(here, options, url, 69);
    assert!(said.contains("store unreachable"), "{options:?}: {said}");
    (said, took)
}

/// The message, the duration and the exit code of `fencelock run`.
fn in_vain(here: &Scratch, options: &[&str], url: &str, code: i32) -> (String, Duration) {
    let start = Instant::now();
    let arguments = [options, &["--skip-ok", "--url", url, "job", "--", "true"]].concat();
    let output = here.output(&arguments);
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(code), "{options:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{options:?}: {said}");
    (said, start.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_never_comes_is_69_when_the_wait_is_over() {
    let here = Scratch::new();
    let server = redis().await;
    for frozen in [true, false] {
        if frozen {
            server.freeze().await.expect("frozen");
        } else {
            server.kill().expect("killed");
        }
        for limit in [1.0, 0.2] {
            let wait = limit.to_string();
            let (said, took) = unreachable(&here, &["-w", &wait], &server.url());
            assert!(said.contains("within the wait limit of "), "{said}");
            assert!(took >= Duration::from_secs_f64(limit) && took < SOON, "{took:?}: {said}");
        }
        let (_, took) = unreachable(&here, &["-n"], &server.url());
        assert!(took < SOON, "-n does not wait: {took:?}");
        let url = format!("{}?unreachable_after=700ms", server.url());
        let (said, took) = unreachable(&here, &[], &url);
        assert!(said.contains("no connection within unreachable_after=700ms"), "{said}");
        assert!(took < SOON, "{took:?}");
        let compatible = ["--flock-compat", "-n", "--url", &url, "job", "--", "true"];
        assert_eq!(here.code(&compatible), 71);
    }
}

on_stores! {
    a_silent_store_is_no_busy_lock:
    a_silent_postgres_is_no_busy_lock(Kind::Postgres, Fault::CutOff);
    a_silent_redis_is_no_busy_lock(Kind::Redis, Fault::CutOff);
    a_silent_majority_is_no_busy_lock(Kind::Redlock3, Fault::MajorityCutOff);
    a_silent_zookeeper_is_no_busy_lock(Kind::ZooKeeper, Fault::CutOff);
}

/// With `--skip-ok`, a busy lock ends a job in silence; on all machines, if that were said of a store that stands still.
/// Files have a test of a process that stands still.
async fn a_silent_store_is_no_busy_lock(kind: Kind, fault: Fault) {
    let here = Scratch::new();
    let store = kind.start(LIBRARY, Wiring::Proxied).await.expect("the servers start");
    let url = store.url();
    let _held = here.hold(&["--url", &url], "job");
    assert_eq!(here.code(&["-w", "1", "--url", &url, "job", "--", "true"]), 75);
    let mut waiting = here.start(&["-w", "4", "--skip-ok", "--url", &url, "job", "--", "true"]);
    let limit = Instant::now() + Duration::from_secs(4);
    here.until_waiting(&url, "job", 1);
    let ends = tokio::task::spawn_blocking(move || {
        assert_eq!(waiting.code(), 69);
        let late = limit.elapsed();
        assert!(late < LATE, "{late:?} after the limit");
        let said = waiting.complaints();
        assert!(said.contains("within the wait limit of 4s"), "{said}");
        // Its first connection.
        for (limit, options) in [(1, &["-w", "1"][..]), (3, &["-n"])] {
            let (said, took) = unreachable(&here, options, &url);
            assert!(took < Duration::from_secs(limit) + LATE, "{took:?}: {said}");
        }
    });
    tokio::select! {
        healed = store.inflict(fault, LONG) => panic!("it was to be silent: {healed:?}"),
        ended = ends => ended.expect("as a silent store"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_does_not_wait_for_a_server_that_talks_nonsense() {
    let here = Scratch::new();
    // To each command.
    let ok = |heard: &[u8]| b"+OK\r\n".repeat(heard.iter().filter(|byte| **byte == b'*').count());
    let server = ScriptedServer::start(ok).await.expect("it listens");
    let url = format!("redis://{}", server.addr());
    let (said, took) = in_vain(&here, &["-n"], &url, 78);
    assert!(said.contains("is this a Redis server?"), "{said}");
    assert!(took < SOON, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_reported_before_the_command_is_signalled() {
    let (here, server, url) = on_redis().await;
    let run = here.run(&["--ttl", "3s", "--url", &url, "job", "--", "bash", "-c", LISTENS]);
    let mut together = Command::new("sh");
    together.args(["-c", "exec \"$@\" 2>&1", "sh"]).arg(run.get_program()).args(run.get_args());
    let mut job = Job::start(&mut together);
    assert_eq!(job.line(), "up");
    server.kill().expect("killed");
    let start = Instant::now();
    let loss = job.line();
    assert!(loss.starts_with("fencelock: lock lost: \"job\" on redis://"), "{loss}");
    assert!(loss.ends_with("no renewal was confirmed in time; the command gets SIGTERM"), "{loss}");
    assert_eq!(job.line(), "term");
    assert_eq!(job.code(), 79);
    assert!(start.elapsed() < SOON, "{:?} after the loss of a lease of 3 s", start.elapsed());
    assert_eq!(job.silence(), [""; 0], "reported once");
}

/// Like a terminal after Ctrl-S, or a pipe into a program that has stopped.
#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_standard_error_does_not_keep_a_loss_from_the_command() {
    let (here, server, url) = on_redis().await;
    let pipe = here.path("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("coreutils");
    assert!(made.success());
    let options = ["--ttl", "3s", "--url", &url, "job", "--", "bash", "-c", LISTENS];
    let run = here.run(&options);
    let mut blocked = Command::new("sh");
    // Opened for both, the pipe has a reader that never reads.
    blocked.args([
        "-c",
        "exec 2<>\"$0\"; timeout 1 dd if=/dev/zero bs=1 count=1000000 >&2; exec \"$@\"",
    ]);
    blocked.arg(&pipe).arg(run.get_program()).args(run.get_args());
    blocked.env("FENCELOCK_CONFIG", "/dev/null");
    let mut job = Job::start(&mut blocked);
    assert_eq!(job.line(), "up");
    server.kill().expect("killed");
    assert_eq!(job.line(), "term");
    assert_eq!(job.code(), 79);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_on_the_command_line_does_not_reach_the_command() {
    let here = Scratch::new();
    let server = RedisOptions::new().password("correcthorse").start().await;
    let server = server.expect("a redis-server starts");
    assert!(server.url().contains("correcthorse"));
    let job = ["--url", &server.url(), "job", "--", "sh", "-c", "env; cat /proc/$$/environ"];
    let mut run = here.run(&job);
    let output = run.env_remove("FENCELOCK_URL").output().expect("it runs");
    let seen = String::from_utf8_lossy(&output.stdout);
    assert!(seen.contains("FENCELOCK_STORE=redis://:***@127.0.0.1:"), "{seen}");
    assert!(!seen.contains("correcthorse"), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn warnings_of_the_server_are_shown_where_they_are_wanted() {
    // Without an append-only file.
    let (here, _server, url) = on_redis().await;
    let stderr = |options: &[&str]| {
        let output = here.output(&[options, &["--url", &url, "job", "--", "true"]].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    let verbose = stderr(&["--verbose"]);
    let warning = "fencelock: warning: redis loses its locks when it restarts; set appendonly yes";
    assert!(verbose.lines().any(|line| line.starts_with(warning)), "{verbose}");
    assert_eq!(stderr(&[]), "", "in the mail of each run it would be noise");
    let log = stderr(&["--log", "warn"]);
    assert!(log.contains(" WARN ") && log.contains("redis loses its locks"), "{log}");
    assert!(!log.contains('\x1b'), "no colours outside of a terminal: {log:?}");
    assert!(stderr(&["--log", "debug"]).contains(" DEBUG "));
}
