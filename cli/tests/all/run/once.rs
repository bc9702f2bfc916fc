//! `fencelock once`: each tick of a schedule is run by one of the machines that ask, and by another one
//! when that fails or dies.

use std::process::{Output, Stdio};
use std::time::Duration;

use fencelock_testkit::servers::{TestPostgres, TestZooKeeper};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Job, Scratch, children, eventually, is_dead, pid, redis, said, state};

/// So long that no test meets the end of a tick.
const PER: [&str; 2] = ["--per", "365d"];

/// `fencelock once` for the tick of this year.
fn once(here: &Scratch, arguments: &[&str]) -> Output {
    let all = [&PER[..], arguments].concat();
    here.command("once", &all).stdin(Stdio::null()).output().expect("it runs")
}

fn start(here: &Scratch, arguments: &[&str]) -> Job {
    Job::start(&mut here.command("once", &[&PER[..], arguments].concat()))
}

/// A tick that was skipped as scheduled jobs should: in silence, and with success.
fn assert_skipped(output: &Output) {
    assert_eq!(said(output), (0, String::new(), String::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tick_is_run_once() {
    let here = Scratch::new();
    let (server, ensemble) = (redis().await, TestZooKeeper::standalone().await.expect("it starts"));
    let zookeeper = format!("zk://{}/jobs", ensemble.connect_string());
    let postgres = TestPostgres::start().await.expect("it starts");
    for url in [here.url(), postgres.url(), server.url(), zookeeper] {
        let job = |more: &[&str]| {
            let job = ["--url", &url, "job", "--", "sh", "-c", "echo token $FENCELOCK_TOKEN"];
            once(&here, &[more, &job].concat())
        };
        let (code, printed, error) = said(&job(&[]));
        let token = printed.trim().strip_prefix("token ").map(str::parse::<u64>);
        assert!(
            code == 0 && matches!(token, Some(Ok(1..))) && error.is_empty(),
            "{printed}{error}"
        );
        assert_skipped(&job(&[]));
        assert_skipped(&job(&["-w", "20"]));
        let (code, printed, error) = said(&job(&["--skipped", "75"]));
        assert_eq!((code, &*printed, error.lines().count()), (75, "", 1), "{error}");
        assert!(error.contains("this tick was run already by") && error.contains(" sh"), "{error}");
        // Another job, and another tick of the same one.
        let other = ["--url", &url, "--per", "31d", "job", "--", "echo", "ran"];
        let other = here.command("once", &other).output().expect("it runs");
        assert_eq!(said(&other).1, "ran\n");
        assert_eq!(said(&once(&here, &["--url", &url, "other", "--", "echo", "ran"])).1, "ran\n");
    }
}

/// Like a server that is shut down: many programs exit with 0 then.
#[test]
fn a_command_that_exits_with_0_after_a_sigterm_is_not_done() {
    let here = Scratch::new();
    let polite = "trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done";
    for (options, code) in [(&[][..], 143), (&["--failed-is-done"], 0)] {
        let mut job = start(&here, &[options, &["job", "--", "bash", "-c", polite]].concat());
        assert_eq!(job.line(), "up");
        let mut waiting = start(&here, &["-w", "60", "job", "--", "echo", "ran"]);
        here.until_waiting(&here.url(), "job", 1);
        waiting.send(Signal::TERM);
        assert_eq!((waiting.code(), waiting.silence()), (143, vec![]));
        job.send(Signal::TERM);
        assert_eq!(job.code(), code, "{options:?}");
        assert_eq!(job.complaints().contains("this tick is not done"), code != 0);
    }
    assert_skipped(&once(&here, &["job", "--", "echo", "again"]));
}

/// The wrapper hears of both at the same time: the end of its job, and the SIGTERM that ended that.
#[test]
fn a_shutdown_that_signals_all_processes_leaves_no_tick_done() {
    let here = Scratch::new();
    let script = "trap 'exit 0' TERM; setsid sh -c 'echo up $$; sleep 1000; :' & wait; exit 0";
    let mut job = start(&here, &["job", "--", "bash", "-c", script]);
    let line = job.line();
    let left = pid(line.strip_prefix("up ").expect("a number"));
    let watchdog = children(job.pid())[0];
    let command = children(watchdog)[0];
    job.send(Signal::STOP);
    job.send(Signal::TERM);
    rustix::process::kill_process(command, Signal::TERM).unwrap();
    eventually("its job has ended", || state(command) == Some('Z'));
    job.send(Signal::CONT);
    assert_eq!(job.code(), 143);
    assert!(is_dead(left), "with what it has left");
    assert_eq!(said(&once(&here, &["job", "--", "echo", "ran"])).1, "ran\n");
}

#[test]
fn a_failed_command_is_not_done_unless_that_is_asked_for() {
    let here = Scratch::new();
    for (script, code) in [("exit 3", 3), ("kill -KILL $$", 137)] {
        let name = format!("job {code}");
        let job = |more: &[&str]| once(&here, &[more, &[&name, "--", "sh", "-c", script]].concat());
        for _ in 0..2 {
            assert_eq!(job(&[]).status.code(), Some(code), "run again: {script}");
        }
        assert_eq!(job(&["--failed-is-done"]).status.code(), Some(code));
        assert_skipped(&job(&[]));
    }
    let missing = ["--failed-is-done", "missing", "--", "/no/such/program"];
    assert_eq!(once(&here, &missing).status.code(), Some(127));
    assert_eq!(once(&here, &missing).status.code(), Some(127), "it never ran");
}

#[test]
fn a_tick_that_another_runs_is_skipped() {
    let here = Scratch::new();
    let mut runner = start(&here, &["job", "--", "sh", "-c", "echo up; exec cat"]);
    assert_eq!(runner.line(), "up");
    assert_skipped(&once(&here, &["job", "--", "echo", "ran"]));
    assert_skipped(&once(&here, &["-w", "2", "job", "--", "echo", "ran"]));
    let seen = once(&here, &["--skipped", "75", "job", "--", "echo", "ran"]);
    let (code, _, error) = said(&seen);
    let process = format!(" by \"sh\" (pid {} on host ", runner.pid().as_raw_pid());
    assert_eq!((code, error.lines().count()), (75, 1), "{error}");
    assert!(error.contains(": busy: held for ") && error.contains(&process), "{error}");
    // A plain lock of the same name, too.
    assert_eq!(here.code(&["-n", "job", "--", "true"]), 75);
    runner.hang_up();
    assert_eq!(runner.code(), 0);
    let held = here.hold(&[], "plain");
    assert_skipped(&once(&here, &["plain", "--", "echo", "ran"]));
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_takes_over_from_a_failed_or_dead_run_and_leaves_when_it_is_done() {
    let here = Scratch::new();
    let server = redis().await;
    let script = "echo up $$; read how; test \"$how\" = well";
    for url in [here.url(), server.url()] {
        for end in ["well", "badly", "killed"] {
            let url = format!("{url}{}ttl=5s", if url.contains('?') { '&' } else { '?' });
            let job = ["--url", &url, "-w", "60", end, "--", "sh", "-c", script];
            let mut runner = start(&here, &job);
            let command = pid(runner.line().strip_prefix("up ").expect("a process id"));
            let mut other = start(&here, &job);
            here.until_waiting(&url, end, 1);
            if end == "killed" {
                runner.send(Signal::KILL);
            } else {
                runner.write(&format!("{end}\n"));
                assert_eq!(runner.code(), i32::from(end != "well"));
            }
            if end == "well" {
                assert_eq!((other.code(), other.silence()), (0, vec![]), "{url}");
                assert_eq!(other.complaints(), "");
                continue;
            }
            let line = other.line();
            assert!(line.starts_with("up "), "{line}");
            assert!(is_dead(command), "no two runs overlap: {url} {end}");
            other.write("well\n");
            assert_eq!(other.code(), 0);
            assert_skipped(&once(&here, &job));
        }
    }
}

#[test]
fn never_twice_means_it() {
    let here = Scratch::new();
    let job = ["--never-twice", "job", "--", "sh", "-c", "echo up; exec cat"];
    let mut runner = start(&here, &job);
    assert_eq!(runner.line(), "up");
    runner.send(Signal::KILL);
    runner.end();
    let again = once(&here, &[&["--skipped", "75", "-w", "20"][..], &job].concat());
    let (code, _, error) = said(&again);
    assert!(code == 75 && error.contains("this tick was begun already by"), "{error}");
    // Who does not mind takes over, once the first one's command has died.
    assert_eq!(said(&once(&here, &["-w", "20", "job", "--", "echo", "ran"])).1, "ran\n");
}

#[test]
fn a_run_that_lost_its_lock_is_not_done() {
    let here = Scratch::new();
    let mut runner = start(&here, &["job", "--", "sh", "-c", "echo up; exec cat"]);
    assert_eq!(runner.line(), "up");
    here.take_away("job");
    assert_eq!(runner.code(), 79);
    assert!(runner.complaints().contains("lock lost: \"job\""));
    let limited = once(&here, &["--hold-at-most", "300ms", "job", "--", "sleep", "1000"]);
    assert_eq!(limited.status.code(), Some(79), "{limited:?}");
    assert_eq!(said(&once(&here, &["job", "--", "echo", "ran"])).1, "ran\n");
    assert_skipped(&once(&here, &["job", "--", "echo", "ran"]));
}

/// A server that is gone after the command's end: it is unknown whether the tick is done.
#[tokio::test(flavor = "multi_thread")]
async fn a_tick_that_cannot_be_marked_is_69() {
    let here = Scratch::new();
    let server = redis().await;
    let url = format!("{}?unreachable_after=1s", server.url());
    let job = ["--url", &url, "job", "--", "sh", "-c", "echo up; read x"];
    let mut runner = start(&here, &job);
    assert_eq!(runner.line(), "up");
    server.freeze().await.expect("frozen");
    runner.write("\n");
    assert_eq!(runner.code(), 69);
    let said = runner.complaints();
    assert!(said.contains("\"job\" on redis://"), "{said}");
    server.thaw().expect("thawed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_cannot_remember_ticks_is_78() {
    let here = Scratch::new();
    let servers = [redis().await, redis().await, redis().await];
    let nodes = servers.each_ref().map(|server| server.addr().to_string());
    let url = format!("redlock://{}", nodes.join(","));
    fencelock::redlock::init(&url).await.expect("new nodes");
    for command in ["once", "elect"] {
        let job = ["--url", &url, "job", "--", "echo", "ran"];
        let output = here.command(command, &job).output().expect("it runs");
        let (code, printed, error) = said(&output);
        assert_eq!((code, &*printed, error.lines().count()), (78, "", 1), "{error}");
        assert!(error.contains("has no cells"), "{error}");
    }
}

#[test]
fn what_is_skipped_is_in_the_status() {
    let here = Scratch::new();
    let status = |arguments: &[&str]| -> Value {
        let output = once(&here, &[&["--status-json", "status"][..], arguments].concat());
        let status = std::fs::read(here.path("status")).expect("a status");
        let status: Value = serde_json::from_slice(&status).expect("JSON");
        assert_eq!(status["exit_code"], output.status.code().expect("it exits"), "{status}");
        status
    };
    let ran = status(&["job", "--", "true"]);
    assert_eq!((&ran["outcome"], ran["token"].is_string()), (&"exited".into(), true), "{ran}");
    let done = status(&["--skipped", "3", "job", "--", "true"]);
    assert_eq!((&done["outcome"], &done["exit_code"]), (&"done".into(), &3.into()), "{done}");
    let _held = here.hold(&[], "other");
    let busy = status(&["other", "--", "true"]);
    assert_eq!((&busy["outcome"], &busy["exit_code"]), (&"busy".into(), &0.into()), "{busy}");
    assert_eq!(busy["holders"].as_array().map(Vec::len), Some(1), "{busy}");
}

#[test]
fn usage_is_64_and_a_store_of_one_process_is_78() {
    let here = Scratch::new();
    let cases: &[&[&str]] = &[
        &[],
        &["job"],
        &["--per", "hourly", "job", "--", "true"],
        &["--skipped", "256", "job", "--", "true"],
        &["-n", "job", "--", "true"],
        &["", "--", "true"],
        &["--", "echo", "hi"],
    ];
    for case in cases {
        let output = here.command("once", case).output().expect("it runs");
        assert_eq!(output.status.code(), Some(64), "{case:?}: {output:?}");
    }
    let nested = [env!("CARGO_BIN_EXE_fencelock"), "once", "job", "--", "true"];
    assert_eq!(here.code(&[&["job", "--"][..], &nested].concat()), 64, "it would never run");
    let output = once(&here, &["--url", "mem://", "job", "--", "true"]);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    // The default period is cron's.
    let start = std::time::SystemTime::now();
    let minutely = || here.command("once", &["job", "--", "echo", "ran"]).output();
    let ran: Vec<_> = (0..3).map(|_| said(&minutely().expect("it runs")).1).collect();
    let minute = |time: std::time::SystemTime| {
        time.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs() / 60
    };
    if minute(start) == minute(std::time::SystemTime::now()) {
        assert_eq!(ran, ["ran\n", "", ""]);
    }
    assert!(start.elapsed().expect("no step of the clock") < Duration::from_secs(60));
}
