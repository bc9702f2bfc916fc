//! From a URL to a connected store, once for all of them: one attempt after another, until the
//! store answers or the bound has passed.
//!
//! The core waits for a store that is not there yet, such as a server that is starting or an
//! ensemble that elects its leader, as for one that falls silent later. Only
//! [`ErrorKind::Unreachable`] is retried: a refused login or a misspelt parameter is final.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::mistake::nearest_scheme;
use super::store_url::StoreUrl;
use crate::backend::{current_runtime, invalid};
use crate::client::ClientInner;
use crate::client::connection::{Bound, Connection, Pending, Progress, is_transient};
use crate::locks::Locks;
use crate::telemetry::program;
use crate::time::backoff::Backoff;
use crate::types::error::{Error, ErrorKind, Operation, Result};
use crate::types::options::{Settings, format_duration};

/// One kind of store that a program was compiled with.
#[derive(Clone, Copy)]
pub struct Scheme {
    /// The schemes of its URLs, the preferred spelling first.
    pub names: &'static [&'static str],
    /// An example for error messages.
    pub example: &'static str,
    /// Makes one attempt to connect. An error in the URL itself is returned before the first await,
    /// so that [`connect_lazy`] can report it.
    pub connect: fn(StoreUrl) -> Connecting,
    /// Explains why an attempt is still unanswered, where the store knows. An error of kind
    /// [`Busy`](ErrorKind::Busy) means that the store is not at fault: a wait limit that ends then is
    /// reported as for a busy lock.
    pub unanswered: Option<fn() -> Option<Error>>,
}

/// An attempt to connect.
pub type Connecting = Pin<Box<dyn Future<Output = Result<Locks>> + Send>>;

impl fmt::Debug for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheme").field("names", &self.names).finish_non_exhaustive()
    }
}

/// The time limit of the first attempt; each attempt that exceeds its limit doubles that of the
/// next. A store that is slow to connect gets there, and a lost packet costs no caller the whole
/// bound.
const FIRST_ATTEMPT: Duration = Duration::from_secs(5);
/// The time limit of the only attempt, for a wait limit of zero: longer than the stores' own of 2 s for a login, after
/// which they say what is wrong.
const ONLY_ATTEMPT: Duration = Duration::from_millis(2500);

/// Connects to the store that `url` names, by one of `schemes`, as `fencelock::connect` does.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for an invalid URL, and outside a tokio runtime;
/// [`ErrorKind::Unreachable`] with the last attempt's error as its cause; other errors of the store
/// as they are. Never shows a password.
///
/// # Cancel safety
/// Cancel safe.
pub async fn connect(schemes: &[Scheme], url: &str) -> Result<Locks> {
    connect_with(schemes, url, Settings::default()).await
}

/// As [`connect`], with the settings that hold where no parameter of the URL says otherwise.
///
/// # Errors
/// As [`connect`].
///
/// # Cancel safety
/// Cancel safe.
pub async fn connect_with(schemes: &[Scheme], url: &str, settings: Settings) -> Result<Locks> {
    let target = Target::find(schemes, url, settings)?;
    target.require_runtime()?;
    // Boxed, so that the futures of callers stay small.
    Box::pin(target.within(Bound::silence(target.settings.unreachable_after))).await
}

/// As [`connect`], but until `limit` has passed, regardless of `unreachable_after`. Zero means one
/// attempt, of at most 2.5 s.
///
/// # Errors
/// As [`connect`].
///
/// # Cancel safety
/// Cancel safe.
pub async fn connect_within(schemes: &[Scheme], url: &str, limit: Duration) -> Result<Locks> {
    let target = Target::find(schemes, url, Settings::default())?;
    target.require_runtime()?;
    match limit {
        Duration::ZERO => Box::pin(target.once()).await,
        limit => Box::pin(target.within(Bound::wait_limit(limit, limit))).await,
    }
}

/// Returns at once and connects in the background, as `fencelock::connect_lazy` does.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for an invalid URL, and outside a tokio runtime.
pub fn connect_lazy(schemes: &[Scheme], url: &str) -> Result<Locks> {
    connect_lazy_with(schemes, url, Settings::default())
}

