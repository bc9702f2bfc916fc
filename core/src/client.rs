//! A client: a connected store with its background tasks, shared by its locks and guards.

pub(crate) mod connection;
pub(crate) mod owned_hold;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::claim::cleanup::Reaper;
use crate::renewal::worker::RenewalWorker;
use crate::store::cell_store::Cells;
use crate::store::erased::ErasedStore;
use crate::sync::Mutex;
use crate::telemetry::metrics::Metrics;
use crate::time::moment::Moment;
use crate::types::error::{CLOSED, Error, ErrorKind, Operation, Result, closed, runtime_ended};
use crate::types::name::LockName;
use crate::types::options::{Settings, format_duration};

/// Dropping the last reference ends the renewal worker.
pub(crate) struct ClientInner {
    pub(crate) store: Arc<dyn ErasedStore>,
    pub(crate) redacted_url: Arc<str>,
    pub(crate) settings: Settings,
    pub(crate) worker: Arc<RenewalWorker>,
    /// Notifies the worker of held claims that were woken.
    pub(crate) woken: UnboundedSender<u64>,
    pub(crate) reaper: Arc<Reaper>,
    pub(crate) closing: CancellationToken,
    /// By a call of [`close`](crate::Locks::close). Without it, `closing` means that the runtime ended.
    pub(crate) was_closed: AtomicBool,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) worker_task: AbortHandle,
    /// If the store has them.
    pub(crate) cells: Option<Cells>,
    /// One of each type, made by its first use.
    pub(crate) registries: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

impl Drop for ClientInner {
    fn drop(&mut self) {
        // The task owns the worker and the store but not this client, so it would run for ever.
        self.worker_task.abort();
    }
}

impl ClientInner {
    pub(crate) fn now(&self) -> Moment {
        self.store.clock().now()
    }

    /// What the tasks of this client share of a feature, such as the hand-offs. The client knows none of them.
    pub(crate) fn registry<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut registries = self.registries.lock();
        let known = registries.iter().find_map(|known| known.clone().downcast().ok());
        known.unwrap_or_else(|| {
            let new = Arc::<T>::default();
            registries.push(new.clone());
            new
        })
    }

    /// Adds the operation, the lock and the store to an error.
    pub(crate) fn explain(&self, error: Error, doing: Operation, name: &LockName) -> Error {
        let error = match error.kind() {
            ErrorKind::Closed if error.message() != CLOSED => error,
            ErrorKind::Closed if !self.was_closed.load(Ordering::Relaxed) => runtime_ended(),
            _ => error,
        };
        error.during(doing).on(name.as_str()).with_store(&self.redacted_url)
    }

    /// Sleeps until `at`.
    ///
    /// # Errors
    /// The clock has ended with the runtime that connected: it then ends every sleep early, perhaps before
    /// the closing is signalled.
    pub(crate) async fn sleep_until(&self, at: Moment) -> Result<()> {
        self.store.clock().sleep_until(at).await;
        if self.now() < at { Err(closed()) } else { Ok(()) }
    }

    /// The store's cells.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when it has none.
    pub(crate) fn required_cells(&self) -> Result<&Cells> {
        self.cells.as_ref().ok_or_else(|| {
            let store = self.store.profile().store;
            Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the {store} store has no cells, of which latches, barriers, counters, once() and \
                     elections are made; mem://, file://, postgres://, redis:// (one server, Sentinel, \
                     Cluster) and zk:// have them"
                ),
            )
        })
    }

    /// One bounded request for an operator, unless the client was closed.
    pub(crate) async fn ask<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        if self.closing.is_cancelled() {
            return Err(closed());
        }
        let bound = self.settings.unreachable_after;
        let answer = self.until(self.now() + bound, request).await;
        answer.unwrap_or_else(|| Err(silent(bound, None)))
    }

    /// The output of `request`, or `None` when it takes longer than until `moment`.
    pub(crate) async fn until<T>(
        &self,
        moment: Moment,
        request: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            answer = request => Some(answer),
            () = self.store.clock().sleep_until(moment) => None,
        }
    }
}

/// The store was silent for `bound`; `cause` is its last answer.
pub(crate) fn silent(bound: Duration, cause: Option<Error>) -> Error {
    let bound = format_duration(bound);
    let kind = ErrorKind::given_up_after(cause.as_ref());
    let message = format!("the store gave no useful answer within unreachable_after={bound}");
    Error::new(kind, message).with_cause(cause)
}
