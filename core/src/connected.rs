//! A connected store with everything that runs beside it, shared by its locks and guards.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::erased::Store;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::keeper::Keeper;
use crate::name::LockName;
use crate::observe::Meters;
use crate::options::{Settings, in_words};
use crate::seat::Yard;
use crate::validity::Moment;

/// Ends the keeper when the last of them is gone.
pub(crate) struct Connected {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) shown: Arc<str>,
    pub(crate) settings: Settings,
    pub(crate) keeper: Arc<Keeper>,
    /// Where held claims that are rung tell the keeper.
    pub(crate) rung: UnboundedSender<u64>,
    pub(crate) yard: Arc<Yard>,
    pub(crate) closing: CancellationToken,
    pub(crate) meters: Arc<Meters>,
    pub(crate) keeper_task: AbortHandle,
}

impl Drop for Connected {
    fn drop(&mut self) {
        // The task holds the keeper and the store, not what is connected: it would live for ever.
        self.keeper_task.abort();
    }
}

impl Connected {
    pub(crate) fn now(&self) -> Moment {
        self.store.clock().now()
    }

    /// An error of this store, about `name`.
    pub(crate) fn explain(&self, error: Error, doing: Operation, name: &LockName) -> Error {
        error.during(doing).on(name.as_str()).with_store(&self.shown)
    }

    /// One request to the store on behalf of a person, unless it was closed.
    pub(crate) async fn ask<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        match self.closing.is_cancelled() {
            true => Err(closed()),
            false => self.bounded(request).await,
        }
    }

    /// Bounds one request to the store that no claim's life cycle bounds.
    pub(crate) async fn bounded<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        let bound = self.settings.unreachable_after;
        let answer = self.until(self.now() + bound, request).await;
        answer.unwrap_or_else(|| Err(silent(bound, None)))
    }

    /// `request`, or nothing when it takes longer than until `moment`.
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

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store was closed, or the runtime that connected ended")
}

/// The store was silent for `bound`; `cause` is what it said last.
pub(crate) fn silent(bound: Duration, cause: Option<Error>) -> Error {
    let bound = in_words(bound);
    let error = Error::new(
        ErrorKind::given_up_after(cause.as_ref()),
        format!("the store gave no useful answer within unreachable_after={bound}"),
    );
    match cause {
        Some(cause) => error.caused_by(cause),
        None => error,
    }
}
