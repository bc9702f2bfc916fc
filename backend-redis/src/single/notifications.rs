//! Routes the server's pushes to the live claims of this client, and to its watches of cells.

use async_trait::async_trait;
use fencelock_core::Result;
use fencelock_core::backend::program;
use fencelock_core::backend::{CellWatches, ClaimRegistry};
use redis::Value;
use redis::aio::MultiplexedConnection;
use uuid::Uuid;

use crate::connection::PushHandler;

/// Those whom pushes wake.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    /// All claims, by their owner; core releases them.
    pub(super) claims: ClaimRegistry<Uuid>,
    /// The first waiters for locks that clients of other libraries hold, by the lock's key.
    pub(super) watchers: ClaimRegistry<String>,
    /// Those who watch cells.
    pub(super) cells: CellWatches,
}

#[async_trait]
impl PushHandler for Notifications {
    async fn on_connect(&self, connection: &mut MultiplexedConnection) -> Result<()> {
        // OPTIN: only keys that are watched one by one. If the ACL denies it, foreign locks and cells
        // are only polled.
        let mut tracking = redis::cmd("CLIENT");
        tracking.arg("TRACKING").arg("ON").arg("OPTIN");
        if let Err(error) = tracking.query_async::<()>(connection).await {
            program::call(|| tracing::debug!(%error, "the server does not notify of changed keys"));
        }
        Ok(())
    }

    /// Wakes the claim that a push names: `owner token`. The token is for humans who monitor the
    /// channel; the claim fetches its own.
    fn on_message(&self, message: &[u8]) {
        let owner = message.split(|byte| *byte == b' ').next().unwrap_or_default();
        let Ok(owner) = Uuid::try_parse_ascii(owner) else { return };
        self.claims.wake(&owner);
    }

    /// Each watch is notified once.
    fn on_invalidate(&self, key: &Value) {
        let Value::BulkString(key) = key else { return };
        let Ok(key) = String::from_utf8(key.clone()) else { return };
        if let Some(claim) = self.watchers.remove(&key) {
            claim.wake();
        }
        self.cells.changed(&key);
    }

    /// Wakes all claims: hand-offs may be lost, and places in queues, too. So may changes of cells.
    fn on_gap(&self) {
        self.claims.wake_all();
        self.cells.all_may_have_changed();
    }
}
