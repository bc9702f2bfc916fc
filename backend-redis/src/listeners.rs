//! Who is told what the server pushes: every claim of this process that has a seat.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use fencelock_core::{Claim, Result};
use redis::Value;
use redis::aio::MultiplexedConnection;
use uuid::Uuid;

use crate::connection::PushHandler;

/// The claims by their owner, and those that wait for a key to change.
///
/// A claim is entered before its first attempt is sent, since a push can overtake the answer.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    claims: Mutex<HashMap<Uuid, Weak<Claim>>>,
    /// By the key of a lock that a foreign client holds: the first in its queue.
    watchers: Mutex<HashMap<String, Weak<Claim>>>,
}

impl Notifications {
    fn claims(&self) -> MutexGuard<'_, HashMap<Uuid, Weak<Claim>>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enter(&self, claim: &Arc<Claim>) {
        self.claims().insert(claim.owner().reveal(), Arc::downgrade(claim));
    }

    pub(crate) fn leave(&self, claim: &Claim) {
        forget(&mut self.claims(), claim);
    }

    /// Whether the claim of `owner` still has a seat, whose release is then core's.
    pub(crate) fn knows(&self, owner: Uuid) -> bool {
        self.claims().contains_key(&owner)
    }

    /// From now on `claim` is rung when the server tells that `key` has changed.
    pub(crate) fn watch(&self, key: &str, claim: &Arc<Claim>) {
        let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        if watchers.len() == watchers.capacity() {
            watchers.retain(|_, watcher| watcher.strong_count() > 0);
        }
        watchers.insert(key.to_owned(), Arc::downgrade(claim));
    }
}

#[async_trait]
impl PushHandler for Notifications {
    async fn on_connect(&self, connection: &mut MultiplexedConnection) -> Result<()> {
        // Only keys that are asked about one by one. Without the right to it, those are looked at
        // more often.
        let mut tracking = redis::cmd("CLIENT");
        tracking.arg("TRACKING").arg("ON").arg("OPTIN");
        if let Err(error) = tracking.query_async::<()>(connection).await {
            tracing::debug!(%error, "the server does not tell of foreign releases");
        }
        Ok(())
    }

    /// Rings the claim that a push names: `owner token`. The token is for people who watch the
    /// channel; the claim asks for its own.
    fn on_message(&self, message: &[u8]) {
        let owner = message.split(|byte| *byte == b' ').next().unwrap_or_default();
        let Ok(owner) = Uuid::try_parse_ascii(owner) else { return };
        let claim = self.claims().get(&owner).and_then(Weak::upgrade);
        if let Some(claim) = claim {
            // A claim that is over is being released by core.
            claim.wake();
        }
    }

    /// It is told once.
    fn on_invalidate(&self, key: &Value) {
        let Value::BulkString(key) = key else { return };
        let Ok(key) = std::str::from_utf8(key) else { return };
        let watcher = {
            let mut watchers = self.watchers.lock().unwrap_or_else(PoisonError::into_inner);
            watchers.remove(key)
        };
        if let Some(claim) = watcher.and_then(|watcher| watcher.upgrade()) {
            claim.wake();
        }
    }

    /// Rings everybody: hand-offs are lost, and perhaps places in queues.
    fn on_gap(&self) {
        let claims: Vec<_> = self.claims().values().filter_map(Weak::upgrade).collect();
        for claim in claims {
            claim.wake();
        }
    }
}

/// Takes a claim out of those that are known by their owner.
pub(crate) fn forget<T>(claims: &mut HashMap<Uuid, T>, claim: &Claim) {
    claims.remove(&claim.owner().reveal());
    // Not for ever as large as the largest crowd.
    if claims.capacity() > 4096 && claims.len() < claims.capacity() / 8 {
        claims.shrink_to_fit();
    }
}