/// As [`connect_lazy`], with the settings that hold where no parameter of the URL says otherwise.
///
/// # Errors
/// As [`connect_lazy`].
pub fn connect_lazy_with(schemes: &[Scheme], url: &str, settings: Settings) -> Result<Locks> {
    let connection = in_background(Target::find(schemes, url, settings)?)?;
    Ok(Locks { connection })
}

/// A store to connect to, in as many attempts as it takes.
struct Target {
    scheme: Scheme,
    url: StoreUrl,
    redacted_url: Arc<str>,
    /// The settings common to all stores.
    settings: Settings,
}

impl Target {
    fn find(schemes: &[Scheme], url: &str, defaults: Settings) -> Result<Target> {
        let parsed = without_slashes(schemes, url).map_or_else(|| StoreUrl::parse(url), Err);
        let url = parsed.map_err(|error| error.during(Operation::Connect))?;
        let url = url.with_defaults(defaults);
        let scheme = schemes.iter().find(|scheme| scheme.names.contains(&url.scheme()));
        let Some(&scheme) = scheme else {
            return Err(unknown_scheme(schemes, url.scheme()).during(Operation::Connect));
        };
        let redacted_url: Arc<str> = url.to_string().into();
        let settings = url.settings();
        let settings =
            settings.map_err(|e| e.during(Operation::Connect).with_store(&redacted_url))?;
        Ok(Target { scheme, url, redacted_url, settings })
    }

    /// The error that there is no runtime, before a timer would panic for lack of one.
    fn require_runtime(&self) -> Result<Handle> {
        current_runtime().map_err(|error| self.explain(error))
    }

    async fn once(&self) -> Result<Locks> {
        let bound = ONLY_ATTEMPT.min(self.settings.unreachable_after);
        let connected = timeout(bound, self.attempt()).await;
        let connected = connected.unwrap_or_else(|_| {
            let error = no_answer(bound);
            Err(match self.unanswered() {
                Some(cause) => Error::new(cause.kind(), error.message()).caused_by(cause),
                None => error,
            })
        });
        connected.map(Locks::of).map_err(|error| self.explain(error))
    }

    async fn within(&self, bound: Bound) -> Result<Locks> {
        let mut attempts = self.attempts();
        let mut last_error = None;
        let connecting = async {
            loop {
                match attempts.next().await {
                    Err(error) if is_transient(&error) => last_error = Some(error),
                    connected => return connected,
                }
            }
        };
        let connected = bound.limit(connecting).await;
        let connected = connected.unwrap_or_else(|| {
            let unanswered = attempts.is_unanswered.then(|| self.unanswered()).flatten();
            Err(bound.exceeded(unanswered.or(last_error)))
        });
        connected.map(Locks::of).map_err(|error| self.explain(error))
    }

    fn unanswered(&self) -> Option<Error> {
        self.scheme.unanswered.and_then(|explain| explain())
    }

    async fn attempt(&self) -> Result<Arc<ClientInner>> {
        (self.scheme.connect)(self.url.clone()).await?.connection.connected().await.cloned()
    }

    fn attempts(&self) -> Attempts<'_> {
        let (backoff, pause) = (Backoff::start(), Duration::ZERO);
        // The store refuses one that it does not know, or that is out of bounds.
        let given = self.url.given_params().duration("connect_timeout").ok().flatten();
        // A store may wait for so long for each of two servers, or two answers.
        let bound = given.map_or(FIRST_ATTEMPT, |given| FIRST_ATTEMPT.max(given.saturating_mul(2)));
        Attempts { target: self, backoff, pause, bound, is_unanswered: true }
    }

    fn explain(&self, error: Error) -> Error {
        error.during(Operation::Connect).with_store(&self.redacted_url)
    }
}

fn no_answer(bound: Duration) -> Error {
    let message = format!("the store did not answer within {}", format_duration(bound));
    Error::new(ErrorKind::Unreachable, message)
}

/// One attempt after another, with a backoff between them.
struct Attempts<'a> {
    target: &'a Target,
    backoff: Backoff,
    /// The pause before the next attempt.
    pause: Duration,
    /// The time limit of the next attempt.
    bound: Duration,
    /// The last attempt has not been answered.
    is_unanswered: bool,
}

