//! The command's environment, the status file, and a lock nested in itself.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};

use serde_json::Value;

use crate::support::Scratch;

#[test]
fn the_command_sees_which_lock_it_holds() {
    let here = Scratch::new();
    let script = "echo $FENCELOCK_NAME; echo $FENCELOCK_TOKEN; echo $FENCELOCK_STORE; echo ${FENCELOCK_DEADLINE-none}";
    let url = format!("{}?unreachable_after=20s", here.url());
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let output = here.output(&["--url", &url, "orders/42", "--", "sh", "-c", script]);
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines[2], lines[3]), ("orders/42", &*here.url(), "none"));
        tokens.push(lines[1].parse::<u64>().unwrap());
    }
    assert!(tokens[0] < tokens[1], "{tokens:?}");
    let script = "echo $(($FENCELOCK_DEADLINE - $(date +%s)))";
    let output = here.output(&["--hold-at-most", "1h", "orders/42", "--", "sh", "-c", script]);
    let left: i64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    assert!((3500..=3600).contains(&left), "{left}");
}

#[test]
fn a_lock_within_itself_is_an_error_and_no_deadlock() {
    let here = Scratch::new();
    let bin = env!("CARGO_BIN_EXE_fencelock");
    let said = here.fails(64, &["a", "--", bin, "run", "b", "--", bin, "run", "a", "--", "true"]);
    assert!(
        said.starts_with("fencelock: \"a\" on file://") && said.contains("already held"),
        "{said}"
    );
    let nested = ["a", "--", bin, "run", "b", "--", bin, "run", "c", "--", "sh", "-c", "exit 5"];
    assert_eq!(here.code(&nested), 5, "others nest");
    let elsewhere = format!("file://{}", here.path("elsewhere").display());
    let nested = ["a", "--", bin, "run", "--url", &elsewhere, "a", "--", "sh", "-c", "exit 6"];
    assert_eq!(here.code(&nested), 6, "another store's is another lock");
    let link = here.path("link");
    std::os::unix::fs::symlink(here.path("locks"), &link).unwrap();
    let link = format!("file://{}", link.display());
    let nested = ["a", "--", bin, "run", "--url", &link, "a", "--", "true"];
    assert_eq!(here.code(&nested), 64, "the same directory by another name");
    // A reader in itself waits for a writer that came between, if one did.
    let readers = |inner: &[&'static str]| {
        [&["-s", "a", "--", bin, "run"], inner, &["a", "--", "sh", "-c", "exit 7"]].concat()
    };
    assert_eq!(here.code(&readers(&["-s", "-n"])), 7);
    assert_eq!(here.code(&readers(&["-s", "-w", "20"])), 7);
    assert!(here.fails(64, &readers(&["-s"])).contains("limit that by -w"));
    assert_eq!(here.code(&readers(&["-n"])), 64, "a writer in a reader");
}

#[test]
fn the_status_file_is_for_monitoring() {
    let here = Scratch::new();
    let status = |arguments: &[&str]| {
        let mut all = vec!["--status-json", "status"];
        all.extend(arguments);
        let code = here.code(&all);
        let value: Value =
            serde_json::from_slice(&std::fs::read(here.path("status")).unwrap()).unwrap();
        assert_eq!(value["exit_code"], code);
        value
    };
    let value =
        status(&["--hold-at-least", "100ms", "job", "--", "sh", "-c", "cp status seen; exit 3"]);
    assert_eq!((&value["name"], &value["outcome"]), (&"job".into(), &"exited".into()));
    assert_eq!(value["store"], here.url());
    assert_eq!(value["exit_code"], 3);
    // No number: many readers of JSON would round a large one.
    assert!(value["token"].as_str().unwrap().parse::<u64>().unwrap() > 0);
    assert!(value["waited_seconds"].as_f64().unwrap() < 60.0);
    assert!(value["held_seconds"].as_f64().unwrap() >= 0.1);
    let seen: Value = serde_json::from_slice(&std::fs::read(here.path("seen")).unwrap()).unwrap();
    assert_eq!(seen["outcome"], "running", "written at the grant, too");

    let _held = here.hold(&[], "job");
    let value = status(&["-n", "job", "--", "true"]);
    assert_eq!(value["outcome"], "busy");
    assert!(value["holders"][0]["label"].as_str().unwrap().ends_with(" sh"), "{value}");
    assert!(value["message"].as_str().unwrap().contains("busy"), "{value}");
    assert!(value["token"].is_null());
}

#[test]
fn a_status_that_cannot_be_written_does_not_hide_the_exit_code() {
    let here = Scratch::new();
    std::fs::create_dir(here.path("gone")).unwrap();
    let script = "rm -r gone; exit 3";
    let said = here.fails(3, &["--status-json", "gone/status", "job", "--", "sh", "-c", script]);
    assert!(said.contains("cannot write the status"), "{said}");
}

