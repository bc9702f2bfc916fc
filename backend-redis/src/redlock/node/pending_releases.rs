//! Releases deferred for an unreachable node, until it is back or the lease has expired.

use std::sync::Arc;

use fencelock_core::batching::Priority;
use fencelock_core::sync::Mutex;
use fencelock_core::{Moment, Result};
use futures_util::{StreamExt, stream};
use redis::Value;

use crate::protocol::call::ScriptCall;
use crate::protocol::identity::Keys;
use crate::redlock::scripts::QUORUM;
use crate::server::batch::{BatchingNode, Ticket};

/// Concurrent releases at one node: enough to keep it busy, few enough not to delay other requests.
pub(crate) const AT_ONCE: usize = 100;

/// What one node may have, and is to be released there once it can be reached again.
#[derive(Debug)]
pub(crate) struct PendingRelease {
    pub(crate) keys: Keys,
    pub(crate) identity: Arc<str>,
    pub(crate) waiter: Arc<str>,
    pub(crate) expires: Moment,
}

/// The deferred releases of one node.
#[derive(Debug, Default)]
pub(crate) struct PendingReleases(Mutex<Vec<PendingRelease>>);

impl PendingReleases {
    pub(super) fn push(&self, release: PendingRelease) {
        self.0.lock().push(release);
    }

    /// Sends every release that has not expired; those that fail stay deferred.
    pub(super) async fn flush(&self, batches: &Arc<BatchingNode>, now: Moment) {
        let all = std::mem::take(&mut *self.0.lock());
        let open = all.into_iter().filter(|release| now < release.expires);
        let sending = stream::iter(open).map(async |release| {
            let PendingRelease { keys, identity, waiter, .. } = &release;
            let (identity, kind) = (identity.as_bytes(), ReleaseKind::Leave);
            if release_round(batches, None, keys, identity, waiter, kind).await.is_err() {
                self.push(release);
            }
        });
        sending.buffer_unordered(AT_ONCE).collect::<()>().await;
    }
}

/// At whose request a round is released, and whether its waiter stays queued.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReleaseKind<'a> {
    /// The claim's own; its waiter leaves the queue.
    Leave,
    /// The claim's own, of a round that was not won; its waiter stays queued with this arrival, unless that is empty.
    RollBack(&'a str),
    /// An operator's: `evict` or `take`.
    Evict(&'a [u8]),
}

/// Removes a round from a node, and its waiter unless that stays; whether the round was there.
pub(crate) async fn release_round(
    batches: &Arc<BatchingNode>,
    ticket: Option<Arc<dyn Ticket>>,
    keys: &Keys,
    identity: &[u8],
    waiter: &str,
    kind: ReleaseKind<'_>,
) -> Result<bool> {
    let waiter = waiter.as_bytes();
    let values: &[&[u8]] = match kind {
        ReleaseKind::Leave => &[identity, waiter, b""],
        ReleaseKind::RollBack(arrival) => &[identity, waiter, arrival.as_bytes()],
        ReleaseKind::Evict(how) => &[identity, waiter, b"", how],
    };
    let call = ScriptCall { script: &QUORUM.free, keys: &keys.all(), values };
    let priority = match kind {
        ReleaseKind::RollBack(_) => Priority::RollBack,
        ReleaseKind::Leave | ReleaseKind::Evict(_) => call.script.priority,
    };
    Ok(batches.call(call, priority, ticket).await? == Value::Int(1))
}
