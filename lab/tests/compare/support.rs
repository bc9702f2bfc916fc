//! `fencelock compare` in a directory of its own, and what it leaves there.

use std::process::{Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

pub(crate) fn command(directory: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencelock-lab"));
    command.arg("compare").args(arguments).args(["--json", "figures.json"]);
    command.current_dir(directory.path()).env_remove("RUST_LOG").kill_on_drop(true);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Exit code and all that was said.
pub(crate) fn said(output: &Output) -> (i32, String) {
    let said = [&output.stdout[..], &output.stderr].concat();
    (output.status.code().expect("it exits"), String::from_utf8_lossy(&said).into_owned())
}

pub(crate) async fn run(directory: &TempDir, arguments: &[&str]) -> (i32, String) {
    said(&command(directory, arguments).output().await.expect("it runs"))
}

/// What `--json` wrote, which is what the schema says.
pub(crate) fn figures(directory: &TempDir) -> Value {
    let text = std::fs::read(directory.path().join("figures.json")).expect("figures");
    let figures = serde_json::from_slice(&text).expect("JSON");
    let schema = include_str!("../../../docs/compare.schema.json");
    let schema = serde_json::from_str(schema).expect("JSON");
    let schema = jsonschema::validator_for(&schema).expect("a schema");
    let errors: Vec<String> = schema.iter_errors(&figures).map(|it| it.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    figures
}

pub(crate) fn page(directory: &TempDir) -> String {
    let at = |name: &str| directory.path().join(name);
    let picture = std::fs::read(at("fencelock-compare.png")).expect("a picture");
    assert!(picture.starts_with(b"\x89PNG"));
    std::fs::read_to_string(at("fencelock-compare.html")).expect("a page")
}

pub(crate) fn count(value: &Value, what: &str) -> u64 {
    value[what].as_u64().unwrap_or_else(|| panic!("no {what} in {value:#}"))
}
