//! Each exit code, and the options that change it.

use crate::support::{Scratch, said};

#[test]
fn the_commands_own_code_and_signal() {
    let here = Scratch::new();
    for code in [0, 1, 7, 255] {
        assert_eq!(here.code(&["job", "--", "sh", "-c", &format!("exit {code}")]), code);
    }
    assert_eq!(here.code(&["job", "--", "sh", "-c", "kill -KILL $$"]), 137);
    assert_eq!(here.code(&["job", "--", "sh", "-c", "kill -USR1 $$"]), 138);
}

#[test]
fn usage_is_64() {
    let here = Scratch::new();
    let cases: &[&[&str]] = &[
        &[],
        &["job"],
        &["-w", "-1", "job", "--", "true"],
        &["-n", "-w", "1", "job", "--", "true"],
        &["-E", "256", "job", "--", "true"],
        &["-s", "-x", "job", "--", "true"],
        &["-s", "--write", "job", "--", "true"],
        &["-x", "--write", "job", "--", "true"],
        &["--write", "--limit", "2", "job", "--", "true"],
        &["--permits", "2", "job", "--", "true"],
        &["--permits", "3", "--limit", "2", "job", "--", "true"],
        &["--ttl", "30", "job", "--", "true"],
        &["--ttl", "1ms", "job", "--", "true"],
        &["-q", "-v", "job", "--", "true"],
        &["--reach", "galaxy", "job", "--", "true"],
        &["--log", "loud", "job", "--", "true"],
        &["--", "echo", "hi"],
        &["-c", "true", "--", "job"],
        &["--hold-at-most", "0s", "job", "--", "true"],
        &["--hold-at-most", "1s", "--hold-at-least", "2s", "job", "--", "true"],
        &["--ttl", "2s", "--grace", "1100ms", "job", "--", "true"],
        &["--on-lost", "pray", "job", "--", "true"],
        &["", "--", "true"],
        &["-c", "true", "job", "--", "true"],
    ];
    for case in cases {
        assert_eq!(here.code(case), 64, "{case:?}");
        let mut compatible = vec!["--flock-compat"];
        compatible.extend(*case);
        assert_eq!(here.code(&compatible), 64, "{compatible:?}");
    }
    assert_eq!(here.code(&["--help"]), 0);
}

#[test]
fn a_forgotten_name_is_not_taken_from_the_command() {
    let here = Scratch::new();
    let said = here.fails(64, &["--", "echo", "hi"]);
    assert!(said.contains("the lock's NAME comes before --"), "{said}");
    assert!(said.contains("fencelock run [OPTIONS] NAME"), "{said}");
    let said = here.fails(64, &["-w", "-5", "job", "--", "true"]);
    assert!(said.contains("expected seconds, such as 10 or 0.5"), "{said}");
}

