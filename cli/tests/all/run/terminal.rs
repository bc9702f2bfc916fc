//! On a terminal: the command can read it, Ctrl-C and Ctrl-Z are for the whole job, and a waiter
//! reports the holder.

use crate::support::{Scratch, Shell, redis};

#[test]
fn in_a_pipeline_it_gets_the_terminal_when_it_asks() {
    let here = Scratch::new();
    let mut shell = Shell::start(&here);
    shell.line("fencelock run job -- sh -c 'read x; echo got:$x' | cat");
    shell.asked("keys", "got:keys");
    // And leaves it to the reader of keys at the pipeline's end, if it does not ask.
    shell.line(
        "fencelock run job -- sh -c 'echo a''live; sleep 0.2' | (cat; read z </dev/tty; echo tail:$z)",
    );
    shell.expect("alive");
    shell.asked("keys", "tail:keys");
}

#[test]
fn ctrl_c_ends_the_command_and_the_script_that_called() {
    let here = Scratch::new();
    let mut shell = Shell::start(&here);
    for command in
        ["sh -c 'echo u''p; exec sleep 1000'", "sh -c 'echo u''p; exec sleep 1000' | cat"]
    {
        shell.shows(&format!("fencelock run job -- {command}"), "up\r\n");
        shell.keys("\x03");
        shell.expect("READY> ");
        shell.exited(130);
        shell.asked("fencelock run -n job -- echo fr''ee", "free");
    }
    // The signal is for the whole job, this program among them, and says nothing of what has ended.
    let tick = "fencelock once --per 1000d --failed-is-done --skipped 75 tick --";
    shell.line(&format!("{tick} sh -c 'echo u''p; exec sleep 1000'"));
    shell.expect("up\r\n");
    shell.keys("\x03");
    shell.expect("READY> ");
    shell.exited(130);
    shell.line(&format!("{tick} true"));
    shell.expect("READY> ");
    shell.exited(75);
    std::fs::write(
        here.path("script"),
        "fencelock run job -- sh -c 'echo up; exec sleep 1000'\necho not reached\n",
    )
    .unwrap();
    shell.shows("bash script; echo en''d", "up\r\n");
    shell.keys("\x03");
    let between = shell.expect("READY> ");
    assert!(!between.contains("not reached"), "{between}");
}

#[test]
fn ctrl_z_stops_both_and_fg_continues_both() {
    let here = Scratch::new();
    for pipe in ["", " | cat"] {
        let mut shell = Shell::start(&here);
        shell.line(&format!(
            "fencelock run job -- sh -c 'read a; echo u''p; read x; echo got:$x'{pipe}"
        ));
        // The reader has the terminal.
        shell.shows("first", "up\r\n");
        shell.keys("\x1a");
        shell.answers("Stopped");
        assert_eq!(here.code(&["-n", "job", "--", "true"]), 75, "still held");
        // The terminal is the shell's meanwhile.
        shell.line("read y; echo shell:$y");
        shell.asked("mine", "shell:mine");
        shell.shows("fg", "fencelock run");
        shell.asked("keys", "got:keys");
    }
}

#[test]
fn in_the_background_it_stops_when_it_reads_and_continues_in_the_foreground() {
    let here = Scratch::new();
    let mut shell = Shell::start(&here);
    shell.shows("fencelock run job -- sh -c 'read x; echo got:$x' &", "READY> ");
    // Its end of stopping is printed with a later prompt.
    shell.asked("wait %1", "Stopped");
    shell.shows("fg", "fencelock run");
    shell.asked("keys", "got:keys");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_stopped_for_longer_than_its_lease_does_not_continue() {
    let here = Scratch::new();
    let server = redis().await;
    let mut shell = Shell::start(&here);
    shell.line(&format!(
        "fencelock run --url {} --ttl 4s job -- sh -c 'read a; echo u''p; read x; echo contin''ues'",
        server.url()
    ));
    shell.expect("fencelock: warning: redis loses its locks when it restarts");
    shell.shows("first", "up\r\n");
    shell.keys("\x1a");
    shell.answers("Stopped");
    shell.line("sleep 4.1; fg");
    let between = shell.expect("lock lost");
    assert!(!between.contains("continues"), "{between}");
    shell.expect("READY> ");
    shell.exited(79);
}

#[test]
fn a_waiter_ends_by_ctrl_c_and_says_who_holds_the_lock() {
    let here = Scratch::new();
    let mut held = here.hold(&[], "job");
    let mut shell = Shell::start(&here);
    shell.shows("fencelock run job -- true", "waiting for");
    shell.keys("\x03");
    shell.expect("READY> ");
    shell.exited(130);
    shell.shows("fencelock run job -- echo grant''ed", "fencelock: waiting for \"job\" on file://");
    shell.expect(": held for ");
    shell.expect(&format!("by \"sh\" (pid {} on host ", held.pid().as_raw_pid()));
    held.hang_up();
    // The line is taken away first.
    shell.expect("\x1b[2K");
    shell.answers("granted");
}

#[test]
fn elsewhere_a_waiter_is_quiet_unless_asked() {
    let here = Scratch::new();
    let _held = here.hold(&[], "job");
    let quiet = here.output(&["-w", "2", "--skip-ok", "job", "--", "true"]);
    assert_eq!(String::from_utf8(quiet.stderr).unwrap(), "");
    let printed = here.output(&["-w", "2", "--skip-ok", "--verbose", "job", "--", "true"]);
    let printed = String::from_utf8(printed.stderr).unwrap();
    let (warning, printed) = printed.split_once('\n').expect("lines");
    assert!(warning.contains("is removed with age or at a reboot"), "below /tmp: {warning}");
    assert!(printed.starts_with("fencelock: waiting for \"job\" on file://"), "{printed}");
    assert_eq!(printed.lines().count(), 2, "once, and that the wait timed out: {printed}");
}
