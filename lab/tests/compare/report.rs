//! The report, drawn from figures: as files, and as a browser shows it.

mod browser;
mod files;
mod looks;
mod tables;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const SAMPLE: &str = include_str!("sample.json");

fn sample() -> Value {
    serde_json::from_str(SAMPLE).expect("JSON")
}

/// A report of these figures, and where it is.
struct Report {
    directory: TempDir,
}

impl Report {
    fn of(figures: &Value) -> Report {
        let directory = tempfile::tempdir().expect("a directory");
        let from = directory.path().join("data.json");
        std::fs::write(&from, figures.to_string()).expect("written");
        let report = Report { directory };
        let said = draw(&from, &report.page());
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        report
    }

    fn page(&self) -> PathBuf {
        self.directory.path().join("report.html")
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.page()).expect("a page")
    }
}

fn fencelock(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencelock-lab"));
    command.arg("compare").args(arguments).env_remove("RUST_LOG");
    command.output().expect("it runs")
}

fn draw(from: &Path, out: &Path) -> Output {
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    fencelock(&["--from", &text(from), "--out", &text(out)])
}

/// Extreme but valid figures, each with its name.
fn strange() -> Vec<(&'static str, Value)> {
    let one = |store: Value| {
        let mut figures = sample();
        figures["stores"] = Value::Array(vec![store]);
        figures
    };
    let stores = || sample()["stores"].as_array().expect("stores").clone();
    let mut nothing = sample();
    nothing["stores"] = Value::Array(Vec::new());
    nothing["left_out"] = Value::Array(Vec::new());
    nothing["was_stopped"] = Value::Bool(true);

    let mut eleven = sample();
    let again = stores()[2].clone();
    eleven["stores"].as_array_mut().expect("stores").push(again);
    eleven["stores"][10]["store"] = "redis://10.0.0.11:6379".into();

    let mut hostile = sample();
    let long = format!("redis://{}.example:6379/?prefix=locks", "very-long-name-".repeat(30));
    for (at, name) in
        ["<script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>", &long, "</style>", ""]
            .into_iter()
            .enumerate()
    {
        hostile["stores"][at]["store"] = name.into();
        hostile["stores"][at]["settings"] = name.into();
        hostile["stores"][at]["timelines"][0]["failure"] = name.into();
        hostile["command"] = format!("fencelock compare {name}").into();
        hostile["left_out"][0]["why"] = name.into();
    }

    vec![
        ("nothing", nothing),
        ("one store", one(stores()[2].clone())),
        ("one store, not measured", one(unmeasured(stores()[2].clone()))),
        ("eleven stores", eleven),
        ("hostile names", hostile),
        ("zeros", one(zeros(stores()[2].clone()))),
    ]
}

fn unmeasured(mut store: Value) -> Value {
    for list in ["own_locks", "one_lock", "shared_locks", "timelines", "flash_sales"] {
        store[list] = Value::Array(Vec::new());
    }
    for stage in ["fixed_rate", "hand_over", "faults", "cost"] {
        store[stage] = Value::Null;
    }
    store
}

/// Every figure 0, lists and texts unchanged.
fn zeros(value: Value) -> Value {
    match value {
        Value::Number(_) => 0.into(),
        Value::Array(values) => values.into_iter().map(zeros).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, zeros(value))).collect()
        }
        other => other,
    }
}
