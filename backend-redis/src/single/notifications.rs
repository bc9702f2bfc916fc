//! Routes the server's pushes to the live claims of this client, and to its watches of cells.

use async_trait::async_trait;
use fencelock_core::Result;
use fencelock_core::backend::program;
use fencelock_core::backend::{CellWatches, ClaimRegistry};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};
use uuid::Uuid;

use super::last_server::LastServer;
use crate::connection::PushHandler;
use crate::protocol::error::explain;

/// Those whom pushes wake.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    /// All claims, by their owner; core releases them.
    pub(super) claims: ClaimRegistry<Uuid>,
    /// The first waiters for locks that clients of other libraries hold, by the lock's key.
    pub(super) watchers: ClaimRegistry<String>,
    /// Those who watch cells.
    pub(super) cells: CellWatches,
    pub(super) server: LastServer,
}

#[async_trait]
impl PushHandler for Notifications {
    async fn on_connect(&self, connection: &mut MultiplexedConnection) -> Result<()> {
        let mut commands = Pipeline::with_capacity(2);
        // OPTIN: only keys that are watched one by one. If the ACL denies it, foreign locks and cells
        // are only polled.
        commands.cmd("CLIENT").arg("TRACKING").arg("ON").arg("OPTIN").cmd("INFO");
        let replies = connection.send_packed_commands(&commands, 0, 2).await;
        let mut replies = replies.map_err(explain)?.into_iter();
        if let Some(Err(error)) = replies.next().map(Value::extract_error) {
            program::call(|| tracing::debug!(%error, "the server does not notify of changed keys"));
        }
        self.server.meet(replies.next().unwrap_or(Value::Nil)).map(drop)
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
