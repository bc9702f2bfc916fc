//! The claims of a store that a wake-up can address.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, Weak};

use fencelock_core::Claim;
use fencelock_core::sync::Mutex;

/// Identifies a claim in a wake-up: the lock's hash plus the ticket.
pub(crate) type ClaimKey = u64;

/// The key of the claim with `ticket` for a lock.
pub(crate) fn claim_key(lock_hash: u64, ticket: u64) -> ClaimKey {
    lock_hash.wrapping_add(ticket)
}

/// The claims of a connected store, by key.
#[derive(Debug, Default)]
pub(crate) struct ClaimRegistry {
    claims: Mutex<HashMap<ClaimKey, Weak<Claim>>>,
}

impl ClaimRegistry {
    fn claims(&self) -> MutexGuard<'_, HashMap<ClaimKey, Weak<Claim>>> {
        self.claims.lock()
    }

    pub(crate) fn add(&self, claim_key: ClaimKey, claim: &Arc<Claim>) {
        self.claims().insert(claim_key, Arc::downgrade(claim));
    }

    pub(crate) fn remove(&self, claim_key: ClaimKey) {
        self.claims().remove(&claim_key);
    }

    pub(crate) fn contains(&self, claim_key: ClaimKey) -> bool {
        self.claims().contains_key(&claim_key)
    }

    pub(crate) fn wake(&self, claim_key: ClaimKey) {
        // Not under the mutex: this calls into the core.
        let claim = self.claims().get(&claim_key).and_then(Weak::upgrade);
        if let Some(claim) = claim {
            claim.wake();
        }
    }

    pub(crate) fn wake_all(&self) {
        let claims: Vec<_> = self.claims().values().filter_map(Weak::upgrade).collect();
        for claim in claims {
            claim.wake();
        }
    }
}
