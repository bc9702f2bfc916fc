//! The table of metrics in `fencelock/docs/metrics.md` is what a recorder gets, or this fails and
//! prints what it should be.

use std::collections::BTreeMap;
use std::time::Duration;

use fencelock::{ErrorKind, LostReason, Memory, Settings};
use metrics_util::MetricKind;
use metrics_util::debugging::DebuggingRecorder;

const PAGE: &str = include_str!("../../docs/metrics.md");
const BEGIN: &str = "<!-- metrics: made by `cargo test -p fencelock --test all metrics` -->\n";
const END: &str = "<!-- end of metrics -->";

/// Makes a client of `mem://` report every metric: grants, waits, renewals, a loss and a hand-off.
async fn use_locks() {
    let locks = Memory::new().locks(Settings::default()).expect("a runtime");
    let guard = locks.lock("a").acquire().await.expect("it is free");
    let limited = locks.lock("a").wait_at_most(Duration::from_secs(11)).acquire().await;
    assert_eq!(limited.expect_err("it is held").kind(), ErrorKind::WaitTimedOut);
    guard.release().await.expect("it is held");
    let short = locks.lock("a").hold_at_most(Duration::from_secs(1)).acquire().await;
    assert_eq!(short.expect("it is free").lost().await, LostReason::HoldLimit);
    let lock = locks.lock("a").local_handoffs(2);
    let turn = async || lock.with(async |_| {}).await.expect("acquired and released");
    tokio::join!(turn(), turn(), turn());
}

/// One row for each metric, in the order of their names.
fn table(recorder: &DebuggingRecorder) -> String {
    let mut rows = BTreeMap::new();
    for (key, unit, description, _) in recorder.snapshotter().snapshot().into_vec() {
        let kind = match key.kind() {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let (_, key) = key.into_parts();
        let labels: Vec<_> = key.labels().map(|label| format!("`{}`", label.key())).collect();
        let name = key.name().to_owned();
        let unit = unit.unwrap_or_else(|| panic!("{name} has no unit")).as_str();
        let means = description.unwrap_or_else(|| panic!("{name} has no description"));
        let row = format!("| `{name}` | {kind} | {unit} | {} | {means} |\n", labels.join(", "));
        rows.insert(name, row);
    }
    let head = "| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n";
    format!("{head}{}", rows.into_values().collect::<String>())
}

#[tokio::test(start_paused = true)]
async fn the_page_lists_every_metric_as_it_is_described() {
    let recorder = DebuggingRecorder::new();
    let _installed = metrics::set_default_local_recorder(&recorder);
    use_locks().await;
    let table = table(&recorder);
    let (_, rest) = PAGE.split_once(BEGIN).expect("the page marks where the table begins");
    let (written, _) = rest.split_once(END).expect("the page marks where the table ends");
    assert!(written == table, "the table in docs/metrics.md should read:\n\n{table}");
}

#[tokio::test(start_paused = true)]
async fn a_recorder_that_is_installed_later_gets_the_descriptions_too() {
    let locks = Memory::new().locks(Settings::default()).expect("a runtime");
    let before = locks.lock("a").acquire().await.expect("it is free");
    let recorders = [DebuggingRecorder::new(), DebuggingRecorder::new()];
    for recorder in &recorders {
        let _installed = metrics::set_default_local_recorder(recorder);
        assert!(locks.lock("a").try_acquire().await.expect("it answers").is_none());
        let seen = recorder.snapshotter().snapshot().into_vec();
        let all_described = seen.iter().all(|(_, _, description, _)| description.is_some());
        assert!(!seen.is_empty() && all_described, "{seen:#?}");
    }
    before.release().await.expect("it is held");
}
