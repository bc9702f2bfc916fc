//! What is wrong with a `#[locked]` is said at its place, with what was expected.
//!
//! The compiler gets the programs in `messages`, which have one mistake for each function, and the library
//! that cargo has built for this program: nothing else is compiled.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

use serde_json::Value;

/// A message that the compiler adds wherever a macro is involved.
const OF_EVERY_MACRO: &str = "this error originates";

/// The libraries named `fencelock` next to this program, the newest first.
fn libraries(directory: &Path) -> Vec<PathBuf> {
    let entries = directory.read_dir().expect("a directory").map(|entry| entry.expect("an entry"));
    let mut found: Vec<(SystemTime, PathBuf)> = entries
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("libfencelock-") && name.ends_with(".rlib")
        })
        .map(|entry| (entry.metadata().and_then(|it| it.modified()).expect("a time"), entry.path()))
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

fn compile(program: &Path, directory: &Path, library: &Path) -> Output {
    let out = tempfile::tempdir().expect("a directory");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition=2024", "--emit=metadata", "--error-format=json", "--out-dir"]);
    rustc.arg(out.path()).arg("-L").arg(format!("dependency={}", directory.display()));
    rustc.arg("--extern").arg(format!("fencelock={}", library.display()));
    rustc.arg(program).output().expect("rustc runs")
}

/// One line for each error or warning: where it begins, where it has ended, its text, and in brackets what
/// the compiler adds.
fn said(compiled: &Output) -> String {
    let lines = String::from_utf8_lossy(&compiled.stderr);
    let messages = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    messages.filter_map(|message| line(&message)).collect()
}

fn line(message: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    // The last message only counts the others.
    let place = message["spans"].as_array()?.iter().find(|span| span["is_primary"] == true)?;
    let at = |edge: &str| {
        format!("{}:{}", place[&*format!("line_{edge}")], place[&*format!("column_{edge}")])
    };
    let notes = message["children"].as_array()?.iter();
    let notes =
        notes.filter(|note| note["level"] == "note" && note["spans"] == Value::Array(vec![]));
    let notes =
        notes.map(|note| text(&note["message"])).filter(|it| !it.starts_with(OF_EVERY_MACRO));
    let more: Vec<_> = std::iter::once(text(&place["label"])).chain(notes).collect();
    let more = more.into_iter().filter(|it| !it.is_empty()).collect::<Vec<_>>().join("; ");
    let more = if more.is_empty() { more } else { format!(" [{more}]") };
    let (level, said) = (text(&message["level"]), text(&message["message"]));
    let line = format!("{} to {}: {level}: {said}{more}", at("start"), at("end"));
    Some(line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n")
}

#[test]
fn what_is_wrong_is_said_at_its_place() {
    let this = std::env::current_exe().expect("a test knows its program");
    let directory = this.parent().expect("it is in target/debug/deps");
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/messages");
    // One that was built with fewer features, by another command, may be the newest. Older than the one that
    // this program is linked to is none that has the attribute: cargo has brought that up to date.
    let fits = |library: &PathBuf| {
        compile(&programs.join("right.rs"), directory, library).status.success()
    };
    let library =
        libraries(directory).into_iter().find(fits).expect("a library with the attribute");
    let mut all = String::new();
    for name in ["arguments", "bodies", "functions", "names", "types", "values"] {
        let compiled = compile(&programs.join(name).with_extension("rs"), directory, &library);
        assert!(!compiled.status.success(), "{name}");
        all += &format!("{name}.rs\n{}", said(&compiled));
    }
    let expected = include_str!("messages/expected.txt");
    assert!(all == expected, "messages/expected.txt should read, if it is right:\n\n{all}");
}
