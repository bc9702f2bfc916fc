//! What the command is told, what monitoring is told, and a lock within itself.

use serde_json::Value;

use crate::support::Scratch;

#[test]
fn tells_the_command_which_lock_it_holds() {
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
    let output = here.output(&["a", "--", bin, "run", "b", "--", bin, "run", "a", "--", "true"]);
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.starts_with("fencelock: \"a\" on file://") && said.contains("held already"),
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
}

#[test]
fn the_status_file_tells_monitoring() {
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
    assert!(value["token"].as_u64().unwrap() > 0);
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
    let output = here.output(&["--status-json", "no/such/file", "job", "--", "sh", "-c", "exit 3"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write the status"));
}
