//! Processes that leave the command's process group still end with the lock, for any reason but the
//! command's own end.

use std::process::Command;

use rustix::process::{Pid, Signal};

use crate::support::{Job, Scratch, children, eventually, is_dead, pid, state};

/// Ways out of the group for a process that ignores SIGTERM and prints its number.
const ESCAPES: [(&str, &str); 4] = [
    ("timeout", "timeout 1000 sh -c \"$DEAF\"; echo continued"),
    ("job control", "set -m; sh -c \"$DEAF\" & wait; echo continued"),
    ("a session", "setsid sh -c \"$DEAF\" & wait; echo continued"),
    ("a daemon", "(setsid sh -c \"$DEAF\" &); while :; do sleep 1000; done"),
];
const DEAF: &str = "trap '' TERM; echo $$; sleep 1000; :";

/// A job with one of these in it, and the number of the process that escaped.
fn start(here: &Scratch, options: &[&str], script: &str) -> (Job, Pid) {
    let mut arguments = options.to_vec();
    arguments.extend(["job", "--", "bash", "-c", script]);
    let job = Job::start(here.run(&arguments).env("DEAF", DEAF));
    let escaped = pid(&job.line());
    (job, escaped)
}

#[test]
fn what_left_the_group_ends_with_the_lock() {
    type End = (&'static [&'static str], fn(&Scratch, &Job), i32);
    let here = Scratch::new();
    let ends: [End; 3] = [
        (&[], |here, _| here.take_away("job"), 79),
        (&["--hold-at-most", "3s"], |_, _| {}, 79),
        (&["--grace", "200ms"], |_, job| job.send(Signal::TERM), 143),
    ];
    for (options, end, code) in ends {
        for (way, script) in ESCAPES {
            let (mut job, escaped) = start(&here, options, script);
            end(&here, &job);
            assert_eq!(job.code(), code, "{way} {options:?}");
            assert!(is_dead(escaped), "{way} {options:?}");
            assert_eq!(job.silence(), [""; 0], "{way} {options:?}");
        }
    }
}

#[test]
fn a_sigterm_gives_its_time_to_what_left_the_group() {
    let here = Scratch::new();
    let polite = "timeout 1000 bash -c 'trap \"sleep 0.3; echo tidy; exit\" TERM; echo $$; \
                  while :; do sleep 0.01; done'; echo continued";
    let (mut job, _) = start(&here, &["--grace", "10s"], polite);
    job.send(Signal::TERM);
    assert_eq!(job.code(), 143);
    assert_eq!(job.silence(), ["tidy"]);
}

/// Like systemd's `ProtectProc=invisible`: the wrapper's parent is root's, and hidden.
#[test]
fn a_sigterm_gives_its_time_to_all_although_proc_hides_our_parent() {
    // Processes of its own, so that no other test's `/proc` is touched.
    let prepare = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"];
    let hide = "mount -o remount,hidepid=2 /proc && \
                nobody='setpriv --reuid=65534 --regid=65534 --clear-groups' && \
                $nobody \"$0\" --version >&2 && ! $nobody test -e /proc/1/stat";
    let here = Scratch::new();
    let directory = here.path("");
    let mut ready = Command::new("unshare");
    ready.args(prepare).arg(hide).arg(env!("CARGO_BIN_EXE_fencelock"));
    let owned = std::os::unix::fs::chown(&directory, Some(65534), None);
    if owned.is_err() || !ready.output().is_ok_and(|end| end.status.success()) {
        eprintln!("NOT TESTED: only root can hide processes from others");
        return;
    }
    let polite = "trap 'sleep 0.3; echo tidy; exit' TERM; echo up; while :; do sleep 0.01; done";
    for way in ["bash -c \"$POLITE\" & wait", "timeout 1000 bash -c \"$POLITE\"; echo continued"] {
        // The shell stays: it is the parent.
        let hidden = format!("{hide} && $nobody \"$0\" \"$@\"; exit $?");
        let container = [&["unshare"], &prepare[..], &[&hidden]].concat();
        let run = ["--grace", "10s", "job", "--", "bash", "-c", way];
        let mut job = Job::start(here.run_by(&container, &run).env("POLITE", polite));
        assert_eq!(job.line(), "up", "{way}");
        let [shell] = children(job.pid())[..] else { panic!("one child: the shell") };
        let [wrapper] = children(shell)[..] else { panic!("one child: the wrapper") };
        rustix::process::kill_process(wrapper, Signal::TERM).unwrap();
        assert_eq!(job.code(), 143, "{way}");
        assert_eq!(job.silence(), ["tidy"], "{way}");
    }
}

