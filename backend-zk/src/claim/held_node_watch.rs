//! The watch on the node of a held lock: a deletion that the holder did not ask for is a loss,
//! reported at once.

use std::sync::{Arc, Weak};

use fencelock_core::Claim;

use crate::nodes::node::{Node, until_deleted};

/// Has the node of a holder watched, if it is still held after the delay of such watches.
pub(crate) fn watch_later(claim: &Arc<Claim>, node: &Arc<Node>) {
    let (weak_claim, weak_node) = (Arc::downgrade(claim), Arc::downgrade(node));
    node.session.defer_watch(move || {
        if let (Some(node), Some(claim)) = (weak_node.upgrade(), weak_claim.upgrade()) {
            watch(&claim, &node, weak_node);
        }
    });
}

/// Wakes the claim when its node is gone.
fn watch(claim: &Arc<Claim>, node: &Node, weak_node: Weak<Node>) {
    let (session, path) = (node.session.clone(), node.path.clone());
    let reservation = node.reservation.clone();
    node.keep(claim.wake_when(async move {
        until_deleted(&session, &path, |_| ()).await;
        // The `Node` may have been dropped while it was still watched.
        drop(reservation);
        if let Some(node) = weak_node.upgrade() {
            node.set_gone();
        }
    }));
}
