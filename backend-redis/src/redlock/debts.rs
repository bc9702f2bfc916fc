//! What a node that is away would have to hear: kept for it until it is back, or until it has ended
//! by itself.

use std::sync::{Arc, Mutex, PoisonError};

use fencelock_core::{Moment, Result};
use futures_util::{StreamExt, stream};
use redis::Value;

use crate::protocol::call::ScriptCall;
use crate::protocol::identity::Keys;
use crate::protocol::script::QUORUM;
use crate::server::batch::BatchingNode;

/// Requests of one node under way: enough to keep it busy, not so many that others wait for them.
const AT_ONCE: usize = 100;

/// What was asked for at a node, and is to be taken back when it can be reached again.
#[derive(Debug)]
pub(crate) struct PendingRelease {
    pub(crate) keys: Keys,
    pub(crate) identity: Arc<str>,
    pub(crate) waiter: Arc<str>,
    /// When it ends by itself.
    pub(crate) ends: Moment,
}

/// Those of one node.
#[derive(Debug, Default)]
pub(crate) struct PendingReleases(Mutex<Vec<PendingRelease>>);

impl PendingReleases {
    pub(super) fn push(&self, debt: PendingRelease) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(debt);
    }

    /// Frees what could not be freed when it was time to.
    pub(super) async fn pay(&self, batches: &Arc<BatchingNode>, now: Moment) {
        let debts = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let open = debts.into_iter().filter(|debt| now < debt.ends);
        let paying = stream::iter(open).map(async |debt| {
            let PendingRelease { keys, identity, waiter, .. } = &debt;
            if free(batches, keys, identity.as_bytes(), waiter, ReleaseKind::Leave).await.is_err() {
                self.push(debt);
            }
        });
        paying.buffer_unordered(AT_ONCE).collect::<()>().await;
    }
}

/// By whose will a round is freed, and what becomes of its waiter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReleaseKind<'a> {
    /// Its own; it leaves the queue.
    Itself,
    /// Its own; it waits on, by the time when it arrived.
    Waiter(&'a str),
    /// A person's; its claim is told.
    Order,
}

/// Takes a round out of a node, and its waiter, if that does not wait on; whether it was there.
pub(crate) async fn free(
    batches: &Arc<BatchingNode>,
    keys: &Keys,
    identity: &[u8],
    waiter: &str,
    by: ReleaseKind<'_>,
) -> Result<bool> {
    let waiter = waiter.as_bytes();
    let values: &[&[u8]] = match by {
        ReleaseKind::Leave => &[identity, waiter, b""],
        ReleaseKind::KeepWaiting(arrival) => &[identity, waiter, arrival.as_bytes()],
        ReleaseKind::Evict => &[identity, waiter, b"", b"tell"],
    };
    let call = ScriptCall { script: &QUORUM.free, keys: &keys.all(), values };
    Ok(batches.call(call).await? == Value::Int(1))
}
