//! A lock's end ends its command first: by SIGTERM, then by SIGKILL, and before another client can be
//! granted the lock.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Scratch, eventually, is_dead, pid, redis};

/// Ends at a SIGTERM, and says so.
pub(crate) const LISTENS: &str =
    "trap 'echo term; exit 0' TERM; echo up; while :; do read -t 1 x; done";

#[test]
fn at_its_deadline_a_command_gets_term() {
    let here = Scratch::new();
    let mut job = here.bash(&["--hold-at-most", "6s", "--grace", "3s"], LISTENS);
    assert_eq!(job.line(), "up");
    let start = Instant::now();
    assert_eq!(job.line(), "term");
    // Half of the time is left, most of which a busy machine may take to get here.
    assert!(
        start.elapsed() < Duration::from_millis(5800),
        "{:?} of grace used up",
        start.elapsed()
    );
    assert_eq!(job.code(), 79);
    let said = job.complaints();
    assert!(
        said.contains("lock lost: \"job\" on file://") && said.contains("--hold-at-most"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "reported once: {said}");
}

/// The command has the pipe itself: what it writes there delays no renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_writes_to_a_full_pipe_keeps_its_lock() {
    let (here, server) = (Scratch::new(), redis().await);
    let options = ["--url", &server.url(), "--ttl", "3s"];
    let job = ["job", "--", "head", "-c", "20000000", "/dev/zero"];
    let job = here.run(&[&options[..], &job].concat()).stdout(Stdio::piped()).spawn();
    // Longer than the lease, which ends unless it is renewed.
    tokio::time::sleep(Duration::from_millis(3500)).await;
    let output = job.unwrap().wait_with_output().unwrap();
    assert_eq!((output.stdout.len(), output.status.code()), (20_000_000, Some(0)));
}

#[test]
fn a_command_that_ignores_term_is_killed_before_the_lock_ends() {
    let here = Scratch::new();
    let mut job = here.bash(
        &["--hold-at-most", "5s", "--grace", "2s"],
        "(trap 'echo deaf' TERM; echo $$; while :; do sleep 0.01; done) | \
         sh -c 'trap \"\" TERM; cat; sleep 1000'",
    );
    let command = pid(&job.line());
    assert_eq!(job.line(), "deaf");
    // The next holder finds no process of the old group.
    let status = format!("/proc/{}/status", command.as_raw_pid());
    let no_other_lives = "! grep -qs 'State:.[^Z]' $0";
    assert_eq!(here.code(&["-w", "20", "job", "--", "sh", "-c", no_other_lives, &status]), 0);
    job.silence();
    assert_eq!(job.code(), 79);
    assert!(is_dead(command));
}

#[test]
fn kill_means_no_warning() {
    let here = Scratch::new();
    let mut job = here.bash(&["--hold-at-most", "4s", "--on-lost", "kill"], LISTENS);
    assert_eq!(job.line(), "up");
    assert_eq!(job.code(), 79);
    assert_eq!(job.silence(), [""; 0]);
}

#[test]
fn continue_only_reports() {
    let here = Scratch::new();
    let mut job =
        here.bash(&["--hold-at-most", "4s", "--on-lost", "continue"], "echo up; read x; echo $x");
    assert_eq!(job.line(), "up");
    assert_eq!(here.code(&["-w", "20", "job", "--", "true"]), 0, "another client has it");
    job.write("unharmed\n");
    assert_eq!(job.line(), "unharmed");
    assert_eq!(job.code(), 79);
    assert!(job.complaints().contains("the command continues"));
}

#[test]
fn a_lock_taken_away_kills_at_once() {
    let here = Scratch::new();
    let mut job =
        here.bash(&[], "trap 'echo term' TERM; echo up; while :; do sleep 0.01; done | cat");
    here.loses(&mut job);
    let said = job.complaints();
    assert!(said.contains("taken or deleted"), "{said}");
}

/// A socket that nobody reads. A pipe would be opened anew for a status, without waiting.
fn full() -> (UnixStream, OwnedFd) {
    let (reader, mut full) = UnixStream::pair().expect("a socket");
    full.set_nonblocking(true).expect("set");
    while full.write(&[b'.'; 4096]).is_ok() {}
    while full.write(b".").is_ok() {}
    full.set_nonblocking(false).expect("set");
    (reader, full.into())
}

/// The message that the lock was granted takes longer than the lock.
#[test]
fn nothing_starts_on_a_lock_that_is_over() {
    let here = Scratch::new();
    for (name, options) in [
        ("run", &["-v", "job"][..]),
        ("run", &["-v", "--on-lost", "kill", "job"]),
        ("run", &["-v", "--on-lost", "continue", "job"]),
        ("once", &["-v", "--per", "1d", "job"]),
    ] {
        let (_reader, full) = full();
        let late = ["--hold-at-most", "40ms", "--", "touch", "late"];
        let mut command = here.command(name, &[options, &late].concat());
        let code = command.stderr(full).status().unwrap().code();
        assert_eq!((code, here.path("late").exists()), (Some(79), false), "{name} {options:?}");
    }
}

/// Its messages and its status go there.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_standard_error_delays_no_start_no_renewal_and_no_signal() {
    let (here, server) = (Scratch::new(), redis().await);
    let (_reader, full) = full();
    let url = server.url();
    let mut holder = here.hold(&["--url", &url], "job");
    let options = ["-v", "--ttl", "3s", "--status-json", "/dev/stderr", "--url", &url, "job", "--"];
    let script = "touch began; sleep 1000";
    let mut waiting = here.run(&[&options[..], &["sh", "-c", script]].concat());
    let mut waiting = waiting.stderr(full).spawn().unwrap();
    here.until_waiting(&url, "job", 1);
    assert_eq!(holder.hung_up(), 0);
    eventually("the job has begun", || here.path("began").exists());
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        assert_eq!(here.code(&["-n", "--url", &url, "job", "--", "true"]), 75);
    }
    let pid = rustix::process::Pid::from_child(&waiting);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(waiting.wait().unwrap().code(), Some(128 + 15));
}
