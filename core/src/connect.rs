//! From a URL to a connected store, once for all of them: one attempt after another, until the
//! store answers or the bound has passed.
//!
//! A store that is not there yet, such as a server that is starting or an ensemble that elects its
//! leader, is waited for as one that falls silent later is. Only [`ErrorKind::Unreachable`] is
//! tried again: a refused login or a misspelt parameter stays what it is.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::connected::Connected;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::link::Link;
use crate::locks::Locks;
use crate::options::{Settings, in_words};
use crate::pace::Pace;
use crate::url::{StoreUrl, unknown_scheme};

/// One kind of store that a program was compiled with.
#[derive(Clone, Copy)]
pub struct Scheme {
    /// What a URL of it begins with, the preferred spelling first.
    pub names: &'static [&'static str],
    /// An example for error messages.
    pub example: &'static str,
    /// Makes one attempt to connect. What is wrong with the URL itself is an error before the
    /// first await, so that [`connect_lazy`] can return it.
    pub connect: fn(StoreUrl) -> Connecting,
    /// Why an attempt may have no answer yet, where the store can tell more than that. An error of
    /// the kind [`Busy`](ErrorKind::Busy) says that the store is not at fault: a wait limit that
    /// passes then is that of a wait for a busy lock.
    pub unanswered: Option<fn() -> Option<Error>>,
}

/// A connection under way.
pub type Connecting = Pin<Box<dyn Future<Output = Result<Locks>> + Send>>;

impl fmt::Debug for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheme").field("names", &self.names).finish_non_exhaustive()
    }
}

/// How long the first attempt may take; one that was cut off leaves the next twice as long. A
/// store that is slow to connect gets there, and a lost packet delays nobody for the whole bound.
const FIRST_ATTEMPT: Duration = Duration::from_secs(5);
/// How long the only attempt may take, for those who would not wait.
const ONLY_ATTEMPT: Duration = Duration::from_secs(2);

/// Connects to the store that `url` names, by one of `schemes`. A store that is not reachable is
/// tried again until `unreachable_after` has passed.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for an invalid URL; [`ErrorKind::Unreachable`] with
/// the last attempt's error as its cause; else what the store's connect says. Never shows a
/// password.
///
/// # Cancel safety
/// Cancel safe.
pub async fn connect(schemes: &[Scheme], url: &str) -> Result<Locks> {
    let target = Target::find(schemes, url)?;
    // On the heap, so that the futures of those who connect stay small.
    Box::pin(target.within(Bound::silence(target.settings.unreachable_after))).await
}

/// As [`connect`], but until `limit` has passed, whatever `unreachable_after` says. Zero means one
/// attempt, of at most 2 s.
///
/// # Errors
/// As [`connect`].
///
/// # Cancel safety
/// Cancel safe.
pub async fn connect_within(schemes: &[Scheme], url: &str, limit: Duration) -> Result<Locks> {
    let target = Target::find(schemes, url)?;
    match limit {
        Duration::ZERO => Box::pin(target.once()).await,
        limit => Box::pin(target.within(Bound::limit(limit, limit))).await,
    }
}

/// Returns at once and connects in the background, for as long as it takes. Until then each
/// acquisition waits for the connection as it waits for a store that does not answer; see
/// [`Locks::ready`].
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for an invalid URL, and outside a tokio runtime.
pub fn connect_lazy(schemes: &[Scheme], url: &str) -> Result<Locks> {
    Link::later(Target::find(schemes, url)?).map(|link| Locks { link })
}

/// How long a connection is waited for.
#[derive(Clone, Copy)]
pub(crate) struct Bound {
    time: Duration,
    why: Why,
}

#[derive(Clone, Copy)]
enum Why {
    /// No store may be silent for longer.
    Silence(Duration),
    /// The caller waits no longer.
    Limit(Duration),
}

impl Bound {
    pub(crate) fn silence(time: Duration) -> Bound {
        Bound { time, why: Why::Silence(time) }
    }

    /// Of this wait limit, `left` is left.
    pub(crate) fn limit(limit: Duration, left: Duration) -> Bound {
        Bound { time: left, why: Why::Limit(limit) }
    }

    pub(crate) fn min(self, other: Bound) -> Bound {
        if other.time < self.time { other } else { self }
    }

