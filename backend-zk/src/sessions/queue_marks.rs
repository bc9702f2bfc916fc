//! What the waiters of one session know of each other: whether the node ahead of a waiter had
//! become the first of its queue. If so, its deletion is the waiter's turn, and no list is needed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use fencelock_core::backend::shrink_after_burst;
use fencelock_core::sync::Mutex;

/// The marks of a session's nodes that wait, or have waited, by their paths.
#[derive(Default)]
pub(crate) struct QueueMarks {
    by_path: Mutex<HashMap<String, Weak<QueueMark>>>,
}

/// The mark of one node. It is registered for as long as the node is of use to its claim.
#[derive(Default)]
pub(crate) struct QueueMark {
    is_first: AtomicBool,
}

impl QueueMarks {
    pub(crate) fn register(&self, path: &str) -> Arc<QueueMark> {
        let mark = Arc::<QueueMark>::default();
        self.by_path.lock().insert(path.to_owned(), Arc::downgrade(&mark));
        mark
    }

    pub(crate) fn find(&self, path: &str) -> Option<Arc<QueueMark>> {
        self.by_path.lock().get(path)?.upgrade()
    }

    pub(crate) fn remove(&self, path: &str) {
        let mut marks = self.by_path.lock();
        marks.remove(path);
        shrink_after_burst(&mut marks);
    }
}

impl QueueMark {
    /// Nothing is ahead of the node, and so nothing ever will be.
    pub(crate) fn set_first(&self) {
        self.is_first.store(true, Ordering::Release);
    }

    pub(crate) fn is_first(&self) -> bool {
        self.is_first.load(Ordering::Acquire)
    }
}
