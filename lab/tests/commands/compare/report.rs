//! The report, drawn from figures: what the page says, and the error when it cannot be written.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

const SAMPLE: &str = include_str!("sample.json");

pub(super) fn sample() -> Value {
    serde_json::from_str(SAMPLE).expect("JSON")
}

/// A report of these figures, and where it is.
pub(super) struct Report {
    directory: TempDir,
}

impl Report {
    pub(super) fn of(figures: &Value) -> Report {
        let directory = tempfile::tempdir().expect("a directory");
        let from = directory.path().join("data.json");
        std::fs::write(&from, figures.to_string()).expect("written");
        let report = Report { directory };
        let said = draw(&from, &report.page(), &[]);
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        report
    }

    pub(super) fn page(&self) -> PathBuf {
        self.directory.path().join("report.html")
    }

    pub(super) fn text(&self) -> String {
        std::fs::read_to_string(self.page()).expect("a page")
    }
}

fn draw(from: &Path, out: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencelock-lab"));
    command.args(["compare", "--from"]).arg(from).arg("--out").arg(out).args(more);
    command.env_remove("RUST_LOG").output().expect("it runs")
}

/// Extreme but valid figures, each with its name.
pub(super) fn strange() -> Vec<(&'static str, Value)> {
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

/// What stands after `before`, up to a quote.
fn attributes<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    text.split(before).skip(1).map(|rest| rest.split('"').next().unwrap_or(rest)).collect()
}

#[test]
fn every_page_is_whole_and_needs_nothing_from_anywhere() {
    for (name, figures) in strange().into_iter().chain([("sample", sample())]) {
        let page = Report::of(&figures).text();
        let links = attributes(&page, " href=\"");
        assert!(!links.is_empty(), "{name}");
        assert!(links.iter().all(|link| link.starts_with('#')), "{name}: {links:?}");
        for fetches in ["<link", "<img", "<iframe", "<object", "@import", "url(", "<script src"] {
            assert!(!page.contains(fetches), "{name}: {fetches}");
        }
        // Where a URL is in the text it is a store's.
        let (head, body) = page.split_once("<body>").expect("a body");
        assert!(!head.contains("//"), "{name}: {head}");
        assert!(head.contains("default-src 'none'"), "{name}");
        assert!(!head.contains("unsafe"), "{name}");
        // Names are text and nothing else.
        assert_eq!(page.matches("<script").count(), 1, "{name}: ours");
        assert_eq!(page.matches("</style").count(), 1, "{name}: ours");
        assert!(!body.contains("class=\"failed\""), "{name}: a chart could not be drawn");
        // A colour that the style does not map would be nearly black in both modes.
        for attribute in ["fill", "stroke"] {
            let markers: HashSet<&str> =
                attributes(body, &format!(" {attribute}=\"")).into_iter().collect();
            let is_mapped = |it: &&&str| head.contains(&format!("[{attribute}=\"{it}\"]{{"));
            let unmapped: Vec<_> =
                markers.iter().filter(|it| **it != "none" && !is_mapped(it)).collect();
            assert!(unmapped.is_empty(), "{name}: {attribute} {unmapped:?}");
        }
        if name.contains("not measured") {
            assert!(page.matches("Not measured: ").count() >= 8, "{name}");
            assert!(!page.contains("class=\"drawing\""), "{name}");
        }
        if name == "hostile names" {
            assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
        }
    }
}

#[test]
fn what_must_be_known_first_stands_at_the_top() {
    let mut figures = sample();
    figures["was_stopped"] = Value::Bool(true);
    let page = Report::of(&figures).text();
    let (top, _) = page.split_once("<section").expect("a section");
    for first in [
        "Stopped early",
        "redis-cluster",
        "apt-get install redis-server",
        "did not answer for 5 s",
        "no network between them",
    ] {
        assert!(top.contains(first), "{first}");
    }
    figures["network"] = json!({"round_trip_us": 500.0, "measured_us": 540.0});
    let page = Report::of(&figures).text();
    let (top, _) = page.split_once("<section").expect("a section");
    assert!(top.contains("round trips of 500 µs") && top.contains("measured: 540 µs"), "{top}");
    assert!(!top.contains("no network"), "{top}");
}

/// Two runs tell orders of magnitude, and 70 samples have no p99 to correct.
#[test]
fn a_quick_page_prefers_no_store_to_another() {
    let usual = Report::of(&sample()).text();
    assert!(usual.contains("medians of 3 runs") && usual.contains("p99, uncorrected"));
    assert!(usual.contains("in all that was measured"));
    // What is true of every store is said once.
    assert_eq!(usual.matches("check the fencing token.").count(), 1);
    assert_eq!(usual.matches("Server settings</caption>").count(), 1);
    assert!(usual.contains("redis-cluster"), "a word about the one that is not there");
    assert!(usual.contains("3 JVMs with disks"), "what one must run");
    let mut figures = sample();
    figures["repeats"] = 2.into();
    let quick = Report::of(&figures).text();
    assert!(quick.contains("two runs") && quick.contains("none is preferred here"));
    for absent in ["medians of", "p99, uncorrected", "in all that was measured", "counts most"] {
        assert!(!quick.contains(absent), "{absent}");
    }
}

#[test]
fn a_broken_guarantee_is_shown_first() {
    let mut figures = sample();
    figures["stores"][6]["faults"]["lost_with_fencing"] = 2.into();
    figures["stores"][8]["faults"]["overlaps"] = 1.into();
    let page = Report::of(&figures).text();
    assert!(page.contains("2 updates were lost in spite of fencing"));
    assert!(page.contains("1 overlap that its profile does not admit"));
    assert_eq!(page.matches("do not choose it").count(), 2);
}

#[test]
fn what_is_required_is_a_column_of_ticks_and_an_exit_code() {
    let report = Report::of(&sample());
    let (data, out) = (report.directory.path().join("data.json"), report.page());
    let required = |list: &str| {
        let output = draw(&data, &out, &["--require", list]);
        let printed =
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), printed, std::fs::read_to_string(&out).unwrap_or_default())
    };
    let (code, printed, page) = required("exclusion, network, handover-p99<5ms");
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("All requirements are met by: redlock-5, zookeeper."), "{printed}");
    assert!(page.contains("What you require") && page.contains("handover-p99&lt;5ms"));
    for sign in ["✓", "✗", "–"] {
        assert!(page.contains(&format!(">{sign}</span>")), "{sign}");
    }
    let (code, printed, page) = required("exclusion, throughput>99999999/s");
    assert_eq!(code, Some(1), "{printed}");
    assert!(page.contains("No store was seen to meet all requirements."));
}

#[test]
fn an_error_says_which_file_and_what_was_expected() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data.json");
    let out = directory.path().join("no/such/report.html");
    let complaint = |figures: &str, out: &Path| {
        std::fs::write(&data, figures).expect("written");
        let said = draw(&data, out, &[]);
        assert_eq!(said.status.code(), Some(78));
        String::from_utf8(said.stderr).expect("text")
    };
    let figures = sample().to_string();
    let said = complaint(&figures, &out);
    assert!(said.contains("no/such/report.html: expected a file"), "{said}");
    let out = directory.path().join("report.html");
    let said = complaint("{}", &out);
    assert!(said.contains("data.json could not be read: expected what"), "{said}");
    let said = complaint(&figures.replace("\"format\":1", "\"format\":2"), &out);
    assert!(said.contains("its format is 2"), "{said}");
    assert!(!out.exists(), "nothing half written");
}
