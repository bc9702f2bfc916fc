//! What a node that is away would have to hear: kept for it until it is back, or until it has ended
//! by itself.

use std::sync::{Arc, Mutex, PoisonError};

use fencelock_core::{Moment, Result};
use futures_util::{StreamExt, stream};
use redis::Value;

use crate::batch::Batches;
use crate::identity::Keys;
use crate::node::Step;
use crate::script::QUORUM;
use crate::seats::AT_ONCE;

/// What was asked for at a node, and is to be taken back when it can be reached again.
#[derive(Debug)]
pub(crate) struct Debt {
    pub(crate) keys: Keys,
    pub(crate) identity: Arc<str>,
    pub(crate) waiter: Arc<str>,
    /// When it ends by itself.
    pub(crate) ends: Moment,
}

/// Those of one node.
#[derive(Debug, Default)]
pub(crate) struct Debts(Mutex<Vec<Debt>>);

impl Debts {
    pub(super) fn push(&self, debt: Debt) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(debt);
    }

    /// Frees what could not be freed when it was time to.
    pub(super) async fn pay(&self, batches: &Arc<Batches>, now: Moment) {
        let debts = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let open = debts.into_iter().filter(|debt| now < debt.ends);
        let paying = stream::iter(open).map(async |debt| {
            let Debt { keys, identity, waiter, .. } = &debt;
            if free(batches, keys, identity, waiter, By::Itself).await.is_err() {
                self.push(debt);
            }
        });
        paying.buffer_unordered(AT_ONCE).collect::<()>().await;
    }
}

/// By whose will a round is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Itself,
    /// A person's; its claim is told.
    Order,
}

/// Takes a round, and its waiter, out of a node; whether it was there.
pub(crate) async fn free(
    batches: &Arc<Batches>,
    keys: &Keys,
    identity: &str,
    waiter: &str,
    by: By,
) -> Result<bool> {
    let values = [identity, waiter, "", "tell"];
    let values = match by {
        By::Itself => &values[..3],
        By::Order => &values[..],
    };
    let step = Step { script: &QUORUM.free, keys: &keys.all(), values };
    Ok(batches.step(step).await? == Value::Int(1))
}
