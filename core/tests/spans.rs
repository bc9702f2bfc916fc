//! Spans that carry the fencing token, and the warning about a loss.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencelock_core::memory::Memory;
use fencelock_core::{Label, Settings};
use tracing_subscriber::fmt::format::FmtSpan;

/// `tracing` caches for all threads together which subscriber wants a span: one test at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn settings() -> Settings {
    Settings::default().label(Label::new("test"))
}

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no writer panics").clone()).expect("UTF-8")
    }
}

/// Captures what this thread logs, and a line whenever a span closes.
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
    let _alone = ALONE.lock().await;
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
        r#"hold{lock=a store="memory" mode=exclusive token=1}: spans: working"#,
        r#"release{lock=a store="memory" token=1}: fencelock: close"#,
        r#"lock lost lock=b token=2 reason="expired""#,
    ] {
        assert!(text.contains(expected), "{expected} not in:\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_callers_span_is_not_changed_and_holds_are_not_inside_the_acquisition() {
    use tracing::Instrument;

    let _alone = ALONE.lock().await;
    let (captured, _default) = capture();
    let locks = Memory::new().locks(settings()).unwrap();
    // With fields of the same names as those of the spans inside it.
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