#[test]
fn a_killed_wrapper_takes_what_left_the_group() {
    let here = Scratch::new();
    let many = "for i in $(seq 200); do setsid sleep 1000 & done; echo $$; wait";
    for script in ESCAPES.map(|it| it.1).into_iter().chain([many]) {
        let (mut job, _) = start(&here, &[], script);
        job.send(Signal::KILL);
        job.end();
        assert_eq!(job.silence(), [""; 0]);
    }
}

#[test]
fn a_killed_watchdog_takes_what_left_the_group_but_not_what_was_there_before() {
    let here = Scratch::new();
    for (way, script) in ESCAPES {
        // A shell that becomes the wrapper has had a child of its own.
        let shell = ["bash", "-c", "sleep 1000 >&- & echo $!; exec \"$0\" \"$@\""];
        let mut run = here.run_by(&shell, &["job", "--", "bash", "-c", script]);
        let mut job = Job::start(run.env("DEAF", DEAF));
        let before = pid(&job.line());
        let escaped = pid(&job.line());
        let watchdog = children(job.pid()).into_iter().find(|child| *child != before);
        rustix::process::kill_process(watchdog.expect("the watchdog"), Signal::KILL).unwrap();
        assert_eq!(job.code(), 70, "{way}");
        assert!(is_dead(escaped), "{way}");
        assert!(!is_dead(before), "{way}");
        rustix::process::kill_process(before, Signal::KILL).unwrap();
        assert_eq!(job.silence(), [""; 0], "{way}");
    }
}

#[test]
fn a_killed_watchdog_takes_nothing_that_came_to_us_from_elsewhere() {
    let here = Scratch::new();
    assert!(Command::new("mkfifo").arg(here.path("pipe")).status().unwrap().success());
    let command = "read go; setsid sh -c \"$DEAF\" & wait; echo continued";
    let stranger = "{ sleep 1000 >&- & echo $!; read x < pipe; } & exec \"$0\" \"$@\"";
    let mut run = here.run_by(&["bash", "-c", stranger], &["job", "--", "bash", "-c", command]);
    let mut job = Job::start(run.env("DEAF", DEAF));
    let orphan = pid(&job.line());
    job.write("go\n");
    let escaped = pid(&job.line());
    // While the command runs, the stranger ends, and leaves a process.
    std::fs::write(here.path("pipe"), "end\n").unwrap();
    eventually("it is ours", || {
        let ours = children(job.pid());
        ours.len() == 2 && ours.contains(&orphan)
    });
    // Listing our children and the watchdog takes fewer than eight reads, and nothing else reads.
    let before = reads(job.pid());
    eventually("they were listed twice", || reads(job.pid()) >= before + 24);
    let watchdog = children(job.pid()).into_iter().find(|child| *child != orphan);
    rustix::process::kill_process(watchdog.expect("the watchdog"), Signal::KILL).unwrap();
    assert_eq!(job.code(), 70);
    assert!(is_dead(escaped));
    assert!(!is_dead(orphan));
    rustix::process::kill_process(orphan, Signal::KILL).unwrap();
    assert_eq!(job.silence(), [""; 0]);
}

/// How many times a process has read anything.
fn reads(process: Pid) -> u64 {
    let counted = std::fs::read_to_string(format!("/proc/{}/io", process.as_raw_pid()));
    let counted = counted.expect("a process of ours");
    let reads = counted.lines().find_map(|line| line.strip_prefix("syscr: "));
    reads.and_then(|reads| reads.parse().ok()).expect("a number of reads")
}

