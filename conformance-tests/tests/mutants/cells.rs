//! The toy store's cells, and the ways in which they can be broken.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::sync::Mutex;
use fencelock_core::{CellStore, Content, Keep, LockName, Notifier, Result, Stamp};

use crate::mutant::Mutant;
use crate::server::Server;

/// The cells of a server.
#[derive(Default)]
pub(crate) struct ToyCells {
    cells: Mutex<HashMap<String, Content>>,
    /// What was there before the last write, by the key.
    before: Mutex<HashMap<String, Option<Content>>>,
    notifiers: Mutex<Vec<(String, Weak<Notifier>)>>,
}

impl ToyCells {
    pub(crate) fn keys(&self) -> Vec<String> {
        self.cells.lock().keys().cloned().collect()
    }

    fn read(&self, key: &str) -> Option<Content> {
        self.cells.lock().get(key).cloned()
    }

    /// Writes if `decide` says so of the stamp there, in one step: clients swap on several threads.
    fn swap(
        &self,
        key: &str,
        to: Option<&Content>,
        decide: impl FnOnce(Option<Stamp>) -> Swap,
    ) -> Swap {
        let mut cells = self.cells.lock();
        let decision = decide(cells.get(key).map(|content| content.stamp));
        if decision == Swap::Written {
            let before = match to {
                Some(to) => cells.insert(key.to_owned(), to.clone()),
                None => cells.remove(key),
            };
            self.before.lock().insert(key.to_owned(), before);
        }
        decision
    }

    fn take_notifiers(&self, key: &str) -> Vec<Arc<Notifier>> {
        let mut notifiers = self.notifiers.lock();
        let (changed, others) = notifiers.drain(..).partition(|(watched, _)| watched == key);
        *notifiers = others;
        let changed: Vec<(String, Weak<Notifier>)> = changed;
        changed.iter().filter_map(|(_, notifier)| notifier.upgrade()).collect()
    }
}

/// What the server makes of a swap.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Swap {
    Written,
    /// The same write was made before.
    Repeated,
    Refused,
}

impl Server {
    fn cell_key(&self, cell: &LockName) -> String {
        match self.mutant {
            Some(Mutant::CellNamesFoldCase) => cell.key().to_lowercase(),
            _ => cell.key().to_owned(),
        }
    }
}

impl CellStore for Server {
    async fn read(
        &self,
        cell: &LockName,
        notifier: Option<&Arc<Notifier>>,
    ) -> Result<Option<Content>> {
        self.send().await?;
        let key = self.cell_key(cell);
        let watch = || {
            if let Some(notifier) = notifier {
                self.cells.notifiers.lock().push((key.clone(), Arc::downgrade(notifier)));
            }
        };
        let is_late = notifier.is_some() && self.is(Mutant::CellWatchBeginsLate);
        // Before the reading: no change must come between the two.
        if !is_late {
            watch();
        }
        let content = match self.is(Mutant::CellReadsLag) {
            // As a follower that has yet to hear of the last write.
            true => self.cells.before.lock().remove(&key).unwrap_or_else(|| self.cells.read(&key)),
            false => self.cells.read(&key),
        };
        // Others write before the answer arrives.
        tokio::task::yield_now().await;
        if is_late {
            tokio::time::sleep(Duration::from_millis(1)).await;
            watch();
        }
        self.reply().await.map(|()| content)
    }

    async fn swap(
        &self,
        cell: &LockName,
        from: Option<Stamp>,
        to: Option<&Content>,
        _: Keep,
    ) -> Result<bool> {
        self.send().await?;
        let key = self.cell_key(cell);
        let swap = self.cells.swap(&key, to, |there| {
            if to.is_some_and(|to| there == Some(to.stamp)) {
                return match self.is(Mutant::CellRepetitionIsRefused) {
                    true => Swap::Refused,
                    false => Swap::Repeated,
                };
            }
            let is_expected = match self.mutant {
                Some(Mutant::CellSwapComparesNothing) => true,
                // A first write over whatever is there.
                Some(Mutant::CellFirstWriteOverwrites) => there == from || from.is_none(),
                _ => there == from,
            };
            if is_expected { Swap::Written } else { Swap::Refused }
        });
        if swap == Swap::Written {
            let notifiers = self.cells.take_notifiers(&key);
            if !self.is(Mutant::CellIsNotWatched) {
                notifiers.iter().for_each(|notifier| notifier.notify());
            }
        }
        self.reply().await.map(|()| swap != Swap::Refused)
    }

    /// It ends nothing by time.
    async fn list(&self, prefix: &str) -> Result<Option<Vec<String>>> {
        self.send().await?;
        let keys = self.cells.keys().into_iter().filter(|key| key.starts_with(prefix)).collect();
        self.reply().await.map(|()| Some(keys))
    }
}
