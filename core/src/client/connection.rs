//! The connection that locks share: a connected client, or one that is still connecting in the
//! background while its locks are handed out already.
//!
//! Before the connection there is no clock, no profile and no renewal worker, so no claim exists:
//! an acquisition first waits here, within its own bounds. From then on both kinds are alike.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::client::ClientInner;
use crate::store::distributed_lock::Snapshot;
use crate::store::erased::ErasedStore;
use crate::types::error::{Error, ErrorKind, Operation, Result, closed, runtime_ended};
use crate::types::name::LockName;
use crate::types::options::{Settings, format_duration};

#[derive(Clone)]
pub(crate) enum Connection {
    Ready(Arc<ClientInner>),
    Pending(Arc<Pending>),
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.redacted_url())
    }
}

impl Connection {
    pub(crate) fn settings(&self) -> &Settings {
        match self {
            Connection::Ready(client) => &client.settings,
            Connection::Pending(pending) => &pending.settings,
        }
    }

    /// The store's name in errors.
    pub(crate) fn redacted_url(&self) -> &Arc<str> {
        match self {
            Connection::Ready(client) => &client.redacted_url,
            Connection::Pending(pending) => {
                pending.get().map_or(&pending.redacted_url, |client| &client.redacted_url)
            }
        }
    }

    /// The client, if it is connected.
    pub(crate) fn get(&self) -> Option<&Arc<ClientInner>> {
        match self {
            Connection::Ready(client) => Some(client),
            Connection::Pending(pending) => pending.get(),
        }
    }

    /// The client, once it is connected. An error that another attempt cannot fix ends the wait at
    /// once.
    pub(crate) async fn wait(&self, bound: Bound) -> Result<&Arc<ClientInner>> {
        match self {
            Connection::Ready(client) => Ok(client),
            Connection::Pending(pending) => pending.wait(bound).await,
        }
    }

    /// The client, once it is connected, for what has no bound of its own.
    pub(crate) async fn connected(&self) -> Result<&Arc<ClientInner>> {
        self.wait(Bound::silence(self.settings().unreachable_after)).await
    }

    /// The lock's name and the client, once it is connected, for an operator's request.
    pub(crate) async fn resolved(
        &self,
        name: &str,
        doing: Operation,
    ) -> Result<(LockName, &Arc<ClientInner>)> {
        let name = LockName::with_prefix(&self.settings().prefix, name);
        let name = name.map_err(|error| self.explain(error, doing))?;
        match self.connected().await {
            Ok(client) => Ok((name, client)),
            Err(error) => Err(self.not_connected(error, doing, &name)),
        }
    }

    /// The holders and waiters of `name`, as far as the store knows.
    pub(crate) async fn inspect(&self, name: &str) -> Result<Snapshot> {
        self.seen(name, |store, name| store.inspect(name)).await
    }

    /// Its holders alone.
    pub(crate) async fn inspect_holders(&self, name: &str) -> Result<Snapshot> {
        self.seen(name, |store, name| store.inspect_holders(name)).await
    }

    async fn seen(
        &self,
        name: &str,
        ask: for<'a> fn(&'a dyn ErasedStore, &'a LockName) -> BoxFuture<'a, Result<Snapshot>>,
    ) -> Result<Snapshot> {
        let (name, client) = self.resolved(name, Operation::Inspect).await?;
        let asked = client.ask(ask(&*client.store, &name)).await;
        let mut seen = asked.map_err(|error| client.explain(error, Operation::Inspect, &name))?;
        for token in seen.holders.iter_mut().filter_map(|holder| holder.token.as_mut()) {
            *token = token.in_epoch(client.settings.token_epoch);
        }
        Ok(seen)
    }

    /// Adds the operation and the store to an error.
    pub(crate) fn explain(&self, error: Error, doing: Operation) -> Error {
        error.during(doing).with_store(self.redacted_url())
    }

    /// Why an operation had no connection. A refused attempt to connect names its operation itself.
    pub(crate) fn not_connected(&self, error: Error, doing: Operation, name: &LockName) -> Error {
        match error.operation() {
            Some(_) => error,
            None => self.explain(error, doing).on(name.as_str()),
        }
    }

