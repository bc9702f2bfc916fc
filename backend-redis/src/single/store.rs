//! The state of a client, and the requests of its claims.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::batching::Priority;
use fencelock_core::sync::Mutex;
use fencelock_core::{BootClock, Claim, Profile, ReleaseOutcome, Result};
use futures_util::{StreamExt, stream};
use redis::Value;
use uuid::Uuid;

use super::notifications::Notifications;
use crate::protocol::call::ScriptCall;
use crate::protocol::identity::{ClientId, Identity, Keys};
use crate::protocol::script::SCRIPTS;
use crate::protocol::snapshot::{self, LockContents, MOST};
use crate::server::node::Request;
use crate::server::topology::Server;

/// How often the first waiter checks a lock that a client of another library holds.
const FOREIGN_CHECK: Duration = Duration::from_millis(50);

/// What fits into one call.
const STRAYS_AT_ONCE: usize = 64;

/// The state of a client.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) server: Server,
    pub(crate) clock: BootClock,
    pub(crate) client: ClientId,
    pub(crate) notifications: Arc<Notifications>,
    pub(crate) profile: Profile,
    /// A grant, or a write of a cell, counts only once confirmed by this many replicas.
    pub(crate) replicas: u32,
    /// The keys of cells with a write of this client that the replicas have not confirmed.
    pub(crate) unconfirmed: Mutex<HashSet<String>>,
}

impl Store {
    /// Removes an identity, the first of `values`, from the lock or its queue.
    pub(crate) async fn release(&self, keys: &Keys, values: &[&[u8]]) -> Result<ReleaseOutcome> {
        let call = ScriptCall { script: &SCRIPTS.release, keys: &keys.all(), values };
        let answer = self.server.call(call).await?;
        let was_there = self.read_yes(&answer, keys.lock(), "release")?;
        Ok(if was_there { ReleaseOutcome::Removed } else { ReleaseOutcome::Absent })
    }

    /// Reads the reply of `script` about what is at `key`, which is 1 or 0.
    pub(super) fn read_yes(&self, answer: &Value, key: &str, script: &str) -> Result<bool> {
        match answer {
            Value::Int(1) => Ok(true),
            Value::Int(0) => Ok(false),
            _ => Err(self.server.protocol_error(key, script)),
        }
    }

    /// Watches a lock that a client of another library holds, whose release notifies no waiter, for
    /// `claim`, the first in the queue. Returns when to check again.
    pub(crate) async fn watch_foreign(&self, keys: &Keys, claim: &Arc<Claim>) -> Duration {
        self.notifications.watchers.insert(keys.lock().to_owned(), claim);
        match self.server.send(Request::Watch(keys.lock())).await {
            // It was released before the server began to watch it.
            Ok(Value::Nil) => Duration::from_millis(1),
            // Even if it is watched: a push can be lost, and an ACL may deny the watch.
            Ok(_) | Err(_) => FOREIGN_CHECK,
        }
    }

    /// Whether an identity of this client belongs to no live claim: an attempt that arrived after its claim's release
    /// wrote it, and no other client would ever remove it.
    pub(crate) fn is_stray(&self, identity: &[u8]) -> bool {
        Identity::parse(identity).is_some_and(|own| self.is_over(&own.owner))
    }

    fn is_over(&self, owner: &Uuid) -> bool {
        !self.notifications.claims.contains(owner)
    }

    /// Releases those that are `known`, and all that wait: one after the other they would keep the others out.
    pub(crate) async fn release_strays(&self, keys: &Keys, known: Vec<Vec<u8>>) -> Result<()> {
        let waiting =
            self.contents(keys, MOST).await?.strays(&self.client, |owner| self.is_over(owner));
        let releasing = stream::iter(known.into_iter().chain(waiting)).map(async |stray| {
            let (keys, values) = (&keys.all(), &[stray.as_slice()]);
            let call = ScriptCall { script: &SCRIPTS.release, keys, values };
            // The next check repeats it.
            let _ = self.server.call_as(call, Priority::RollBack).await;
        });
        releasing.buffer_unordered(STRAYS_AT_ONCE).collect::<()>().await;
        Ok(())
    }

    /// The holders of one lock, and up to so many of its waiters.
    pub(crate) async fn contents(&self, keys: &Keys, waiters: &str) -> Result<LockContents> {
        let values = [MOST, waiters].map(str::as_bytes);
        let call = ScriptCall { script: &SCRIPTS.inspect, keys: &keys.all(), values: &values };
        let reply = self.server.call(call).await?;
        snapshot::read(reply).ok_or_else(|| self.server.protocol_error(keys.lock(), "inspect"))
    }
}
