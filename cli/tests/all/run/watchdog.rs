//! A wrapper that is killed takes its command with it, whenever that is; one that is stopped
//! cannot hold a lock that it does not renew.

use std::io::{IoSlice, stderr, stdin, stdout};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, send, sendmsg, socketpair,
};
use rustix::process::Signal;

use crate::support::{Job, Scratch, children, eventually, is_dead, pid, redis, state};

/// A command with grandchildren, all of them with the output open.
const FAMILY: [&str; 5] = [
    "job",
    "--",
    "sh",
    "-c",
    "sh -c 'trap \"\" TERM; echo up; sleep 1000; :' | sh -c 'read x; echo $x; sleep 1000; :'",
];

#[test]
fn a_wrapper_killed_at_any_moment_leaves_no_process() {
    let here = Scratch::new();
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    for _ in 0..80 {
        let mut job = here.start(&FAMILY);
        std::thread::sleep(Duration::from_micros(random.random_range(0..30_000)));
        job.send(Signal::KILL);
        job.end();
        job.silence();
    }
    assert_eq!(here.code(&["-w", "20", "job", "--", "true"]), 0);
}

#[test]
fn a_killed_job_of_the_shell_takes_the_command_too() {
    // Like `kill -9 %1`: the wrapper's whole process group at once.
    use std::os::unix::process::CommandExt;
    let here = Scratch::new();
    let mut job = crate::support::Job::start(here.run(&FAMILY).process_group(0));
    assert_eq!(job.line(), "up");
    rustix::process::kill_process_group(job.pid(), Signal::KILL).unwrap();
    job.end();
    job.silence();
}

#[test]
fn a_killed_watchdog_ends_the_command() {
    let here = Scratch::new();
    let script = "trap 'echo hup' HUP; sh -c 'trap \"\" HUP; echo up; sleep 1000; :' & \
                  while :; do wait; done";
    let mut job = here.start(&["job", "--", "bash", "-c", script]);
    assert_eq!(job.line(), "up");
    // From now on the wrapper knows its group.
    job.send(Signal::HUP);
    assert_eq!(job.line(), "hup");
    let [watchdog] = children(job.pid())[..] else { panic!("one child: the watchdog") };
    rustix::process::kill_process(watchdog, Signal::KILL).unwrap();
    assert_eq!(job.code(), 70);
    job.silence();
    assert!(job.complaints().contains("watchdog"));
}

