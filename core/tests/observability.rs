//! What operators see: metrics with their labels, and spans that carry the fencing token.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencelock_core::memory::Memory;
use fencelock_core::{Label, Settings};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tracing_subscriber::fmt::format::FmtSpan;

fn settings() -> Settings {
    Settings::default().label(Label::new("test"))
}

/// Every metric as `name{label=value,…}` with a number: histograms count their records.
fn seen(snapshotter: &Snapshotter) -> Vec<(String, f64)> {
    let metrics = snapshotter.snapshot().into_vec();
    let one = |(key, _, _, value): (metrics_util::CompositeKey, _, _, DebugValue)| {
        let (_, key) = key.into_parts();
        let labels: Vec<_> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let number = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(gauge) => gauge.into_inner(),
            DebugValue::Histogram(records) => records.len() as f64,
        };
        (format!("{}{{{}}}", key.name(), labels.join(",")), number)
    };
    metrics.into_iter().map(one).collect()
}

#[tokio::test(start_paused = true)]
async fn metrics_tell_waits_holds_outcomes_and_losses() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    // Installed after the store was connected, as a program may.
    let locks = Memory::new().locks(settings()).unwrap();
    let _installed = metrics::set_default_local_recorder(&recorder);

    let guard = locks.lock("a").acquire().await.unwrap();
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    let limited = locks.lock("a").wait_at_most(Duration::from_millis(5));
    assert!(limited.acquire().await.is_err());
    guard.release().await.unwrap();
    let reader = locks.rw_lock("a").read().hold_at_most(Duration::from_secs(1));
    let reader = reader.acquire().await.unwrap();
    reader.lost().await;
    let _permit = locks.semaphore("s", 2).acquire().await.unwrap();

    let seen = seen(&snapshotter);
    for expected in [
        ("fencelock_acquisitions_total{store=memory,mode=exclusive,outcome=granted}", 1.0),
        ("fencelock_acquisitions_total{store=memory,mode=exclusive,outcome=busy}", 1.0),
        ("fencelock_acquisitions_total{store=memory,mode=exclusive,outcome=timed_out}", 1.0),
        ("fencelock_wait_seconds{store=memory,mode=exclusive}", 1.0),
        ("fencelock_hold_seconds{store=memory,mode=exclusive}", 1.0),
        ("fencelock_waiting{store=memory,mode=exclusive}", 0.0),
        ("fencelock_held{store=memory,mode=exclusive}", 0.0),
        ("fencelock_held{store=memory,mode=permits}", 1.0),
        ("fencelock_lost_total{store=memory,mode=shared,reason=hold_limit}", 1.0),
    ] {
        let expected = (expected.0.to_owned(), expected.1);
        assert!(seen.contains(&expected), "{expected:?} not in {seen:#?}");
    }
    assert!(!seen.iter().any(|(key, _)| key.contains("lock=")), "names only on request");
}

#[tokio::test(start_paused = true)]
async fn metrics_name_the_lock_on_request_and_time_renewals() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _installed = metrics::set_default_local_recorder(&recorder);
    let locks = Memory::new().locks(settings().metrics_by_lock(true)).unwrap();
    let guard = locks.lock("orders/42").acquire().await.unwrap();
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(guard.is_held());
    let seen = seen(&snapshotter);
    let held = "fencelock_held{store=memory,mode=exclusive,lock=orders/42}".to_owned();
    assert!(seen.contains(&(held, 1.0)), "{seen:#?}");
    let renewals = seen.iter().find(|(key, _)| key == "fencelock_renewal_seconds{store=memory}");
    assert_eq!(renewals.unwrap().1, 1.0);
}

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no writer panics").clone()).expect("UTF-8")
    }
}

/// Catches what this thread logs, and a line whenever a span closes.
fn capture() -> (Captured, tracing::subscriber::DefaultGuard) {
    let captured = Captured::default();
    let writer = captured.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let default = tracing::subscriber::set_default(subscriber);
    (captured, default)
}

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no writer panics").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn spans_carry_the_token_and_a_loss_is_a_warning() {
    let (captured, _default) = capture();
    let locks = Memory::new().locks(settings()).unwrap();
    let guard = locks.lock("a").acquire().await.unwrap();
    guard.run(async { tracing::info!("working") }).await.unwrap();
    guard.release().await.unwrap();
    let short = locks.lock("b").fixed_lease(Duration::from_millis(100)).acquire().await.unwrap();
    short.lost().await;

    let text = captured.text();
    for expected in [
        r#"acquire{lock=a store="memory" mode=exclusive token=1}: fencelock: close"#,
        r#"hold{lock=a store="memory" mode=exclusive token=1}: observability: working"#,
        r#"release{lock=a store="memory" token=1}: fencelock: close"#,
        r#"lock lost lock=b token=2 reason="expired""#,
    ] {
        assert!(text.contains(expected), "{expected} not in:\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_callers_span_is_left_alone_and_outlives_no_acquisition() {
    use tracing::Instrument;

    let (captured, _default) = capture();
    let locks = Memory::new().locks(settings()).unwrap();
    // Named as the fields of the spans inside it are.
    let request =
        tracing::info_span!("request", token = tracing::field::Empty, lock = tracing::field::Empty);
    let acquiring = async { locks.lock("a").acquire().await.unwrap() };
    let guard = acquiring.instrument(request).await;
    let before = captured.text();
    assert!(before.contains("request:acquire{lock=a"), "closed with the grant:\n{before}");
    guard.run(async { tracing::info!("working") }).await.unwrap();
    guard.release().await.unwrap();

    let text = captured.text();
    assert!(text.contains("request:hold{lock=a"), "the hold is the caller's:\n{text}");
    assert!(!text.contains("request{"), "the caller's span got a field:\n{text}");
    let nested = |line: &str| line.contains("acquire{") && line.contains("hold{");
    assert!(!text.lines().any(nested), "a hold within an acquisition:\n{text}");
}