    /// The error past it; `trouble` is the last attempt's, or what the store says of one that has no
    /// answer.
    pub(crate) fn passed(self, trouble: Option<Error>) -> Error {
        let is_busy = trouble.as_ref().is_some_and(|error| error.kind() == ErrorKind::Busy);
        let kind = match self.why {
            Why::Limit(_) if is_busy => ErrorKind::WaitTimedOut,
            Why::Limit(_) | Why::Silence(_) => ErrorKind::Unreachable,
        };
        let message = match self.why {
            Why::Silence(bound) => {
                format!("no connection within unreachable_after={}", in_words(bound))
            }
            Why::Limit(limit) => {
                format!("no connection within the wait limit of {}", in_words(limit))
            }
        };
        Error::new(kind, message).caused_by(trouble.unwrap_or_else(|| {
            Error::new(ErrorKind::Unreachable, "the first attempt is still unanswered")
        }))
    }

    /// `connection`, or nothing when it takes longer.
    pub(crate) async fn of<T>(self, connection: impl Future<Output = T>) -> Option<T> {
        timeout(self.time, connection).await.ok()
    }
}

/// A store to be connected, in as many attempts as it takes.
pub(crate) struct Target {
    scheme: Scheme,
    url: StoreUrl,
    pub(crate) shown: Arc<str>,
    /// Those common to all stores.
    pub(crate) settings: Settings,
}

impl Target {
    fn find(schemes: &[Scheme], url: &str) -> Result<Target> {
        let url = StoreUrl::parse(url).map_err(|error| error.during(Operation::Connect))?;
        let scheme = schemes.iter().find(|scheme| scheme.names.contains(&url.scheme()));
        let Some(&scheme) = scheme else {
            return Err(unknown_scheme(schemes, url.scheme()).during(Operation::Connect));
        };
        let shown: Arc<str> = url.to_string().into();
        let settings = url.settings();
        let settings = settings.map_err(|e| e.during(Operation::Connect).with_store(&shown))?;
        Ok(Target { scheme, url, shown, settings })
    }

    async fn once(&self) -> Result<Locks> {
        let bound = ONLY_ATTEMPT.min(self.settings.unreachable_after);
        let connected = timeout(bound, self.attempt()).await;
        let connected = connected.unwrap_or_else(|_| {
            let error = cut_off(bound);
            Err(match self.unanswered() {
                Some(cause) => Error::new(cause.kind(), error.message()).caused_by(cause),
                None => error,
            })
        });
        connected.map(Locks::of).map_err(|error| self.explain(error))
    }

    async fn within(&self, bound: Bound) -> Result<Locks> {
        let mut attempts = self.attempts();
        let mut trouble = None;
        let connecting = async {
            loop {
                match attempts.next().await {
                    Err(error) if may_pass(&error) => trouble = Some(error),
                    connected => return connected,
                }
            }
        };
        let connected = bound.of(connecting).await;
        let connected = connected.unwrap_or_else(|| {
            let unanswered = attempts.is_silent.then(|| self.unanswered()).flatten();
            Err(bound.passed(unanswered.or(trouble)))
        });
        connected.map(Locks::of).map_err(|error| self.explain(error))
    }

    fn unanswered(&self) -> Option<Error> {
        self.scheme.unanswered.and_then(|why| why())
    }

    async fn attempt(&self) -> Result<Arc<Connected>> {
        (self.scheme.connect)(self.url.clone()).await?.into_connected().await
    }

    pub(crate) fn attempts(&self) -> Attempts<'_> {
        let (pace, pause) = (Pace::start(), Duration::ZERO);
        Attempts { target: self, pace, pause, bound: FIRST_ATTEMPT, is_silent: true }
    }

    pub(crate) fn explain(&self, error: Error) -> Error {
        error.during(Operation::Connect).with_store(&self.shown)
    }
}

/// Whether another attempt may end better.
pub(crate) fn may_pass(error: &Error) -> bool {
    error.kind() == ErrorKind::Unreachable
}

fn cut_off(bound: Duration) -> Error {
    let message = format!("the store did not answer within {}", in_words(bound));
    Error::new(ErrorKind::Unreachable, message)
}

/// One attempt after another, at a pace.
pub(crate) struct Attempts<'a> {
    target: &'a Target,
    pace: Pace,
    /// Before the next one.
    pause: Duration,
    /// How long the next one may take.
    bound: Duration,
    /// The last one has not been answered.
    is_silent: bool,
}

impl Attempts<'_> {
    /// The next one. Its error is the store's, in the words of its driver.
    pub(crate) async fn next(&mut self) -> Result<Arc<Connected>> {
        if !self.pause.is_zero() {
            sleep(self.pause).await;
        }
        self.pause = self.pace.next(&self.target.settings.label, 0);
        self.is_silent = true;
        let attempt = timeout(self.bound, self.target.attempt()).await;
        self.is_silent = attempt.is_err();
        attempt.unwrap_or_else(|_| {
            let error = cut_off(self.bound);
            self.bound = self.bound.saturating_mul(2);
            Err(error)
        })
    }
}
