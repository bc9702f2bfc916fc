//! The watches of this store on cells, notified through its wake pipe.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use fencelock_core::Notifier;
use fencelock_core::sync::Mutex;

use crate::wake::wake_pipe::ClaimKey;

/// Whom to notify of the next change of a cell.
#[derive(Debug, Default)]
pub(crate) struct CellWatches(Mutex<HashMap<ClaimKey, Vec<Weak<Notifier>>>>);

impl CellWatches {
    /// Adds a watch, for one notification.
    pub(crate) fn add(&self, cell: ClaimKey, notifier: &Arc<Notifier>) {
        let mut cells = self.0.lock();
        if cells.len() == cells.capacity() {
            cells.retain(|_, watches| watches.iter().any(|it| it.strong_count() > 0));
        }
        let watches = cells.entry(cell).or_default();
        let added = Arc::downgrade(notifier);
        watches.retain(|it| it.strong_count() > 0 && !it.ptr_eq(&added));
        watches.push(added);
    }

    /// Notifies the watches on `cell`, which have to be added again.
    pub(crate) fn notify(&self, cell: ClaimKey) {
        let watches = self.0.lock().remove(&cell);
        notify(watches);
    }

    /// Notifies all watches.
    pub(crate) fn notify_all(&self) {
        let cells = std::mem::take(&mut *self.0.lock());
        notify(cells.into_values());
    }
}

fn notify(watches: impl IntoIterator<Item = Vec<Weak<Notifier>>>) {
    for notifier in watches.into_iter().flatten().filter_map(|watch| watch.upgrade()) {
        notifier.notify();
    }
}