impl Attempts<'_> {
    /// Makes the next attempt. Its error is the backend's.
    async fn next(&mut self) -> Result<Arc<ClientInner>> {
        if !self.pause.is_zero() {
            sleep(self.pause).await;
        }
        self.pause = self.backoff.next(self.target.settings.seed());
        self.is_unanswered = true;
        let attempt = timeout(self.bound, self.target.attempt()).await;
        self.is_unanswered = attempt.is_err();
        attempt.unwrap_or_else(|_| {
            let error = no_answer(self.bound);
            self.bound = self.bound.saturating_mul(2);
            Err(error)
        })
    }
}

/// Begins to connect to `target` and continues in the background.
///
/// An error in the URL shows before the first attempt has to wait, so that part of the attempt runs
/// here.
fn in_background(target: Target) -> Result<Connection> {
    let runtime = target.require_runtime()?;
    let (redacted_url, settings) = (target.redacted_url.clone(), target.settings.clone());
    let (errors, mut last_error) = watch::channel(None);
    let progress = Arc::new(Progress::default());
    let mut connecting: Pin<Box<dyn Future<Output = ()> + Send>> =
        Box::pin(connect_in_background(progress.clone(), target, errors));
    let first = connecting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    if let Some(error) = last_error.borrow_and_update().as_ref()
        && error.kind() == ErrorKind::InvalidArgument
    {
        return Err(error.clone());
    }
    let task = match first {
        Poll::Ready(()) => None,
        Poll::Pending => Some(runtime.spawn(connecting).abort_handle()),
    };
    let pending = Pending { redacted_url, settings, progress, last_error, task };
    Ok(Connection::Pending(Arc::new(pending)))
}

async fn connect_in_background(
    progress: Arc<Progress>,
    target: Target,
    errors: watch::Sender<Option<Error>>,
) {
    tokio::select! {
        biased;
        () = progress.closing.cancelled() => {}
        connected = until_connected(&progress, &target, &errors) => {
            // This task alone sets it.
            let _ = progress.connected.set(connected);
        }
    }
}

async fn until_connected(
    progress: &Progress,
    target: &Target,
    errors: &watch::Sender<Option<Error>>,
) -> Arc<ClientInner> {
    let mut attempts = target.attempts();
    let mut is_first_error = true;
    loop {
        match attempts.next().await {
            Ok(connected) => return connected,
            Err(error) if is_transient(&error) => {
                if std::mem::take(&mut is_first_error) {
                    let store = &target.redacted_url;
                    program::call(|| {
                        tracing::warn!(target: "fencelock", %store, %error, "not connected yet");
                    });
                }
                errors.send_replace(Some(error));
            }
            Err(error) => {
                errors.send_replace(Some(target.explain(error)));
                // Only an operator can fix that. Each later caller makes another attempt, but a
                // refused login is not repeated while no caller wants the connection.
                progress.wanted.notified().await;
            }
        }
    }
}

fn unknown_scheme(schemes: &[Scheme], given: &str) -> Error {
    // One spelling of each store: the list is for a reader who looks for a store, not for a name.
    let stores = schemes.iter().filter_map(|scheme| scheme.names.first());
    let stores: Vec<String> = stores.map(|name| format!("{name}://")).collect();
    let stores = if stores.is_empty() { "none".to_owned() } else { stores.join(", ") };
    let names = schemes.iter().flat_map(|scheme| scheme.names.iter().copied());
    let hint = nearest_scheme(given, names).map(|near| format!(" (did you mean {near}?)"));
    let hint = hint.unwrap_or_default();
    invalid(format!("no store for {given}://{hint}; stores: {stores}"))
}

/// The error for a URL that lacks the slashes after its scheme. Nothing else of it is repeated: what it
/// contains, such as a password, has no known place.
fn without_slashes(schemes: &[Scheme], url: &str) -> Option<Error> {
    let (given, rest) = url.split_once(':').filter(|(_, rest)| !rest.starts_with("//"))?;
    // `redis:6379` is a host that has the name of a scheme.
    if rest.parse::<u16>().is_ok() {
        return None;
    }
    let given = given.to_ascii_lowercase();
    let scheme = schemes.iter().find(|scheme| scheme.names.contains(&given.as_str()))?;
    let example = scheme.example;
    Some(invalid(format!("invalid store URL: expected // after {given}:, such as {example}")))
}
