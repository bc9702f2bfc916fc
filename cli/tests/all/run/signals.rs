//! Which signals reach whom, in which state the command gets them, and that they end a wait.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::Signal;

use crate::support::{Job, Scratch, eventually, redis, state};

const FORWARDED: [(Signal, i32, &str); 4] = [
    (Signal::INT, 130, "INT"),
    (Signal::TERM, 143, "TERM"),
    (Signal::HUP, 129, "HUP"),
    (Signal::QUIT, 131, "QUIT"),
];

/// A shell forgets a SIGINT that arrives while it starts a program; these have started theirs.
const FAMILY: &str = "(echo a; exec sleep 1000) | sh -c 'read x; echo $x; exec sleep 1000'";

#[test]
fn are_passed_on_to_the_whole_group() {
    let here = Scratch::new();
    for (signal, code, name) in FORWARDED {
        let mut job = here.start(&["job", "--", "sh", "-c", FAMILY]);
        assert_eq!(job.line(), "a");
        job.send(signal);
        assert_eq!(job.code(), code, "{name}");
        assert_eq!(job.silence(), [""; 0], "no process is left");

        let script =
            format!("trap 'echo got {name}; exit 9' {name}; echo a; while :; do sleep 0.01; done");
        let mut job = here.start(&["job", "--", "bash", "-c", &script]);
        assert_eq!(job.line(), "a");
        job.send(signal);
        assert_eq!(job.line(), format!("got {name}"));
        assert_eq!(job.code(), 9, "the command's own answer counts");
    }
}

/// A pool whose worker would drop its task, as Celery's; an entrypoint that forwards the signal to a program
/// which ends without saving at a second one; a shell's trap, which waits for the program that it runs; and
/// what a command leaves behind.
#[test]
fn sigterm_is_for_the_command_and_then_for_the_rest() {
    let worker =
        "trap 'echo dropped' TERM; echo up; until [ -e go ]; do sleep 0.01; done; echo done";
    let forwarded = worker.replace("dropped", "got it");
    let left = "trap 'echo left; exit' TERM; echo up; while :; do sleep 0.01; done";
    for (grace, script, lines, code) in [
        (
            "5m",
            format!("trap 'echo stops' TERM; ({worker}) & wait; wait"),
            &["stops", "done"][..],
            0,
        ),
        ("5m", format!("trap 'kill $!' TERM; ({forwarded}) & wait; wait"), &["got it", "done"], 0),
        ("200ms", "trap 'echo tidy; exit 3' TERM; echo up; sleep 1000".to_owned(), &["tidy"], 3),
        ("5m", format!("({left}) & exec sleep 1000"), &["left"], 143),
        // The command alone gets no second one.
        (
            "200ms",
            format!("trap 'echo stops' TERM; ({left}) & wait; wait; exit 4"),
            &["stops", "left"],
            4,
        ),
    ] {
        let here = Scratch::new();
        let mut job = here.bash(&["--ttl", "20m", "--grace", grace], &script);
        assert_eq!(job.line(), "up");
        job.send(Signal::TERM);
        assert_eq!(job.line(), lines[0], "{script}");
        std::fs::write(here.path("go"), "").unwrap();
        assert_eq!(job.silence(), lines[1..], "{script}");
        assert_eq!(job.code(), code, "{script}");
    }
}

/// With SIGCHLD blocked, the end of the command must be noticed all the same.
#[test]
fn are_blocked_and_ignored_for_the_command_as_they_were() {
    let here = Scratch::new();
    let run = here.run(&["job", "--"]);
    let masks = |command: &[&OsStr]| {
        let mut env = Command::new("env");
        env.args(["--block-signal=CHLD,TERM,USR1", "--ignore-signal=HUP,USR2,RTMIN+1"]);
        env.args(command).args(["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"]);
        let mut job = Job::start(env.env("FENCELOCK_URL", here.url()));
        let masks = job.silence();
        assert_eq!(job.code(), 0);
        let bits = |line: &String| {
            let bits = line.split_whitespace().last().map(|bits| u64::from_str_radix(bits, 16));
            // Without SIGPIPE, of which Rust forgets how it was, and the C library's own.
            bits.unwrap().unwrap() & !(1 << 12 | 3 << 31)
        };
        masks.iter().map(bits).collect::<Vec<_>>()
    };
    let through: Vec<_> = std::iter::once(run.get_program()).chain(run.get_args()).collect();
    assert_eq!(masks(&through), masks(&[]));
}

/// As systemd has it for a socket, and for `WatchdogSec=`: the number is that of the process it started.
#[test]
fn numbers_of_the_wrapper_in_the_environment_become_those_of_the_command() {
    let here = Scratch::new();
    std::fs::write(here.path("socket"), "read from 3\n").unwrap();
    let run =
        ["job", "--", "sh", "-c", "cat <&3; echo $LISTEN_PID$LISTEN_PIDFDID $WATCHDOG_PID $$"];
    for watchdog in ["$$", "1"] {
        let start = format!(
            "export LISTEN_PID=$$ LISTEN_PIDFDID=1 WATCHDOG_PID={watchdog}; exec \"$0\" \"$@\" 3<socket"
        );
        let mut job = Job::start(&mut here.run_by(&["sh", "-c", &start], &run));
        assert_eq!(job.line(), "read from 3");
        let numbers = job.line();
        let numbers: Vec<_> = numbers.split(' ').collect();
        assert_eq!(numbers[0], numbers[2]);
        assert_eq!(numbers[1], if watchdog == "1" { "1" } else { numbers[2] });
        assert_eq!(job.code(), 0);
    }
}

