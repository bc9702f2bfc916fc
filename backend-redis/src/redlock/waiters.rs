//! Who is rung by what the nodes push: a waiter whom a majority of them has told that it is its turn.
//!
//! One node's word is not enough: the others have not seen the release yet, and whoever asked
//! them now would be refused by them. NodeReports are hints; what is lost is found by the next look.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use fencelock_core::Claim;
use uuid::Uuid;

use super::votes::majority;
use crate::single::notifications::forget;

/// The claims of a store that may be told.
#[derive(Debug)]
pub(crate) struct Waiters {
    nodes: usize,
    claims: Mutex<HashMap<Uuid, Waiter>>,
}

#[derive(Debug)]
struct Waiter {
    claim: Weak<Claim>,
    /// The nodes that have told it since it last asked, as bits.
    notified_by: u16,
    /// A person has taken its place away.
    is_evicted: bool,
}

impl Waiters {
    pub(crate) fn at(nodes: usize) -> Waiters {
        Waiters { nodes, claims: Mutex::default() }
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<Uuid, Waiter>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `claim` asks the nodes: what they told before is answered. Whether a person has taken its
    /// place away since it asked last.
    pub(crate) fn begin_round(&self, claim: &Arc<Claim>) -> bool {
        let waiter = Waiter { claim: Arc::downgrade(claim), notified_by: 0, is_evicted: false };
        let before = self.claims().insert(claim.owner().reveal(), waiter);
        before.is_some_and(|waiter| waiter.is_evicted)
    }

    pub(crate) fn remove(&self, claim: &Claim) {
        forget(&mut self.claims(), claim);
    }

    /// What node `node` published: `owner`, or `owner 0` when a person took its lock or place away.
    pub(crate) fn on_message(&self, node: usize, message: &[u8]) {
        let mut words = message.split(|byte| *byte == b' ');
        let owner = Uuid::try_parse_ascii(words.next().unwrap_or_default());
        let Ok(owner) = owner else { return };
        let claim = {
            let mut claims = self.claims();
            let Some(waiter) = claims.get_mut(&owner) else { return };
            let needed = majority(self.nodes);
            let before = waiter.notified_by.count_ones() as usize;
            waiter.notified_by |= 1 << node;
            let now = waiter.notified_by.count_ones() as usize;
            let is_enough = before < needed && now >= needed;
            let by_a_person = words.next().is_some();
            waiter.is_evicted |= by_a_person;
            (is_enough || by_a_person).then(|| waiter.claim.upgrade()).flatten()
        };
        if let Some(claim) = claim {
            claim.wake();
        }
    }
}
