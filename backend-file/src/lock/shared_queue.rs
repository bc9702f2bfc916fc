//! The queue of one lock, and the latch under which it is read and changed.
//!
//! The latch is an flock on the lock's page. It is held for microseconds, and the kernel frees it
//! when its holder dies.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::Result;
use rustix::io::Errno;

use crate::error::{failed, foreign};
use crate::lock::lock_dir::LockDir;
use crate::lock::queue_cache::{PageContent, QueueCache, StepError, Thread};
use crate::lock::queue_guard::QueueGuard;
use crate::platform::since_boot;
use crate::queue::rules::Queue;
use crate::storage::page::Changed;

/// For how long a lock's page is taken to be where it was.
const RECHECK_AFTER: Duration = Duration::from_millis(100);
/// How often a file may be replaced while it is opened before that is an error.
const MAX_REPLACEMENTS: usize = 16;

/// The queue of one lock, as this process reads and changes it.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    dir: LockDir,
    cache: Mutex<QueueCache>,
}

/// What to do when the lock has no directory yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfMissing {
    /// Make it: what comes is an acquisition, and may need tokens too.
    Create,
    Skip,
}

/// How far a thread came at a lock.
enum LatchOutcome<'a> {
    Latched(QueueGuard<'a>),
    /// The lock has no directory.
    NoDirectory,
    /// Another process has the latch.
    Contended,
}

/// What a look without the latch found.
pub(crate) enum Peek {
    Queue(Queue),
    /// Somebody of this process works on it, or it is being written at this moment.
    Busy,
    /// The file is not there any more, or another one is.
    Gone,
}

impl SharedQueue {
    pub(crate) fn new(dir: LockDir) -> SharedQueue {
        SharedQueue { dir, cache: Mutex::default() }
    }

    pub(crate) fn dir(&self) -> &LockDir {
        &self.dir
    }

    /// `None` when another process has the latch.
    pub(crate) fn with_queue<T>(
        &self,
        if_missing: IfMissing,
        thread: Thread,
        work: impl Fn(QueueGuard<'_>) -> Result<T, StepError>,
    ) -> Result<Option<Option<T>>, StepError> {
        match self.latch(if_missing, thread)? {
            LatchOutcome::Latched(guard) => work(guard).map(|done| Some(Some(done))),
            LatchOutcome::NoDirectory => Ok(Some(None)),
            LatchOutcome::Contended => Ok(None),
        }
    }

    /// The loaded queue, and the latch.
    fn latch(&self, if_missing: IfMissing, thread: Thread) -> Result<LatchOutcome<'_>, StepError> {
        for _ in 0..MAX_REPLACEMENTS {
            // Only the request whose turn it is locks this.
            let mut cache = self.cache();
            if cache.files.is_none() {
                if thread == Thread::Runtime {
                    return Err(StepError::NeedsDisk);
                }
                cache.open(&self.dir)?;
            }
            let Some(files) = cache.files.clone() else {
                if if_missing == IfMissing::Skip {
                    return Ok(LatchOutcome::NoDirectory);
                }
                self.dir.create()?;
                continue;
            };
            if !files.page().try_latch().map_err(|e| failed("lock", self.dir.path(), e))? {
                return Ok(LatchOutcome::Contended);
            }
            let mut guard = QueueGuard::new(cache, &self.dir, thread);
            if !self.is_current(guard.cache(), if_missing)? {
                guard.abandon();
                continue;
            }
            guard.load()?;
            if if_missing == IfMissing::Create {
                guard.prepare_tokens()?;
            }
            return Ok(LatchOutcome::Latched(guard));
        }
        Err(foreign(self.dir.path(), "somebody replaces it again and again").into())
    }

    /// Whether the latched files are still this lock's. Those that were removed or replaced by
    /// hand exclude nobody, since whoever comes later goes by the path. Whoever wants to make an
    /// entry sees at once that they were removed; the rest is looked up now and then, which is
    /// enough for a program that slept while somebody moved the directory.
    fn is_current(&self, cache: &mut QueueCache, if_missing: IfMissing) -> Result<bool> {
        let Some(files) = &cache.files else { return Ok(false) };
        let now = since_boot();
        let long_ago = cache.checked.is_none_or(|then| now > then + RECHECK_AFTER);
        let is_linked =
            || files.page().is_linked().map_err(|e| failed("look at", self.dir.path(), e));
        if (if_missing == IfMissing::Create || long_ago) && !is_linked()? {
            return Ok(false);
        }
        if if_missing == IfMissing::Skip || !long_ago {
            return Ok(true);
        }
        match self.dir.page_identity() {
            Ok(identity) if identity == files.page().identity() => {
                cache.checked = Some(now);
                Ok(true)
            }
            Ok(_) | Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed("find", self.dir.path(), errno)),
        }
    }

    pub(crate) fn peek(&self, thread: Thread) -> Result<Peek, StepError> {
        let mut cache = self.cache();
        if cache.files.is_none() {
            if thread == Thread::Runtime {
                return Err(StepError::NeedsDisk);
            }
            cache.open(&self.dir)?;
        }
        let here = cache.files.as_ref().map(|files| files.page().identity());
        if here.is_none() || self.dir.page_identity().ok() != here {
            return Ok(Peek::Gone);
        }
        let read = cache.read(&self.dir, thread);
        cache.let_go();
        match read {
            Ok(PageContent::Queue) => Ok(Peek::Queue(cache.queue.clone())),
            Ok(PageContent::Empty | PageContent::Damaged) => Ok(Peek::Gone),
            Err(StepError::NeedsDisk) => Err(StepError::NeedsDisk),
            Err(StepError::Failed(_)) => Ok(Peek::Busy),
        }
    }

    /// Closes the lock's files, on a thread that may wait for the disk.
    pub(crate) fn close(&self) {
        let mut cache = self.cache();
        let Some(files) = cache.files.clone() else { return };
        // A process that has the latch has the page open too: this one is not the last.
        if !files.page().try_latch().unwrap_or(false) {
            cache.files = None;
            return;
        }
        let mut guard = QueueGuard::new(cache, &self.dir, Thread::Io);
        guard.note_tokens();
        guard.abandon();
    }

    /// When the queue changed last, if it is open. For a thread that may wait for the disk.
    pub(crate) fn changed(&self) -> Option<Changed> {
        self.cache().files.as_ref()?.page().changed()
    }

    fn cache(&self) -> MutexGuard<'_, QueueCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
