//! The state of a client, and what several of its parts ask.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{BootClock, Clock, LockName, Moment, Profile, Result};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tokio_util::task::AbortOnDropHandle;

use crate::batch::BatchingSession;
use crate::error::closed;
use crate::notifications::Notifications;
use crate::statements::Function;

/// How often waiters are checked together, unless one is due sooner.
pub(crate) const CHECK_AGAIN: Duration = Duration::from_secs(1);

/// How often, where no notification arrives, in the first seconds of a wait: then it costs no more than with them, and a
/// hand-over that has been waited for so long takes up to a second.
const CHECK_WITHOUT_PUSHES: Duration = Duration::from_millis(100);
const CHECK_OFTEN_FOR: Duration = Duration::from_secs(4);

/// The state of a client.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) server: Arc<BatchingSession>,
    pub(crate) clock: BootClock,
    pub(crate) notifications: Arc<Notifications>,
    pub(crate) profile: Profile,
    pub(crate) _tidying: AbortOnDropHandle<()>,
}

impl Store {
    /// Calls a function, alone.
    pub(crate) async fn call(
        &self,
        function: Function,
        arguments: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        let session = self.server.session.active().await?;
        session.call(&self.server.options, function, arguments).await
    }

    /// Calls a function whose answer may be long, on a task of its own: the connection reads no further
    /// answer while a part of one is not taken, and the caller's future may not be polled for long.
    pub(crate) async fn call_apart(&self, function: Function, name: &LockName) -> Result<Vec<Row>> {
        let (server, key) = (self.server.clone(), name.key().as_bytes().to_vec());
        let reading = async move {
            let session = server.session.active().await?;
            session.call(&server.options, function, &[&key]).await
        };
        let task = AbortOnDropHandle::new(self.server.options.runtime.spawn(reading));
        // Only the end of the runtime ends it before its answer.
        task.await.unwrap_or_else(|_| Err(closed()))
    }

    /// When to check a waiter, of which the server says so many ms.
    pub(crate) fn check_after(&self, ms: u64, waiting_since: Moment) -> Duration {
        let asked = Duration::from_millis(ms.max(1));
        asked.min(self.check_again(waiting_since))
    }

    /// When to check any waiter.
    pub(crate) fn check_again(&self, waiting_since: Moment) -> Duration {
        let is_new = || self.clock.now().duration_since(waiting_since) < CHECK_OFTEN_FOR;
        match self.server.session.is_direct() {
            false if is_new() => CHECK_WITHOUT_PUSHES,
            _ => CHECK_AGAIN,
        }
    }
}
