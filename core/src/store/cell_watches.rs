//! Whom to notify when a store reports that a cell has changed.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use crate::store::cell_store::Notifier;
use crate::store::registry::shrink_after_burst;
use crate::sync::Mutex;

/// The watches of cells, by the cell's key. Each is notified once.
#[derive(Debug)]
pub struct CellWatches<K = String> {
    notifiers: Mutex<HashMap<K, Vec<Weak<Notifier>>>>,
}

impl<K> Default for CellWatches<K> {
    fn default() -> CellWatches<K> {
        CellWatches { notifiers: Mutex::default() }
    }
}

impl<K: Eq + Hash> CellWatches<K> {
    /// Has `notifier` notified of the next change. A report can overtake the reply to the request that
    /// asks the store for it, so this comes before the request.
    pub fn insert<Q>(&self, key: &Q, notifier: &Arc<Notifier>)
    where
        Q: ToOwned<Owned = K> + ?Sized,
    {
        let wanted = Arc::downgrade(notifier);
        let mut all = self.notifiers.lock();
        if all.len() == all.capacity() {
            all.retain(|_, notifiers| notifiers.iter().any(|it| it.strong_count() > 0));
        }
        let notifiers = all.entry(key.to_owned()).or_default();
        notifiers.retain(|it| it.strong_count() > 0 && !it.ptr_eq(&wanted));
        notifiers.push(wanted);
    }

    /// The cell at `key` has changed. Those who still watch it read it, which begins the next watch.
    pub fn changed<Q: Eq + Hash + ?Sized>(&self, key: &Q)
    where
        K: Borrow<Q>,
    {
        let notifiers = {
            let mut all = self.notifiers.lock();
            let notifiers = all.remove(key);
            shrink_after_burst(&mut all);
            notifiers
        };
        notify(notifiers.into_iter().flatten());
    }

    /// Reports of changes may have been lost.
    pub fn all_may_have_changed(&self) {
        let all = std::mem::take(&mut *self.notifiers.lock());
        notify(all.into_values().flatten());
    }
}

fn notify(notifiers: impl Iterator<Item = Weak<Notifier>>) {
    for notifier in notifiers.filter_map(|notifier| notifier.upgrade()) {
        notifier.notify();
    }
}