#[test]
fn the_watchdog_ignores_signals_that_end_others_and_ends_with_the_command() {
    let here = Scratch::new();
    let mut job = here.hold(&[], "job");
    let [watchdog] = children(job.pid())[..] else { panic!("one child: the watchdog") };
    let name = std::fs::read_to_string(format!("/proc/{}/comm", watchdog.as_raw_pid()));
    assert_eq!(name.unwrap(), "lock-watchdog\n", "which `pkill -9 fencelock` spares");
    let polite = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];
    let others = [Signal::USR1, Signal::ALARM, Signal::TSTP, Signal::TTIN, Signal::WINCH];
    for signal in polite.into_iter().chain(others) {
        rustix::process::kill_process(watchdog, signal).unwrap();
    }
    assert_eq!(job.hung_up(), 0);
    assert_eq!(state(watchdog), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_wrapper_does_not_outlive_its_lease() {
    let here = Scratch::new();
    let server = redis().await;
    let options = ["--url", &server.url(), "--ttl", "500ms"];
    let mut job = here.bash(&options, "echo $$; sleep 1000; :");
    let command = pid(&job.line());
    job.send(Signal::STOP);
    // Unreaped, but dead, although the wrapper does nothing.
    eventually("the watchdog kills it", || state(command) == Some('Z'));
    job.send(Signal::CONT);
    assert_eq!(job.code(), 79);
}

#[test]
fn a_stopped_wrapper_of_the_file_store_keeps_its_lock() {
    let here = Scratch::new();
    let mut job = here.hold(&[], "job");
    job.send(Signal::STOP);
    eventually("it is stopped", || state(job.pid()) == Some('T'));
    assert_eq!(here.code(&["-w", "2", "job", "--", "true"]), 75);
    job.send(Signal::CONT);
    assert_eq!(job.hung_up(), 0);
}

#[test]
fn the_command_itself_keeps_the_lock_of_the_file_store() {
    for parameters in ["", "?local_handoffs=8"] {
        let here = Scratch::new();
        let url = here.url() + parameters;
        let command = ["job", "--", "sh", "-c", "echo $$; exec sleep 1000"];
        let mut job = here.start(&[&["--url", &url], &command[..]].concat());
        let command = pid(&job.line());
        let [watchdog] = children(job.pid())[..] else { panic!("one child: the watchdog") };
        // No process is left to kill the command: the worst case.
        job.send(Signal::STOP);
        eventually("it is stopped", || state(job.pid()) == Some('T'));
        rustix::process::kill_process(watchdog, Signal::KILL).expect("it is killed");
        eventually("it is dead", || state(watchdog) == Some('Z'));
        job.send(Signal::KILL);
        job.end();
        assert_eq!(here.code(&["-w", "2", "job", "--", "true"]), 75, "the command keeps it");
        rustix::process::kill_process(command, Signal::KILL).expect("it is killed");
        assert_eq!(here.code(&["-w", "20", "job", "--", "true"]), 0, "and frees it");
    }
}

#[test]
fn only_the_command_inherits_the_locks_descriptor() {
    let here = Scratch::new();
    let job = here.hold(&[], "job");
    let locks = std::fs::canonicalize(here.path("locks")).unwrap();
    let open = |process| {
        let files =
            std::fs::read_dir(format!("/proc/{}/fd", rustix::process::Pid::as_raw_pid(process)));
        let files =
            files.unwrap().flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
        files.filter(|file| file.starts_with(&locks)).count()
    };
    let [watchdog] = children(job.pid())[..] else { panic!("one child: the watchdog") };
    let [command] = children(watchdog)[..] else { panic!("one child: the command") };
    // The command may speak before the watchdog has let go.
    eventually("only the command has it", || (open(watchdog), open(command)) == (0, 1));
}

/// It, or the wrapper, was stopped between the grant and the command's start, or the wrapper knows more by then.
#[test]
fn a_watchdog_that_comes_too_late_starts_nothing() {
    let never = r#"{"KillAt":{"nanos":18446744073709551615}}"#;
    let [start_now, over] =
        ["18446744073709551615", "1"].map(|it| format!(r#"{{"StartBefore":{{"nanos":{it}}}}}"#));
    for orders in [&[&*over, never][..], &[&*start_now, never, &*over]] {
        let here = Scratch::new();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let (stdin, stdout, stderr) = (stdin(), stdout(), stderr());
        let files = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        sendmsg(&ours, &[IoSlice::new(&[0])], &mut control, SendFlags::empty()).unwrap();
        for order in orders {
            send(&ours, order.as_bytes(), SendFlags::empty()).unwrap();
        }
        let mut watchdog = here.command("__watchdog", &["--", "touch", "late"]);
        let mut watchdog = watchdog.stdin(theirs).spawn().unwrap();
        eventually("it ends", || watchdog.try_wait().unwrap().is_some());
        let mut report = [0; 64];
        let (length, _) = recv(&ours, &mut report, RecvFlags::empty()).unwrap();
        assert_eq!(&report[..length], br#""TooLate""#);
        assert!(!here.path("late").exists());
    }
}

/// A job of `sh -c 'touch late; …'` whose watchdog was stopped before it started that.
fn with_a_watchdog_asleep(here: &Scratch, options: &[&str]) -> (Job, rustix::process::Pid) {
    // After its exec: a stopped fork would stop the wrapper, too.
    let executes = |process: &rustix::process::Pid| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.as_raw_pid()));
        line.is_ok_and(|line| line.starts_with(b"lock-watchdog"))
    };
    let caught = (0..200).find_map(|_| {
        let command = ["job", "--", "sh", "-c", "touch late; exec sleep 1000"];
        let mut job = here.start(&[options, &command].concat());
        let watchdog = loop {
            if let Some(watchdog) = children(job.pid()).into_iter().find(executes) {
                break watchdog;
            }
        };
        rustix::process::kill_process(watchdog, Signal::STOP).expect("it is there");
        eventually("it is stopped", || state(watchdog) == Some('T'));
        if children(watchdog).is_empty() && !here.path("late").exists() {
            return Some((job, watchdog));
        }
        job.send(Signal::KILL);
        rustix::process::kill_process(watchdog, Signal::CONT).expect("it is there");
        job.end();
        let _ = std::fs::remove_file(here.path("late"));
        None
    });
    caught.expect("a watchdog that had started nothing")
}

/// The store says so, or the limit, which no deadline of the watchdog knows: least of all on files, which have none.
#[test]
fn a_command_is_not_started_by_a_watchdog_that_slept_while_the_lock_was_lost() {
    for (options, is_taken) in [(&[][..], true), (&["--hold-at-most", "4s"], false)] {
        let here = Scratch::new();
        let (mut job, watchdog) = with_a_watchdog_asleep(&here, options);
        if is_taken {
            here.take_away("job");
        }
        assert!(job.complaint().ends_with("the command is not started\n"), "the wrapper knows");
        rustix::process::kill_process(watchdog, Signal::CONT).unwrap();
        assert_eq!(job.code(), 79);
        assert!(!here.path("late").exists());
    }
}

/// Whose watchdog or whose file system makes it wait.
#[test]
fn a_command_is_not_started_after_a_sigterm() {
    let here = Scratch::new();
    let (mut job, watchdog) = with_a_watchdog_asleep(&here, &[]);
    job.send(Signal::TERM);
    assert!(job.complaint().contains("interrupted before the command has started"));
    rustix::process::kill_process(watchdog, Signal::CONT).unwrap();
    assert_eq!(job.code(), 143);
    assert!(!here.path("late").exists());
}

#[test]
fn a_stopped_watchdog_does_not_keep_the_wrapper_after_a_loss() {
    let here = Scratch::new();
    let mut job = here.start(&["job", "--", "sh", "-c", "echo up; exec sleep 1000"]);
    assert_eq!(job.line(), "up");
    rustix::process::kill_process(children(job.pid())[0], Signal::STOP).unwrap();
    here.take_away("job");
    assert_eq!(job.code(), 79);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_started_by_a_watchdog_that_slept_while_the_lock_was_renewed() {
    let (here, server) = (Scratch::new(), redis().await);
    let (mut job, watchdog) =
        with_a_watchdog_asleep(&here, &["--url", &server.url(), "--ttl", "4s"]);
    // Longer than the first lease, less the time for SIGTERM.
    tokio::time::sleep(Duration::from_secs(3)).await;
    rustix::process::kill_process(watchdog, Signal::CONT).unwrap();
    eventually("it has started", || here.path("late").exists());
    job.send(Signal::TERM);
    assert_eq!(job.code(), 143);
}

/// What the command leaves behind asks for its time: the watchdog dies in it, or the lock is lost before it.
#[test]
fn what_a_command_leaves_behind_after_a_sigterm_is_ended_in_any_case() {
    let left = "trap 'echo asked' TERM; echo up $$; while :; do sleep 0.05; done";
    let script =
        format!("setsid sh -c \"{}\" & trap 'exit 3' TERM; wait", left.replace('$', "\\$"));
    for (options, is_lost) in [(&[][..], false), (&["--on-lost", "continue"], true)] {
        let here = Scratch::new();
        let mut job = here.bash(options, &script);
        let line = job.line();
        let left = pid(line.strip_prefix("up ").expect("a number"));
        if is_lost {
            here.take_away("job");
            assert!(job.complaint().contains("the command continues"));
        }
        let watchdog = children(job.pid())[0];
        job.send(Signal::TERM);
        assert_eq!(job.line(), "asked");
        if !is_lost {
            rustix::process::kill_process(watchdog, Signal::KILL).unwrap();
        }
        assert_eq!(job.code(), if is_lost { 79 } else { 3 });
        assert!(is_dead(left), "{options:?}");
    }
}