#[test]
fn a_status_file_that_cannot_be_written_is_refused_before_the_command_runs() {
    let here = Scratch::new();
    std::fs::create_dir(here.path("directory")).unwrap();
    // Of another user, where all may make links.
    let (open, link) = (here.path("open"), here.path("open/link"));
    std::fs::create_dir(&open).unwrap();
    std::os::unix::fs::symlink(here.path("precious"), &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(65_534), None).unwrap();
    std::os::unix::fs::symlink("open/link", here.path("ours")).unwrap();
    let refusals = [
        (
            "open/link",
            "open/link: the file cannot be written: open/link is a symbolic link of user 65534",
        ),
        ("ours", "ours: the file cannot be written: open/link is a symbolic link of user 65534"),
        ("no/such/file", "--status-json no/such/file: the file cannot be written: "),
        ("directory", "--status-json directory: the file cannot be written: "),
        ("-", "name a file, or /dev/stderr"),
    ];
    for (mode, (file, says)) in
        [0o1777, 0o775].into_iter().flat_map(|mode| refusals.map(|it| (mode, it)))
    {
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(mode)).unwrap();
        let said = here.fails(64, &["--status-json", file, "job", "--", "touch", "ran"]);
        assert!(said.contains(says), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!here.path("ran").exists(), "{file}");
        assert!(!here.path("-").exists());
    }
}

/// The status of a job that ran to its end, in the only or last line of `text`.
fn last_status(text: &str) -> Value {
    serde_json::from_str(text.lines().last().unwrap_or_default()).expect("a status")
}

#[test]
fn a_device_stays_a_device() {
    let here = Scratch::new();
    let null = here.path("null");
    let made = std::process::Command::new("mknod").arg(&null).args(["c", "1", "3"]).output();
    if !made.is_ok_and(|made| made.status.success()) {
        eprintln!("NOT TESTED: only root can make a device");
        return;
    }
    let link = here.path("link");
    std::os::unix::fs::symlink("null", &link).unwrap();
    for file in ["null", "link"] {
        assert_eq!(here.fails(3, &["--status-json", file, "job", "--", "sh", "-c", "exit 3"]), "");
        let kind = std::fs::symlink_metadata(&null).unwrap().file_type();
        assert!(kind.is_char_device(), "{file}: {kind:?}");
    }
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[test]
fn the_status_goes_through_a_pipe_whose_reader_gets_all_of_it() {
    let here = Scratch::new();
    let pipe = here.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // A pipe without a reader holds nothing up.
    let said = here.fails(3, &["--status-json", "pipe", "job", "--", "sh", "-c", "exit 3"]);
    assert!(said.contains("cannot write the status to pipe"), "{said}");

    let mut reader = crate::support::Job::start(std::process::Command::new("cat").arg(&pipe));
    // Opened for writing without waiting: only possible once the reader has it open.
    crate::support::eventually("the pipe has a reader", || {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        // Kept open, so that the reader continues to read until the job has it open.
        std::fs::File::options().write(true).custom_flags(flags).open(&pipe).is_ok_and(|writer| {
            assert_eq!(here.code(&["--status-json", "pipe", "job", "--", "sh", "-c", "exit 3"]), 3);
            drop(writer);
            true
        })
    });
    let lines = reader.silence();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(last_status(&lines[0])["outcome"], "running");
    assert_eq!(last_status(&lines[1])["exit_code"], 3);
    assert_eq!(reader.code(), 0);
    assert!(std::fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
}

#[test]
fn the_status_can_go_to_the_standard_output() {
    let here = Scratch::new();
    let script = "echo working; exit 3";
    let arguments = ["--status-json", "/dev/stdout", "job", "--", "sh", "-c", script];
    // A pipe, and a file, which must neither be replaced nor written over.
    let piped = String::from_utf8(here.output(&arguments).stdout).unwrap();
    let file = here.path("out");
    std::fs::write(&file, "before\n").unwrap();
    let out = std::fs::File::options().append(true).open(&file).unwrap();
    assert_eq!(here.run(&arguments).stdout(out).status().unwrap().code(), Some(3));
    let written = std::fs::read_to_string(&file).unwrap();
    for (text, first) in [(&piped, 0), (&written, 1)] {
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), first + 3, "{text}");
        assert_eq!(last_status(lines[first])["outcome"], "running");
        assert_eq!(lines[first + 1], "working");
        assert_eq!(last_status(lines[first + 2])["exit_code"], 3);
    }
}

#[test]
fn a_link_to_the_status_stays_a_link() {
    let here = Scratch::new();
    std::fs::create_dir(here.path("elsewhere")).unwrap();
    let (link, target) = (here.path("link"), here.path("elsewhere/status"));
    std::os::unix::fs::symlink("elsewhere/status", &link).unwrap();
    for round in ["a link to nothing", "a link to a file"] {
        assert_eq!(here.code(&["--status-json", "link", "job", "--", "sh", "-c", "exit 3"]), 3);
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink(), "{round}");
        assert!(std::fs::symlink_metadata(&target).unwrap().is_file(), "{round}");
        assert_eq!(last_status(&std::fs::read_to_string(&target).unwrap())["exit_code"], 3);
    }
    let left: Vec<_> = std::fs::read_dir(here.path("elsewhere")).unwrap().collect();
    assert_eq!(left.len(), 1, "no draft is left: {left:?}");
}