#[test]
fn busy_is_75_or_what_the_user_says() {
    let here = Scratch::new();
    let held = here.hold(&[], "job");
    // The process that has the lock, which the job's label names.
    let process = format!(" s by \"sh\" (pid {} on host ", held.pid().as_raw_pid());
    let is_busy = |wait: &[&'static str]| {
        let with = |more: &[&'static str]| {
            let mut arguments = wait.to_vec();
            arguments.extend(more);
            arguments.extend(["job", "--", "true"]);
            here.output(&arguments)
        };
        let busy = with(&[]);
        assert_eq!(busy.status.code(), Some(75), "{wait:?}");
        let message = String::from_utf8(busy.stderr).unwrap();
        assert!(message.starts_with("fencelock: acquire \"job\" on file://"), "{message}");
        let says = |before| message.contains(before) && message.contains(&process);
        assert!(says(": busy: held for ") || says("; held for "), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert_eq!(with(&["-E", "3"]).status.code(), Some(3));
        for (options, code) in
            [(&["--skip-ok"][..], 0), (&["--flock-compat"], 1), (&["-E", "0"], 0), (&["-q"], 75)]
        {
            let quiet = with(options);
            assert_eq!(quiet.status.code(), Some(code), "{options:?}");
            assert!(quiet.stderr.is_empty(), "{options:?}");
        }
    };
    std::thread::scope(|scope| {
        // Within 3 s also a busy disk says that a lock is held.
        for wait in [&["-n"][..], &["--nonblocking"], &["-w", "0"], &["-w", "3"], &["-w", "3000ms"]]
        {
            scope.spawn(move || is_busy(wait));
        }
    });
}

#[test]
fn a_bad_store_is_78_and_shows_no_password() {
    let here = Scratch::new();
    for url in ["pigeon://me:hunter2@host/", "file:///tmp?tll=2s", "nonsense", "file:///proc/locks"]
    {
        let said = here.fails(78, &["--url", url, "job", "--", "true"]);
        assert!(!said.contains("hunter2"), "{said}");
    }
    assert_eq!(here.code(&["--flock-compat", "--url", "nonsense", "job", "--", "true"]), 65);
}

#[test]
fn a_directory_without_its_regular_files_names_the_remedy() {
    let here = Scratch::new();
    assert_eq!(here.code(&["job", "--", "true"]), 0);
    std::fs::remove_file(here.path("locks/lock%3Ajob/L")).unwrap();
    let said = here.fails(78, &["job", "--", "true"]);
    let (_, remedy) = said.split_once("run ").expect("a remedy");
    let remedy = remedy.split_once(':').expect("and what it costs").0;
    assert!(std::process::Command::new("sh").args(["-c", remedy]).status().unwrap().success());
    assert_eq!(here.code(&["job", "--", "true"]), 0, "{remedy}");
}

/// Each would otherwise let two jobs run at once.
#[test]
fn a_cleaner_of_old_files_spares_a_directory_in_use() {
    let here = Scratch::new();
    let _held = here.hold(&[], "job");
    std::fs::write(here.path("conf"), format!("d {} - - - 0\n", here.path("").display())).unwrap();
    let mut cleaner = std::process::Command::new("systemd-tmpfiles");
    let cleaned = cleaner.arg("--clean").arg(here.path("conf")).status();
    cleaned.expect("systemd-tmpfiles is installed: the package systemd");
    assert!(!here.path("conf").exists(), "it has cleaned");
    assert_eq!(here.code(&["-n", "job", "--", "true"]), 75);
}

#[test]
fn a_url_in_the_wrong_place_shows_no_password() {
    const URL: &str = "redis://me:hunter2@host/";
    let here = Scratch::new();
    for (command, arguments) in [
        ("run", &[URL, "--", "true"][..]),
        ("run", &["--ttl", URL, "job", "--", "true"]),
        ("run", &["--permits", URL, "--limit", "2", "job", "--", "true"]),
        ("run", &["--reach", "redis://me:hunter2/@host", "job", "--", "true"]),
        ("once", &["--per", URL, "job", "--", "true"]),
        ("show", &[URL]),
        ("break", &["job", URL]),
        (URL, &["job", "--", "true"]),
    ] {
        let (code, _, said) = said(&here.command(command, arguments).output().unwrap());
        assert_eq!(code, 64, "{command} {arguments:?}: {said}");
        assert!(
            said.contains("***") && !said.contains("hunter2"),
            "{command} {arguments:?}: {said}"
        );
    }
    let name = here.fails(64, &[URL, "--", "true"]);
    assert!(name.contains("the store's URL is given by --url"), "{name}");
    assert_eq!(here.code(&["s3://bucket/object", "--", "true"]), 0);
}

#[test]
fn a_duration_of_the_url_that_is_wrong_is_named() {
    let here = Scratch::new();
    for wrong in ["ttl=10", "ttl=1ms", "unreachable_after=10"] {
        let url = format!("{}?{wrong}", here.url());
        let said = here.fails(78, &["--url", &url, "job", "--", "true"]);
        let parameter = wrong.split_once('=').unwrap().0;
        assert!(said.contains(&format!("--url: parameter {parameter}")), "{said}");
    }
}

#[test]
fn a_store_that_does_not_answer_is_69_and_names_the_bound() {
    let here = Scratch::new();
    assert_eq!(here.code(&["job", "--", "true"]), 0);
    // To other clients this looks like a process that was stopped while it changed the queue.
    let queue = here.path("locks").join("lock%3Ajob").join("q");
    let file = std::fs::File::options().read(true).write(true).open(&queue).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let url = format!("{}?unreachable_after=300ms", here.url());
    let said = here.fails(69, &["--url", &url, "job", "--", "true"]);
    assert!(said.contains("unreachable_after=300ms"), "{said}");
    assert_eq!(here.code(&["--flock-compat", "--url", &url, "job", "--", "true"]), 71);
}

#[test]
fn what_cannot_be_executed_is_126_or_127() {
    let here = Scratch::new();
    std::fs::write(here.path("text"), "no program").unwrap();
    let text = here.path("text").display().to_string();
    assert_eq!(
        here.fails(127, &["job", "--", "/no/such/program"]),
        "fencelock: cannot execute \"/no/such/program\": No such file or directory (os error 2)\n"
    );
    assert_eq!(here.code(&["job", "--", &text]), 126);
    assert_eq!(here.code(&["--flock-compat", "job", "--", "/no/such/program"]), 69);
    assert_eq!(here.code(&["-n", "job", "--", "true"]), 0, "it is not held any more");
}

#[test]
fn flocks_spellings_work() {
    let here = Scratch::new();
    let says = |arguments: &[&str]| {
        let output = here.output(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(says(&["-c", "echo $((1+1))", "job"]), "2\n");
    assert_eq!(says(&["job", "-c", "echo $((1+1))"]), "2\n");
    assert_eq!(says(&["job", "echo", "-n", "-E", "x"]), "-E x".trim_start_matches("-E "));
    assert_eq!(says(&["-n", "-x", "job", "--", "echo", "-s"]), "-s\n");
    assert_eq!(says(&["--nb", "-o", "job", "echo", "a"]), "a\n");
    assert_eq!(says(&["-e", "--timeout", "1", "--close", "job", "--", "echo", "a"]), "a\n");
    for verbose in ["--verbose", "-v"] {
        let verbose = here.output(&[verbose, "job", "--", "true"]);
        let printed = String::from_utf8(verbose.stderr).unwrap();
        assert!(printed.contains("\nfencelock: got \"job\" on file://"), "{printed}");
        assert!(printed.contains("fencing token"), "{printed}");
    }
}

#[test]
fn modes_exclude_each_other() {
    let here = Scratch::new();
    let reader = here.hold(&["-s"], "job");
    assert_eq!(here.code(&["-n", "-s", "job", "--", "true"]), 0);
    assert_eq!(here.code(&["-n", "job", "--", "true"]), 75);
    drop(reader);
    let _one = here.hold(&["--limit", "3"], "pool");
    assert_eq!(here.code(&["-n", "--permits", "2", "--limit", "3", "pool", "--", "true"]), 0);
    assert_eq!(here.code(&["-n", "--permits", "3", "--limit", "3", "pool", "--", "true"]), 75);
    assert_eq!(here.code(&["-n", "-s", "pool", "--", "true"]), 75);
}

#[test]
fn a_background_process_does_not_keep_the_lock_or_the_output() {
    let here = Scratch::new();
    // Three ticks of flock's idiom for a daemon, which keeps flock's lock: docs/from-flock.md.
    let daemons = [(); 3].map(|()| {
        let daemon = "sleep 1000 >&- 2>&- <&- & echo $!";
        let mut tick = here.start(&["-v", "-n", "job", "--", "sh", "-c", daemon]);
        let daemon = crate::support::pid(&tick.line());
        assert_eq!(tick.code(), 0, "it is free");
        assert!(tick.complaints().contains("the command has left continue without the lock"));
        daemon
    });
    for daemon in daemons {
        assert!(crate::support::state(daemon).is_some_and(|state| state != 'Z'), "left alone");
        rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    }
}
