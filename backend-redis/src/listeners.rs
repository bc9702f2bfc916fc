//! Who is told what the server pushes: every claim of this process that has a seat.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use fencelock_core::Claim;
use uuid::Uuid;

/// The claims by their owner.
///
/// A claim is entered before its first attempt is sent, since a push can overtake the answer.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    claims: Mutex<HashMap<Uuid, Weak<Claim>>>,
}

impl Listeners {
    fn claims(&self) -> MutexGuard<'_, HashMap<Uuid, Weak<Claim>>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enter(&self, claim: &Arc<Claim>) {
        self.claims().insert(claim.owner().reveal(), Arc::downgrade(claim));
    }

    pub(crate) fn leave(&self, claim: &Claim) {
        let mut claims = self.claims();
        claims.remove(&claim.owner().reveal());
        // Not for ever as large as the largest crowd.
        if claims.capacity() > 4096 && claims.len() < claims.capacity() / 8 {
            claims.shrink_to_fit();
        }
    }

    /// Whether the claim of `owner` still has a seat, whose release is then core's.
    pub(crate) fn knows(&self, owner: Uuid) -> bool {
        self.claims().contains_key(&owner)
    }

    /// Rings the claim that a push names: `owner token`. The token is for people who watch the
    /// channel; the claim asks for its own.
    pub(crate) fn told(&self, message: &[u8]) {
        let owner = message.split(|byte| *byte == b' ').next().unwrap_or_default();
        let Ok(owner) = Uuid::try_parse_ascii(owner) else { return };
        let claim = self.claims().get(&owner).and_then(Weak::upgrade);
        if let Some(claim) = claim {
            // A claim that is over is being released by core.
            claim.ring();
        }
    }

    /// Rings everybody: pushes may have been lost.
    pub(crate) fn ring_all(&self) {
        let claims: Vec<_> = self.claims().values().filter_map(Weak::upgrade).collect();
        for claim in claims {
            claim.ring();
        }
    }
}