    /// Stops connecting. Returns the client if one of the attempts has succeeded.
    pub(crate) async fn close(&self) -> Option<&Arc<ClientInner>> {
        if let Connection::Pending(pending) = self {
            pending.progress.closing.cancel();
            let mut last_error = pending.last_error.clone();
            while last_error.changed().await.is_ok() {}
        }
        self.get()
    }
}

/// A client that is connecting in the background. Dropping it ends the attempts.
pub(crate) struct Pending {
    pub(crate) redacted_url: Arc<str>,
    pub(crate) settings: Settings,
    pub(crate) progress: Arc<Progress>,
    /// The last attempt's error. Its sender is gone when no attempt will follow.
    pub(crate) last_error: watch::Receiver<Option<Error>>,
    pub(crate) task: Option<AbortHandle>,
}

impl Pending {
    fn get(&self) -> Option<&Arc<ClientInner>> {
        self.progress.connected.get()
    }

    async fn wait(&self, bound: Bound) -> Result<&Arc<ClientInner>> {
        let mut errors = self.last_error.clone();
        let mut last = errors.borrow_and_update().clone();
        self.progress.wanted.notify_one();
        let waiting = async {
            while errors.changed().await.is_ok() {
                last = errors.borrow_and_update().clone();
                if let Some(error) = last.as_ref().filter(|error| !is_transient(error)) {
                    return Err(error.clone());
                }
            }
            let ended = || match self.progress.closing.is_cancelled() {
                true => closed(),
                false => runtime_ended(),
            };
            self.get().ok_or_else(ended)
        };
        let connected = bound.limit(waiting).await;
        connected.unwrap_or_else(|| Err(bound.exceeded(last)))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.task.iter().for_each(AbortHandle::abort);
    }
}

/// The state that the background task shares with the callers that wait for it.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) connected: OnceLock<Arc<ClientInner>>,
    /// A caller waits for the connection.
    pub(crate) wanted: Notify,
    pub(crate) closing: CancellationToken,
}

/// Whether another attempt to connect may succeed.
pub(crate) fn is_transient(error: &Error) -> bool {
    error.kind() == ErrorKind::Unreachable
}

/// How long a caller waits for a connection.
#[derive(Clone, Copy)]
pub(crate) struct Bound {
    time: Duration,
    reason: Reason,
}

#[derive(Clone, Copy)]
enum Reason {
    /// `unreachable_after`: no store may be silent for longer.
    Silence(Duration),
    /// The caller's wait limit.
    WaitLimit(Duration),
}

impl Bound {
    pub(crate) fn silence(time: Duration) -> Bound {
        Bound { time, reason: Reason::Silence(time) }
    }

    /// A wait limit of which `left` is left.
    pub(crate) fn wait_limit(limit: Duration, left: Duration) -> Bound {
        Bound { time: left, reason: Reason::WaitLimit(limit) }
    }

    pub(crate) fn min(self, other: Bound) -> Bound {
        if other.time < self.time { other } else { self }
    }

    /// The error after the bound; `cause` is the last attempt's error, or the store's explanation of
    /// an attempt that is still unanswered.
    pub(crate) fn exceeded(self, cause: Option<Error>) -> Error {
        let is_busy = cause.as_ref().is_some_and(|error| error.kind() == ErrorKind::Busy);
        let (kind, bound) = match self.reason {
            Reason::Silence(bound) => {
                let bound = format!("unreachable_after={}", format_duration(bound));
                (ErrorKind::Unreachable, bound)
            }
            Reason::WaitLimit(limit) => {
                let kind = if is_busy { ErrorKind::WaitTimedOut } else { ErrorKind::Unreachable };
                (kind, format!("the wait limit of {}", format_duration(limit)))
            }
        };
        Error::new(kind, format!("no connection within {bound}")).caused_by(cause.unwrap_or_else(
            || Error::new(ErrorKind::Unreachable, "the first attempt is still unanswered"),
        ))
    }

    /// The output of `connecting`, or `None` when the bound is exceeded first.
    pub(crate) async fn limit<T>(self, connecting: impl Future<Output = T>) -> Option<T> {
        timeout(self.time, connecting).await.ok()
    }
}
