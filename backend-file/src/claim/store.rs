//! The state that all claims of a connected store share.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::sync::Mutex;
use fencelock_core::{BootClock, Clock};
use tokio::sync::oneshot;

use crate::lock::file_lock::FileLock;
use crate::lock::io_threads::IoThreads;
use crate::storage::context::StoreContext;
use crate::storage::lock_files::LockDir;
use crate::wake::wake_pipe::WakePipe;

/// The number of locks from which on unused ones are closed and forgotten.
const PRUNE_AT: usize = 256;

/// The time limit of a waiter check or a renewal.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);

/// A connected store.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) context: Arc<StoreContext>,
    pub(crate) wake_pipe: Arc<WakePipe>,
    pub(crate) clock: BootClock,
    pub(super) threads: Arc<IoThreads>,
    locks: Mutex<LockTable>,
}

#[derive(Debug)]
struct LockTable {
    by_key: HashMap<Arc<str>, Arc<FileLock>>,
    prune_at: usize,
}

impl Store {
    pub(crate) fn new(context: StoreContext, wake_pipe: WakePipe, clock: BootClock) -> Store {
        let locks = LockTable { by_key: HashMap::new(), prune_at: PRUNE_AT };
        Store {
            context: Arc::new(context),
            wake_pipe: Arc::new(wake_pipe),
            clock,
            threads: Arc::default(),
            locks: Mutex::new(locks),
        }
    }

    /// The lock with the full name `key`.
    pub(crate) fn lock(&self, key: &Arc<str>) -> Arc<FileLock> {
        let mut locks = self.locks.lock();
        if let Some(lock) = locks.by_key.get(key) {
            return lock.clone();
        }
        if locks.by_key.len() >= locks.prune_at {
            let unused = locks.by_key.extract_if(|_, lock| Arc::strong_count(lock) == 1);
            unused.for_each(|(_, lock)| drop(lock.request_close()));
            locks.prune_at = PRUNE_AT.max(locks.by_key.len() * 2);
        }
        let dir = LockDir::new(self.context.clone(), key.clone());
        let lock = Arc::new(FileLock::new(dir, self.threads.clone()));
        locks.by_key.insert(key.clone(), lock.clone());
        lock
    }

    /// The answer to a request, unless it takes too long.
    pub(crate) async fn in_time<T>(&self, request: impl Future<Output = T>) -> Option<T> {
        let bound = self.clock.now() + REQUEST_LIMIT;
        tokio::select! {
            biased;
            answer = request => Some(answer),
            () = self.clock.sleep_until(bound) => None,
        }
    }

    /// Closes the files of all locks. Each receiver completes when those of one lock are closed.
    pub(crate) fn close_files(&self) -> Vec<oneshot::Receiver<()>> {
        let locks = std::mem::take(&mut self.locks.lock().by_key);
        locks.values().map(FileLock::request_close).collect()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // A forked child shares the latch with its parent.
        if self.context.same_process().is_ok() {
            drop(self.close_files());
        }
    }
}
