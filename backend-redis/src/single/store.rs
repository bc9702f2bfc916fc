//! One connected store, and what its claims ask of it.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{BootClock, Claim, Profile, Removal, Result};
use redis::Value;

use super::notifications::Notifications;
use crate::protocol::call::ScriptCall;
use crate::protocol::identity::{ClientId, Identity, Keys};
use crate::protocol::script::SCRIPTS;
use crate::protocol::snapshot::{self, LockContents};
use crate::server::node::Watched;
use crate::server::topology::Server;

/// How often the first in the queue looks behind a client of another library.
const FOREIGN_LOOK: Duration = Duration::from_millis(50);

/// One connected store.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) server: Server,
    pub(crate) clock: BootClock,
    pub(crate) client: ClientId,
    pub(crate) notifications: Arc<Notifications>,
    pub(crate) profile: Profile,
}

impl Store {
    /// Takes an identity, the first of `values`, out of the lock or its queue.
    pub(crate) async fn release(&self, keys: &Keys, values: &[&[u8]]) -> Result<Removal> {
        let call = ScriptCall { script: &SCRIPTS.release, keys: &keys.all(), values };
        match self.server.call(call).await? {
            Value::Int(1) => Ok(Removal::Removed),
            Value::Int(0) => Ok(Removal::Absent),
            _ => Err(self.server.protocol_error(keys.lock(), "release")),
        }
    }

    /// The lock is held by a client of another library, whose release tells nobody; `claim` is the
    /// first to get it then. Asks the server to tell when the key changes; when to look again.
    pub(crate) async fn watch_foreign(&self, keys: &Keys, claim: &Arc<Claim>) -> Duration {
        self.notifications.watch(keys.lock(), claim);
        match self.server.watch(keys.lock()).await {
            // It went before the server began to watch it.
            Ok(Watched::Free) => Duration::from_millis(1),
            // Told or not: a push can be lost, and an ACL may not allow to be told.
            Ok(Watched::Held) | Err(_) => FOREIGN_LOOK,
        }
    }

    /// What the store has of this process that nobody here knows was put there by an attempt that
    /// arrived after its claim's release. Nobody else would ever take it away.
    pub(crate) async fn release_if_stray(&self, keys: &Keys, identity: &[u8]) -> Result<()> {
        let known = Identity::parse(identity).is_none_or(|own| self.notifications.knows(own.owner));
        if !known {
            self.release(keys, &[identity]).await?;
        }
        Ok(())
    }

    /// The holders and waiters of one lock.
    pub(crate) async fn inspect(&self, keys: &Keys) -> Result<LockContents> {
        let values = [snapshot::MOST.as_bytes()];
        let call = ScriptCall { script: &SCRIPTS.inspect, keys: &keys.all(), values: &values };
        let reply = self.server.call(call).await?;
        snapshot::read(reply).ok_or_else(|| self.server.protocol_error(keys.lock(), "inspect"))
    }
}