#[test]
fn end_the_wait_and_leave_nothing_in_the_queue() {
    let here = Scratch::new();
    for (signal, code, name) in FORWARDED {
        let mut holder = here.hold(&[], "job");
        let mut waiter = here.start(&["job", "--", "echo", "granted"]);
        here.until_waiting(&here.url(), "job", 1);
        waiter.send(signal);
        assert_eq!(waiter.code(), code, "{name}");
        assert_eq!(here.waiters(&here.url(), "job"), 0, "{name}");
        holder.hang_up();
        assert_eq!(holder.code(), 0);
    }
}

#[test]
fn interrupt_the_least_time_to_hold() {
    let here = Scratch::new();
    let mut job = here.start(&["--hold-at-least", "1h", "job", "--", "echo", "done"]);
    assert_eq!(job.line(), "done");
    eventually("the command is over", || crate::support::children(job.pid()).is_empty());
    assert_eq!(here.code(&["-n", "job", "--", "true"]), 75, "still held");
    job.send(Signal::TERM);
    assert_eq!(job.code(), 143);
    let script = "trap 'exit 3' TERM; echo up; while :; do sleep 0.01; done";
    let mut job = here.start(&["--hold-at-least", "1h", "job", "--", "bash", "-c", script]);
    assert_eq!(job.line(), "up");
    job.send(Signal::TERM);
    assert_eq!(job.code(), 3);
    assert_eq!(here.code(&["-n", "job", "--", "true"]), 0);
}

#[test]
fn that_were_ignored_stay_ignored() {
    let here = Scratch::new();
    let shell = ["sh", "-c", "trap '' HUP; exec \"$0\" \"$@\""];
    let mut run = here.run_by(&shell, &["job", "--", "sh", "-c", "echo a; read x; echo $x"]);
    let mut job = Job::start(run.process_group(0));
    assert_eq!(job.line(), "a");
    job.send(Signal::HUP);
    let command = job.pid();
    assert!(state(command).is_some());
    job.write("survived\n");
    assert_eq!(job.line(), "survived");
    assert_eq!(job.code(), 0);
}

/// Like a container that an orchestrator entered: the leaders of our session and process group are
/// outside, and have no number inside.
#[test]
fn end_a_wait_whose_session_has_no_number_here() {
    let here = Scratch::new();
    let _holder = here.hold(&[], "job");
    for (signal, code, name) in FORWARDED {
        let waiter = here.in_container(&[], &["job", "--", "echo", "granted"]);
        let Some(mut waiter) = waiter else { return };
        here.until_waiting(&here.url(), "job", 1);
        let inside = crate::support::children(waiter.pid());
        rustix::process::kill_process(inside[0], signal).unwrap();
        assert_eq!(waiter.code(), code, "{name}");
        assert_eq!(here.waiters(&here.url(), "job"), 0, "{name}");
    }
}

#[test]
fn a_stop_by_hand_leaves_the_wrapper_at_work() {
    let here = Scratch::new();
    let mut job = here.start(&["job", "--", "sh", "-c", "echo $$; exec sleep 1000"]);
    let command = crate::support::pid(&job.line());
    rustix::process::kill_process(command, Signal::STOP).unwrap();
    eventually("it is stopped", || state(command) == Some('T'));
    job.send(Signal::TERM);
    assert_eq!(job.code(), 143, "a stopped command gets the signal too");
}

#[test]
fn that_are_messages_reach_only_the_command_and_end_no_process() {
    let here = Scratch::new();
    let messages = [
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::ALARM, "ALRM"),
        (Signal::VTALARM, "VTALRM"),
        (Signal::PROF, "PROF"),
        (Signal::IO, "IO"),
        (Signal::XCPU, "XCPU"),
    ];
    // The helper, in the same group, would die of them.
    let mut script = "sleep 1000 & trap 'echo got WINCH' WINCH; ".to_owned();
    for (_, name) in messages {
        script.push_str(&format!("trap 'echo got {name}' {name}; "));
    }
    // bash does not see a signal that comes just before it reads, nor WINCH while it does: it has
    // to look up now and then.
    script.push_str("echo up; until read -t 0.1 x; [ $? = 1 ]; do :; done; kill $! && exit 7");
    let mut job = here.start(&["job", "--", "bash", "-c", &script]);
    assert_eq!(job.line(), "up");
    for (signal, name) in messages {
        job.send(signal);
        assert_eq!(job.line(), format!("got {name}"));
    }
    // No safe way to pass these on; they are dropped.
    for signal in ["RTMIN", "RTMIN+7", "RTMAX", "XFSZ"] {
        let pid = job.pid().as_raw_pid().to_string();
        let sent = Command::new("bash").args(["-c", "kill -s $0 $1", signal, &pid]).status();
        assert!(sent.unwrap().success(), "{signal}");
    }
    job.send(Signal::WINCH);
    assert_eq!(job.line(), "got WINCH");
    job.hang_up();
    assert_eq!(job.code(), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_without_a_terminal_stops_the_command_and_not_the_renewals() {
    let here = Scratch::new();
    let server = redis().await;
    let script = "echo $$; read x; exit 3";
    let run = ["--url", &server.url(), "--ttl", "3s", "job", "--", "sh", "-c", script];
    let mut job = Job::start(&mut here.run_by(&["setsid"], &run));
    let command = crate::support::pid(&job.line());
    // setsid has become the wrapper: it forks only where it leads a group.
    job.send(Signal::TSTP);
    eventually("it is stopped", || state(command) == Some('T'));
    // Longer than the lease, which ends unless it is renewed.
    std::thread::sleep(std::time::Duration::from_millis(3500));
    assert_eq!(state(command), Some('T'));
    job.send(Signal::CONT);
    job.hang_up();
    assert_eq!(job.code(), 3);
}
