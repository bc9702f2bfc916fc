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

#[derive(Debug, Default)]
struct Waiter {
    claim: Weak<Claim>,
    /// The nodes that have notified it since its last round.
    notified_by: NodeSet,
    /// The nodes that have evicted it at an operator's request, which others may have refused.
    evicted_by: NodeSet,
}

impl Waiters {
    pub(crate) fn at(nodes: usize) -> Waiters {
        Waiters { nodes, claims: Mutex::default() }
    }

    /// `claim` starts a round, which answers earlier notifications. Whether a majority of the nodes has evicted it, for
    /// which it is told once.
    pub(crate) fn begin_round(&self, claim: &Arc<Claim>) -> bool {
        let mut claims = self.claims.lock();
        let waiter = claims.entry(claim.owner().reveal()).or_default();
        (waiter.claim, waiter.notified_by) = (Arc::downgrade(claim), NodeSet::default());
        let is_evicted = waiter.evicted_by.len() >= majority(self.nodes);
        if is_evicted {
            waiter.evicted_by = NodeSet::default();
        }
        is_evicted
    }

    pub(crate) fn remove(&self, claim: &Claim) {
        let mut claims = self.claims.lock();
        claims.remove(&claim.owner().reveal());
        shrink_after_burst(&mut claims);
    }

    /// Whether `owner`, of this client, is of no claim that is left.
    pub(crate) fn is_over(&self, owner: &Uuid) -> bool {
        !self.claims.lock().contains_key(owner)
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
            let is_eviction = fields.next().is_some();
            let by = if is_eviction { &mut waiter.evicted_by } else { &mut waiter.notified_by };
            let (before, needed) = (by.len(), majority(self.nodes));
            by.insert(node);
            let is_enough = by.len() >= needed && (is_eviction || before < needed);
            let claim = waiter.claim.upgrade();
            // A waiter that asks before a majority has evicted it would be given its old place again.
            claim.filter(|claim| is_enough || is_eviction && claim.is_held())
        };
        if let Some(claim) = claim {
            claim.wake_for_grant();
        }
    }
}
