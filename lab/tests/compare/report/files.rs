//! The files that are written: the page, the PNG and the schema; and the error when that fails.

use std::collections::HashSet;
use std::path::Path;

use serde_json::Value;

use super::{Report, draw, fencelock, sample, strange};

const SCHEMA: &str = include_str!("../../../../docs/compare.schema.json");

/// What stands after `before`, up to a quote.
fn attributes<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    text.split(before).skip(1).map(|rest| rest.split('"').next().unwrap_or(rest)).collect()
}

#[test]
fn the_page_needs_nothing_from_anywhere() {
    for (name, figures) in strange().into_iter().chain([("sample", sample())]) {
        let page = Report::of(&figures).text();
        let links = attributes(&page, " href=\"");
        assert!(!links.is_empty(), "{name}");
        assert!(links.iter().all(|link| link.starts_with('#')), "{name}: {links:?}");
        for fetches in ["<link", "<img", "<iframe", "<object", "@import", "url(", "<script src"] {
            assert!(!page.contains(fetches), "{name}: {fetches}");
        }
        // Where a URL is in the text it is a store's.
        let (head, _) = page.split_once("<body>").expect("a body");
        assert!(!head.contains("//"), "{name}: {head}");
        assert!(head.contains("default-src 'none'"), "{name}");
        assert!(!head.contains("unsafe"), "{name}");
    }
}

#[test]
fn names_are_text_and_nothing_else() {
    let (_, hostile) =
        strange().into_iter().find(|(name, _)| *name == "hostile names").expect("it");
    let page = Report::of(&hostile).text();
    assert_eq!(page.matches("<script").count(), 1, "ours");
    assert_eq!(page.matches("</style").count(), 1, "ours");
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
}

#[test]
fn what_was_not_measured_says_so() {
    let cases = strange().into_iter().filter(|(name, _)| name.contains("not measured"));
    for (name, figures) in cases {
        let page = Report::of(&figures).text();
        assert!(page.matches("Not measured: ").count() >= 8, "{name}");
        assert!(!page.contains("class=\"drawing\""), "{name}");
    }
}

#[test]
fn what_is_missing_stands_at_the_top() {
    let mut figures = sample();
    figures["was_stopped"] = Value::Bool(true);
    let page = Report::of(&figures).text();
    let (top, _) = page.split_once("<section").expect("a section");
    for missing in
        ["Stopped early", "redis-cluster", "apt-get install redis-server", "did not answer for 5 s"]
    {
        assert!(top.contains(missing), "{missing}");
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

/// Two runs tell orders of magnitude, and 70 samples have no p99 to correct.
#[test]
fn a_quick_page_prefers_no_store_to_another() {
    let usual = Report::of(&sample()).text();
    assert!(usual.contains("medians of 3 runs") && usual.contains("p99, uncorrected"));
    assert!(usual.contains("in all that was measured"));
    let mut figures = sample();
    figures["repeats"] = 2.into();
    let quick = Report::of(&figures).text();
    assert!(quick.contains("two runs") && quick.contains("none is preferred here"));
    for absent in ["medians of", "p99, uncorrected", "in all that was measured", "counts most"] {
        assert!(!quick.contains(absent), "{absent}");
    }
}

#[test]
fn the_page_says_first_what_network_there_was() {
    let lead = |figures: &Value| {
        let page = Report::of(figures).text();
        page.split_once("<section").expect("a section").0.to_owned()
    };
    let mut figures = sample();
    assert!(lead(&figures).contains("no network between them"));
    figures["network"] = serde_json::json!({"round_trip_us": 500.0, "measured_us": 540.0});
    let said = lead(&figures);
    assert!(said.contains("round trips of 500 µs") && said.contains("measured: 540 µs"), "{said}");
    assert!(!said.contains("no network"), "{said}");
}

#[test]
fn what_is_true_of_every_store_is_said_once() {
    let page = Report::of(&sample()).text();
    assert_eq!(page.matches("check the fencing token.").count(), 1);
    assert_eq!(page.matches("Server settings</caption>").count(), 1);
    assert!(!page.contains("Settings and versions"));
    assert!(page.contains("redis-cluster"), "a word about the one that is not there");
    assert!(page.contains("3 JVMs with disks"), "what one must run");
}

#[test]
fn what_is_required_is_a_column_of_ticks_and_an_exit_code() {
    let directory = tempfile::tempdir().expect("a directory");
    let (data, out) = (directory.path().join("data.json"), directory.path().join("page.html"));
    std::fs::write(&data, sample().to_string()).expect("written");
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let required = |list: &str| {
        let output = fencelock(&["--from", &text(&data), "--out", &text(&out), "--require", list]);
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
    std::fs::remove_file(&out).expect("it was written");
    let (code, printed, page) = required("speed>3");
    assert_eq!((code, &*page), (Some(64), ""));
    assert!(printed.contains("handover-p99<5ms") && printed.contains("exclusion"), "{printed}");
}

#[test]
fn the_summary_is_a_png_too() {
    for (name, figures) in strange().into_iter().chain([("sample", sample())]) {
        let report = Report::of(&figures);
        let file = std::fs::File::open(report.page().with_extension("png")).expect("a PNG");
        let decoder = png::Decoder::new(std::io::BufReader::new(file));
        let mut reader = decoder.read_info().expect("a PNG");
        let mut pixels = vec![0; reader.output_buffer_size().expect("its size")];
        reader.next_frame(&mut pixels).expect("a picture");
        let colours: HashSet<&[u8]> = pixels.chunks_exact(3).collect();
        // Ten stores' colours, and those of letters' edges.
        let least = if name == "sample" { 100 } else { 20 };
        assert!(colours.len() > least, "{name}: {} colours", colours.len());
        if name == "sample" {
            assert!(colours.contains(&[0x00, 0x72, 0xb2][..]), "the first store's");
            let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
            std::fs::copy(report.page().with_extension("png"), directory.join("report.png"))
                .expect("kept");
        }
    }
}

#[test]
fn the_schema_in_the_docs_is_the_one_that_is_printed() {
    let printed = String::from_utf8(fencelock(&["--schema"]).stdout).expect("text");
    assert!(
        printed == SCHEMA,
        "docs/compare.schema.json is old: fencelock compare --schema > docs/compare.schema.json"
    );
}

#[test]
fn the_schema_takes_what_is_written_and_nothing_less() {
    let schema = serde_json::from_str(SCHEMA).expect("JSON");
    let schema = jsonschema::validator_for(&schema).expect("a schema");
    for (name, figures) in strange().into_iter().chain([("sample", sample())]) {
        let errors: Vec<String> = schema.iter_errors(&figures).map(|it| it.to_string()).collect();
        assert!(errors.is_empty(), "{name}: {errors:?}");
    }
    let mut less = sample();
    less["stores"][0].as_object_mut().expect("a store").remove("settings");
    assert!(!schema.is_valid(&less));
    let mut other = sample();
    other["seed"] = "none".into();
    assert!(!schema.is_valid(&other));
}

#[test]
fn an_error_says_which_file_and_what_was_expected() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data.json");
    let out = directory.path().join("no/such/report.html");
    let complaint = |figures: &str, out: &Path| {
        std::fs::write(&data, figures).expect("written");
        let said = draw(&data, out);
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
