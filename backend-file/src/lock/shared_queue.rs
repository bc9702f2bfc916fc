//! The queue of one lock, and the latch under which it is read and changed.
//!
//! The latch is an flock on the lock's page. It is held for microseconds, and the kernel frees it
//! when its holder dies.

use std::time::Duration;

use fencelock_core::Result;
use fencelock_core::sync::Mutex;
use rustix::io::Errno;

use crate::error::{failed, foreign};
use crate::lock::queue_cache::{PageContent, QueueCache, StepError, Thread};
use crate::lock::queue_guard::QueueGuard;
use crate::platform::since_boot;
use crate::queue::rules::Queue;
use crate::storage::lock_files::LockDir;
use crate::storage::page::Changed;

/// How long a lock's page is assumed to be still at its path.
const RECHECK_AFTER: Duration = Duration::from_millis(100);
/// How often the files may be replaced while they are opened, before that is an error.
const MAX_REPLACEMENTS: usize = 16;

/// The queue of one lock, as this process reads and changes it.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    pub(super) dir: LockDir,
    cache: Mutex<QueueCache>,
}

/// What to do if the lock has no directory yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfMissing {
    /// Create it, for an acquisition, which may need tokens too.
    Create,
    /// Do nothing.
    Skip,
}

/// The result of a read without the latch.
pub(crate) enum Peek {
    Queue(Queue),
    /// A request of this process is under way, or the queue is being written.
    Busy,
    /// The page was removed, replaced or lost, or a check has just changed it: every waiter has to
    /// attempt.
    Gone,
}

impl SharedQueue {
    pub(crate) fn new(dir: LockDir) -> SharedQueue {
        SharedQueue { dir, cache: Mutex::default() }
    }

    /// Takes the latch and loads the queue. `None` when the lock has no directory and `if_missing`
    /// does not create it.
    pub(crate) fn latch(
        &self,
        if_missing: IfMissing,
        thread: Thread,
    ) -> Result<Option<QueueGuard<'_>>, StepError> {
        for _ in 0..MAX_REPLACEMENTS {
            // Only the request that runs locks this mutex.
            let mut cache = self.cache.lock();
            cache.open(&self.dir, thread)?;
            let Some(files) = cache.files.clone() else {
                if if_missing == IfMissing::Skip {
                    return Ok(None);
                }
                self.dir.create()?;
                continue;
            };
            if !files.page.try_latch().map_err(|e| failed("lock", &self.dir.path, e))? {
                return Err(StepError::Contended);
            }
            let mut guard = QueueGuard { cache, dir: &self.dir, thread };
            if !self.is_current(&mut guard.cache, if_missing)? {
                guard.abandon();
                continue;
            }
            guard.load()?;
            if if_missing == IfMissing::Create {
                guard.prepare_tokens()?;
            }
            return Ok(Some(guard));
        }
        Err(foreign(&self.dir.path, "another program keeps replacing it").into())
    }

    /// Whether the latched files are still this lock's. Files that were removed or replaced by hand
    /// exclude no later process, which uses the path. An acquisition notices at once that they were
    /// removed; the path itself is checked from time to time, which is enough for a program that
    /// slept while the directory was moved.
    fn is_current(&self, cache: &mut QueueCache, if_missing: IfMissing) -> Result<bool> {
        let Some(files) = &cache.files else { return Ok(false) };
        let now = since_boot();
        let long_ago = cache.checked.is_none_or(|then| now > then + RECHECK_AFTER);
        let is_linked = || files.page.is_linked().map_err(|e| failed("stat", &self.dir.path, e));
        if (if_missing == IfMissing::Create || long_ago) && !is_linked()? {
            return Ok(false);
        }
        if if_missing == IfMissing::Skip || !long_ago {
            return Ok(true);
        }
        match self.dir.page_identity() {
            Ok(identity) if identity == files.page.identity => {
                cache.checked = Some(now);
                Ok(true)
            }
            Ok(_) | Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed("find", &self.dir.path, errno)),
        }
    }

    /// Reads the queue without the latch.
    pub(crate) fn peek(&self, thread: Thread) -> Result<Peek, StepError> {
        let mut cache = self.cache.lock();
        cache.open(&self.dir, thread)?;
        let here = cache.files.as_ref().map(|files| files.page.identity);
        if here.is_none() || self.dir.page_identity().ok() != here {
            return Ok(Peek::Gone);
        }
        let read = cache.read(&self.dir, thread);
        cache.release_files();
        match read {
            Ok(PageContent::Queue) => Ok(Peek::Queue(cache.queue.clone())),
            Ok(PageContent::Empty | PageContent::Damaged) => Ok(Peek::Gone),
            Err(StepError::Failed(_)) => Ok(Peek::Busy),
            Err(other) => Err(other),
        }
    }

    /// Closes the lock's files, on a thread that may wait for the disk.
    pub(crate) fn close(&self) {
        let mut cache = self.cache.lock();
        let Some(files) = cache.files.clone() else { return };
        // A process that has the latch has the page open too: this one is not the last.
        if !files.page.try_latch().unwrap_or(false) {
            cache.files = None;
            return;
        }
        let mut guard = QueueGuard { cache, dir: &self.dir, thread: Thread::Io };
        guard.note_tokens();
        guard.abandon();
    }

    /// The queue's last change, if it is open. For a thread that may wait for the disk.
    pub(crate) fn changed(&self) -> Option<Changed> {
        self.cache.lock().files.as_ref()?.page.changed()
    }
}
