//! Completions and man pages: valid for the programs that read them, and complete.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// The pages, in the order of their names.
const PAGES: [&str; 16] = [
    "fencelock-break.1",
    "fencelock-completions.1",
    "fencelock-elect.1",
    "fencelock-leader.1",
    "fencelock-man.1",
    "fencelock-once.1",
    "fencelock-postgres-schema.1",
    "fencelock-postgres.1",
    "fencelock-redlock-init.1",
    "fencelock-redlock-replace.1",
    "fencelock-redlock-status.1",
    "fencelock-redlock.1",
    "fencelock-run.1",
    "fencelock-show.1",
    "fencelock-tidy.1",
    "fencelock.1",
];

fn fencelock(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencelock"));
    command.args(arguments).env_remove("FENCELOCK_URL").env_remove("RUST_LOG");
    command.output().expect("it runs")
}

/// What it prints.
fn printed(arguments: &[&str]) -> String {
    let output = fencelock(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// What a program that reads `text` complains about. `./test` installs the programs.
fn complaints(program: &str, arguments: &[&str], text: &str) -> String {
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .env("LC_ALL", "C.UTF-8")
        .spawn();
    let mut child = child.unwrap_or_else(|error| panic!("{program}: {error}"));
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || !said.is_empty(), "{program}: {output:?}");
    said
}

#[test]
fn shells_accept_their_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let script = printed(&["completions", shell]);
        for page in PAGES {
            let Some(command) = page.strip_prefix("fencelock-") else { continue };
            let command = command.split(['-', '.']).next().unwrap_or(command);
            assert!(script.contains(command), "{shell}: no {command}");
        }
        assert!(!script.contains("watchdog"), "{shell}: hidden commands stay hidden");
        assert_eq!(complaints(shell, &["-n"], &script), "", "{shell}");
    }
    assert_eq!(fencelock(&["completions", "csh"]).status.code(), Some(64));
}

#[test]
fn readers_of_man_pages_have_no_complaints() {
    let directory = tempfile::tempdir().expect("a directory");
    // It is created.
    let directory = directory.path().join("share/man1");
    let out = directory.to_str().expect("text");
    assert_eq!(printed(&["man", "--out", out]), "");
    let mut names: Vec<String> = fs::read_dir(&directory)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    assert_eq!(names, PAGES);
    for name in names {
        let page = fs::read_to_string(directory.join(&name)).expect("a page");
        assert!(page.contains("\n.SH NAME\nfencelock"), "{name}: {page}");
        // As man(1) calls it, with every warning.
        assert_eq!(complaints("groff", &["-ww", "-z", "-man", "-Kutf8"], &page), "", "{name}");
        assert_eq!(complaints("mandoc", &["-T", "lint", "-W", "error"], &page), "", "{name}");
    }
}

#[test]
fn one_page_is_printed_for_a_pager() {
    let page = printed(&["man"]);
    assert!(page.contains("fencelock\\-run(1)"), "refers to the other pages: {page}");
    let page = printed(&["man", "break"]);
    for part in [".TH FENCELOCK-BREAK 1", ".SH \"EXIT CODES\"\n.nf\n0   taken away", ".SH NOTES"] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    assert!(printed(&["man", "redlock", "init"]).contains(".TH FENCELOCK-REDLOCK-INIT 1"));
    for (wrong, says) in [
        (&["man", "brake"][..], "expected one of: run, once, elect, leader, show, break"),
        (&["man", "run", "away"], "\"run\" has no commands"),
        (&["man", "--out", "/dev/null/man1"], "cannot write man pages to /dev/null/man1"),
    ] {
        let output = fencelock(wrong);
        assert_eq!(output.status.code(), Some(78), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(says), "{output:?}");
    }
}

#[test]
fn help_has_help() {
    let help = printed(&["--help"]);
    for arguments in [&["help"][..], &["help", "--help"], &["help", "-h"]] {
        assert_eq!(printed(arguments), help, "{arguments:?}");
    }
    assert_eq!(printed(&["help", "show", "--help"]), printed(&["show", "--help"]));
    assert_eq!(printed(&["redlock", "help", "--help"]), printed(&["redlock", "--help"]));
    assert_eq!(fencelock(&["help", "nothing"]).status.code(), Some(64));
    // A lock or a command may have that name.
    let url = format!("file://{}", tempfile::tempdir().expect("a directory").path().display());
    let job = ["run", "--url", &url, "help", "--", "sh", "-c", "echo $1", "sh", "--help"];
    assert_eq!(printed(&job), "--help\n");
}