/// A daemon that prints `up`, and at its end a line from a pipe.
const DAEMON: &str = "(setsid sh -c 'echo up; read x < pipe; echo $x' &)";

fn job_with_daemon(here: &Scratch, options: &[&str], rest: &str) -> Job {
    let made = Command::new("mkfifo").arg(here.path("pipe")).status().expect("mkfifo runs");
    assert!(made.success());
    let script = format!("{DAEMON}; read go; {rest}");
    let mut job = here.bash(options, &script);
    assert_eq!(job.line(), "up");
    job.write("go\n");
    job
}

fn daemon_lives(here: &Scratch, job: &Job) {
    std::fs::write(here.path("pipe"), "alive\n").expect("the pipe is read");
    assert_eq!(job.line(), "alive");
    assert_eq!(job.silence(), [""; 0]);
}

#[test]
fn a_daemon_outlives_a_command_that_ends_by_itself() {
    let here = Scratch::new();
    let mut job = job_with_daemon(&here, &[], "read x; exit 3");
    assert_eq!(job.hung_up(), 3);
    daemon_lives(&here, &job);
}

#[test]
fn a_keyboard_interrupt_ends_what_left_the_group_but_no_daemon() {
    // What a script starts in the background ignores SIGINT.
    let script = "timeout 1000 sh -c 'echo deaf; sleep 1000; :' & wait; echo continued";
    for (is_lost, code) in [(false, 130), (true, 79)] {
        let here = Scratch::new();
        let mut job = job_with_daemon(&here, &["--on-lost", "continue"], script);
        assert_eq!(job.line(), "deaf");
        if is_lost {
            here.take_away("job");
            assert!(job.complaint().contains("the command continues"));
        }
        job.send(Signal::INT);
        assert_eq!(job.code(), code);
        daemon_lives(&here, &job);
    }
}

/// The command is dead at once, and the processes that one reading of `/proc` shows soon after. Those
/// that are started meanwhile take more readings.
#[test]
fn what_is_started_while_the_lock_ends_is_ended_too() {
    let here = Scratch::new();
    // Should one escape, it ends by itself, but after the test has waited for it in vain.
    let script = "(setsid sh -c 'for i in $(seq 1000); do setsid sleep 100 & \
                  [ $i = 50 ] && echo up; done; sleep 100' &); sleep 100";
    for _ in 0..5 {
        let mut job = here.start(&["job", "--", "sh", "-c", script]);
        here.loses(&mut job);
    }
}

#[test]
fn a_chain_of_processes_that_start_their_successor_is_caught() {
    let here = Scratch::new();
    // In a group of its own, and each with another parent than the last. It would end by itself
    // after a while, but says so.
    let script = "set -m; f() { if [ $1 = 0 ]; then echo escaped; else f $(($1 - 1)) & fi; }; \
                  (echo up; f 30000) & wait; sleep 1000";
    let mut job = here.bash(&[], script);
    here.loses(&mut job);
}

