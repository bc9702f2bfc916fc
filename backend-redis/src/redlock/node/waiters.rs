//! Routes the nodes' pushes to waiting claims: a waiter is woken when a majority has notified it
//! that its turn has come.
//!
//! One node's push is not enough: the others have not seen the release yet, and would reject a
//! waiter that asked them now. Pushes are hints; the next check finds what a lost one announced.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use fencelock_core::Claim;
use fencelock_core::backend::shrink_after_burst;
use fencelock_core::sync::Mutex;
use uuid::Uuid;

use crate::redlock::node_set::NodeSet;
use crate::redlock::rules::votes::majority;

/// The waiting claims of a client.
#[derive(Debug)]
pub(crate) struct Waiters {
    nodes: usize,
    claims: Mutex<HashMap<Uuid, Waiter>>,
}

#[derive(Debug)]
struct Waiter {
    claim: Weak<Claim>,
    /// The nodes that have notified it since its last round.
    notified_by: NodeSet,
    /// An operator has evicted it.
    is_evicted: bool,
}

impl Waiters {
    pub(crate) fn at(nodes: usize) -> Waiters {
        Waiters { nodes, claims: Mutex::default() }
    }

    /// `claim` starts a round, which answers earlier notifications. Whether an operator has evicted
    /// it since its last round.
    pub(crate) fn begin_round(&self, claim: &Arc<Claim>) -> bool {
        let owner = claim.owner().reveal();
        let claim = Arc::downgrade(claim);
        let waiter = Waiter { claim, notified_by: NodeSet::default(), is_evicted: false };
        let before = self.claims.lock().insert(owner, waiter);
        before.is_some_and(|waiter| waiter.is_evicted)
    }

    pub(crate) fn remove(&self, claim: &Claim) {
        let mut claims = self.claims.lock();
        claims.remove(&claim.owner().reveal());
        shrink_after_burst(&mut claims);
    }

    /// Handles what node `node` published: `owner`, or `owner 0` when an operator has removed the
    /// owner's lock or queue entry.
    pub(crate) fn on_message(&self, node: usize, message: &[u8]) {
        let mut fields = message.split(|byte| *byte == b' ');
        let owner = Uuid::try_parse_ascii(fields.next().unwrap_or_default());
        let Ok(owner) = owner else { return };
        let claim = {
            let mut claims = self.claims.lock();
            let Some(waiter) = claims.get_mut(&owner) else { return };
            let needed = majority(self.nodes);
            let before = waiter.notified_by.len();
            waiter.notified_by.insert(node);
            let is_enough = before < needed && waiter.notified_by.len() >= needed;
            let is_eviction = fields.next().is_some();
            waiter.is_evicted |= is_eviction;
            (is_enough || is_eviction).then(|| waiter.claim.upgrade()).flatten()
        };
        if let Some(claim) = claim {
            claim.wake();
        }
    }
}
