//! The program that a test is: its subscriber calls what the test sets.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use fencelock_core::sync::Mutex;
use futures_util::FutureExt;
use tokio::runtime::Builder;
use tokio::task::yield_now;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// Bounds a test that fails: a thread that waits for itself cannot.
const AT_LAST: Duration = Duration::from_secs(10);

type Hook = Box<dyn FnOnce() + Send>;

/// Calls something once, within an event or at the end of a span.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    at_a_loss: Hooked,
    at_a_span: Hooked,
    at_an_end: Hooked,
    /// All events, as `message field=value …`.
    events: Arc<Mutex<Vec<String>>>,
    /// The text of the events that panic.
    panics_at: Arc<Mutex<Option<&'static str>>>,
}

#[derive(Clone, Default)]
pub(crate) struct Hooked {
    hook: Arc<Mutex<Option<Hook>>>,
    has_returned: Arc<AtomicBool>,
}

impl Hooked {
    pub(crate) fn set(&self, hook: impl FnOnce() + Send + 'static) {
        *self.hook.lock() = Some(Box::new(hook));
    }

    fn call(&self) {
        let hook = self.hook.lock().take();
        if let Some(hook) = hook {
            hook();
            self.has_returned.store(true, Ordering::SeqCst);
        }
    }

    pub(crate) fn assert_called(&self) {
        assert!(self.has_returned.load(Ordering::SeqCst), "it was not called, or panicked");
    }
}

impl Hooks {
    /// Within the event of a loss.
    pub(crate) fn at_a_loss(&self) -> &Hooked {
        &self.at_a_loss
    }

    /// When the span of a hold begins.
    pub(crate) fn at_a_span(&self) -> &Hooked {
        &self.at_a_span
    }

    /// At the end of any span.
    pub(crate) fn at_an_end(&self) -> &Hooked {
        &self.at_an_end
    }

    /// Panics in each event with this text.
    pub(crate) fn panic_at(&self, text: &'static str) {
        *self.panics_at.lock() = Some(text);
    }

    /// The events with this text.
    pub(crate) fn events(&self, text: &str) -> Vec<String> {
        self.events.lock().iter().filter(|event| event.contains(text)).cloned().collect()
    }
}

impl<S: Subscriber> Layer<S> for Hooks {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let panics = self.panics_at.lock().is_some_and(|at| text.0.contains(at));
        self.events.lock().push(text.0);
        assert!(!panics, "a subscriber of the program");
        if event.metadata().fields().field("reason").is_some() {
            self.at_a_loss.call();
        }
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        if attributes.metadata().name() == "hold" {
            self.at_a_span.call();
        }
    }

    fn on_close(&self, _: Id, _: Context<'_, S>) {
        self.at_an_end.call();
    }
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &match field.name() {
            "message" => format!("{value:?} "),
            name => format!("{name}={value:?} "),
        };
    }
}

/// Runs a test on a thread of its own, which is left behind if it hangs.
pub(crate) fn on_a_thread(test: impl AsyncFnOnce(Hooks) + Send + 'static) {
    let (ends, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let hooks = Hooks::default();
        let subscriber = tracing_subscriber::registry().with(hooks.clone());
        let _default = tracing::subscriber::set_default(subscriber);
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
        let played = runtime.unwrap().block_on(AssertUnwindSafe(test(hooks)).catch_unwind());
        let _ = ends.send(played);
    });
    let played = ended.recv_timeout(AT_LAST).expect("the thread waits for itself");
    played.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Lets the other tasks run until all of them wait.
pub(crate) async fn settle() {
    for _ in 0..50 {
        yield_now().await;
    }
}