/// Like `sudo`: a program that has changed its user permanently.
#[test]
fn what_may_not_be_ended_is_named_at_once() {
    let here = Scratch::new();
    let rooted = here.path("rooted");
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let prepare = format!(
        "cp \"$(command -v setpriv)\" {rooted} && chmod 4755 {rooted} && chown 65534 {here} && \
         {} {} --version && test \"$({} {rooted} --reuid=0 id -u)\" = 0",
        nobody.join(" "),
        env!("CARGO_BIN_EXE_fencelock"),
        nobody.join(" "),
        rooted = rooted.display(),
        here = rooted.parent().unwrap().display(),
    );
    if !Command::new("sh").args(["-c", &prepare]).output().is_ok_and(|end| end.status.success()) {
        eprintln!("NOT TESTED: only root can make a program that becomes root");
        return;
    }
    let becomes_root = format!("{} --reuid=0 sh -c 'echo $$; read x; exit 3'", rooted.display());
    // As a child of the command, and as the command itself.
    for script in [format!("{becomes_root}; echo continued"), format!("exec {becomes_root}")] {
        let options = ["--hold-at-most", "3s", "--status-json", "status", "job"];
        let shell = [&nobody[..], &["sh", "-c", "exec \"$0\" \"$@\" 2>&1"]].concat();
        let run = [&options[..], &["--", "sh", "-c", &script]].concat();
        let mut job = Job::start(&mut here.run_by(&shell, &run));
        let root = pid(&job.line());
        let lost = job.line();
        assert!(lost.starts_with("fencelock: lock lost: "), "{lost}");
        let complaint = job.line();
        let expected = format!("fencelock: cannot end pid {} (sh)", root.as_raw_pid());
        assert!(
            complaint.starts_with(&expected) && complaint.contains("not permitted"),
            "{complaint}"
        );
        assert!(!is_dead(root));
        if script.starts_with("exec") {
            job.hang_up();
        }
        assert_eq!(job.code(), 79);
        let status = std::fs::read_to_string(here.path("status")).unwrap();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        if script.starts_with("exec") {
            assert_eq!(status["not_ended"], serde_json::json!([]), "it has ended");
        } else {
            assert_eq!(status["not_ended"][0]["pid"], root.as_raw_pid(), "{status}");
            rustix::process::kill_process(root, Signal::KILL).unwrap();
        }
        assert_eq!(job.silence(), [""; 0], "each is reported once");
    }
}

#[test]
fn orphans_are_reaped_while_the_command_runs() {
    let here = Scratch::new();
    let script = "for i in 1 2 3 4 5; do (sh -c 'echo $$' &); done; read x; exit 3";
    let mut job = here.start(&["job", "--", "sh", "-c", script]);
    let orphans: Vec<Pid> = (0..5).map(|_| pid(&job.line())).collect();
    for orphan in orphans {
        eventually("it is reaped", || state(orphan).is_none());
    }
    assert_eq!(job.hung_up(), 3);
}

#[test]
fn orphans_are_reaped_while_the_lock_is_held_on() {
    let here = Scratch::new();
    assert!(Command::new("mkfifo").arg(here.path("pipe")).status().unwrap().success());
    let script = "(sh -c 'echo $$; read x < pipe' &); exit 3";
    let mut job = here.start(&["--hold-at-least", "1h", "job", "--", "sh", "-c", script]);
    let orphan = pid(&job.line());
    eventually("it is ours", || children(job.pid()) == [orphan]);
    std::fs::write(here.path("pipe"), "end\n").unwrap();
    eventually("it is reaped", || state(orphan).is_none());
    job.send(Signal::TERM);
    assert_eq!(job.code(), 143);
}

#[test]
fn the_first_process_of_a_container_reaps_what_has_no_parent() {
    // As some runtimes start it.
    const BLOCKED: [&str; 2] = ["env", "--block-signal=CHLD"];
    let here = Scratch::new();
    // Five orphans of the command; then it waits until no zombie is left, but not for ever.
    let script = "for i in 1 2 3 4 5; do (sleep 0.1 &); done; sleep 0.2; for i in $(seq 500); do \
                  grep -qs '^State:.Z' /proc/[0-9]*/status || exit 3; sleep 0.05; done; exit 4";
    let job = here.in_container(&BLOCKED, &["job", "--", "sh", "-c", script]);
    let Some(mut job) = job else { return };
    assert_eq!(job.code(), 3, "all are reaped, and the command's own code is kept");
}

#[test]
fn a_sigterm_in_a_container_ends_what_left_the_group() {
    // Our own process group is outside, and has no number there.
    let here = Scratch::new();
    let job = ["job", "--", "timeout", "1000", "sh", "-c", "echo up; sleep 1000; :"];
    let Some(mut job) = here.in_container(&[], &job) else { return };
    assert_eq!(job.line(), "up");
    let [wrapper] = children(job.pid())[..] else { panic!("one child: the wrapper") };
    rustix::process::kill_process(wrapper, Signal::TERM).unwrap();
    assert_eq!(job.code(), 143);
    assert_eq!(job.silence(), [""; 0]);
}
