//! The claims that a store's messages can name.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use crate::store::claim::Claim;
use crate::sync::Mutex;

/// Live claims by the key under which a store's messages name them.
///
/// It keeps no claim alive: the claim's own task may end at any time.
pub struct ClaimRegistry<K> {
    claims: Mutex<HashMap<K, Weak<Claim>>>,
}

impl<K: Eq + Hash> ClaimRegistry<K> {
    /// Registers `claim`, in place of another one with the same key. A message can overtake the reply
    /// to the request that causes it, so this comes before the request.
    pub fn insert(&self, key: K, claim: &Arc<Claim>) {
        let mut claims = self.claims.lock();
        if claims.len() == claims.capacity() {
            claims.retain(|_, claim| claim.strong_count() > 0);
        }
        claims.insert(key, Arc::downgrade(claim));
    }

    /// Removes the claim `key`, and returns it if it lives.
    pub fn remove(&self, key: &K) -> Option<Arc<Claim>> {
        let mut claims = self.claims.lock();
        let claim = claims.remove(key);
        shrink_after_burst(&mut claims);
        claim?.upgrade()
    }

    /// Whether `key` is registered.
    pub fn contains(&self, key: &K) -> bool {
        self.claims.lock().contains_key(key)
    }

    /// Wakes the claim `key` for a message that names it, if there is one. If it has ended, the core is releasing it.
    pub fn wake(&self, key: &K) {
        // Not under the mutex: this calls into the core.
        let claim = self.claims.lock().get(key).and_then(Weak::upgrade);
        if let Some(claim) = claim {
            claim.wake_for_grant();
        }
    }

    /// Wakes all claims, after messages may have been lost.
    pub fn wake_all(&self) {
        let claims: Vec<_> = self.claims.lock().values().filter_map(Weak::upgrade).collect();
        for claim in claims {
            claim.wake();
        }
    }
}

impl<K> Default for ClaimRegistry<K> {
    fn default() -> ClaimRegistry<K> {
        ClaimRegistry { claims: Mutex::default() }
    }
}

impl<K> fmt::Debug for ClaimRegistry<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimRegistry").finish_non_exhaustive()
    }
}

/// Gives the memory of a map back when few of many entries are left. Called after each removal.
pub fn shrink_after_burst<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    if map.capacity() > 4096 && map.len() < map.capacity() / 8 {
        map.shrink_to_fit();
    }
}
