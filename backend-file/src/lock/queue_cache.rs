//! A lock as this store last saw it: its open files and its queue.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::{Error, Result};

use crate::error::{failed, foreign, no_answer};
use crate::platform::{centiseconds, since_boot};
use crate::queue::entry::{Corrupt, Slot};
use crate::queue::record::{OTHER_VERSION, area_of, last_record};
use crate::queue::rules::Queue;
use crate::storage::context::StoreContext;
use crate::storage::inheritance;
use crate::storage::lock_files::{LockDir, LockFiles};
use crate::storage::page::Page;

/// The thread on which a request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thread {
    /// The caller's thread, in a runtime: it must not wait for the disk.
    Runtime,
    /// An I/O thread of the store.
    Io,
}

/// Why a request did not complete.
#[derive(Debug)]
pub(crate) enum StepError {
    /// It needs the disk, on a thread that must not wait for it. It has changed nothing.
    NeedsDisk,
    /// Another process has the latch.
    Contended,
    Failed(Error),
}

impl From<Error> for StepError {
    fn from(error: Error) -> StepError {
        StepError::Failed(error)
    }
}

impl StepError {
    /// No `From`: programs would have to name the error type of every `?` as soon as there is a second
    /// one for `Error`, wherever it is.
    pub(crate) fn into_error(self) -> Error {
        match self {
            // An I/O thread waits for both.
            StepError::NeedsDisk | StepError::Contended => no_answer(),
            StepError::Failed(error) => error,
        }
    }
}

/// A lock as this store last saw it.
#[derive(Debug, Default)]
pub(crate) struct QueueCache {
    pub(crate) files: Option<Arc<LockFiles>>,
    /// When the path was last seen to lead to these files, since the boot.
    pub(crate) checked: Option<Duration>,
    pub(crate) queue: Queue,
    /// The page that was open last, which claims may still have open.
    pub(crate) page: Weak<Page>,
    /// The slot that this store freed last, and the next ticket at that time. As long as no ticket
    /// is drawn, no other claim can have used its pipe.
    pub(super) freed_slot: Option<(Slot, u64)>,
    /// The length of the current record in the page, and of the outdated ones before it.
    pub(super) old: usize,
    pub(super) left: usize,
    pub(super) record: Vec<u8>,
    pub(super) area: Vec<u8>,
}

/// The content of a lock's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageContent {
    Queue,
    /// No process had it open, or another program has emptied it.
    Empty,
    /// Another program has written to it or consumed a part.
    Damaged,
}

fn damaged(dir: &LockDir, why: Corrupt) -> Result<PageContent, StepError> {
    match why {
        OTHER_VERSION => Err(foreign(&dir.path, why.0).into()),
        _ => Ok(PageContent::Damaged),
    }
}

impl QueueCache {
    pub(super) fn files(&self) -> Result<Arc<LockFiles>> {
        // Only `release_files` and `abandon` close them, after which no request has the latch.
        self.files.clone().ok_or_else(no_answer)
    }

    /// Reads the queue.
    pub(crate) fn read(&mut self, dir: &LockDir, thread: Thread) -> Result<PageContent, StepError> {
        let files = self.files()?;
        let read = files.page.read(&dir.context.pipe_reader, &mut self.record);
        read.map_err(|errno| failed("read the queue in", &dir.path, errno))?;
        let last = match last_record(&self.record) {
            Ok(last) => last.unwrap_or(0..0),
            Err(why) => return damaged(dir, why),
        };
        (self.left, self.old) = (last.start, last.len());
        if last.is_empty() {
            return Ok(PageContent::Empty);
        }
        let record = &self.record[last];
        if let Some((which, len)) = area_of(record) {
            if thread == Thread::Runtime {
                return Err(StepError::NeedsDisk);
            }
            files.state()?.read_area(which, len, &mut self.area)?;
        }
        match self.queue.decode(record, &self.area) {
            Ok(()) => Ok(PageContent::Queue),
            Err(why) => damaged(dir, why),
        }
    }

    /// Begins a new queue in place of a lost one, with the holders that can be found.
    pub(super) fn begin(&mut self, dir: &LockDir) -> Result<()> {
        let files = self.files()?;
        let ledger = files.state()?.ledger()?;
        // Above all earlier tickets: fewer than a billion are drawn in a second.
        let ticket = u64::try_from(since_boot().as_nanos()).unwrap_or(u64::MAX / 2);
        let StoreContext { boot, pipe_reader, .. } = &*dir.context;
        self.queue = ledger.begin(*boot, ticket);
        if !ledger.was_left_empty(*boot) {
            let survivors = inheritance::survivors(files.dir(), pipe_reader, centiseconds());
            self.queue.adopt(
                survivors.map_err(|errno| failed("watch the named pipes in", &dir.path, errno))?,
            );
        }
        Ok(())
    }

    /// Opens the lock's files, if there are any and they are not open.
    pub(super) fn open(&mut self, dir: &LockDir, thread: Thread) -> Result<(), StepError> {
        if self.files.is_some() {
            return Ok(());
        }
        if thread == Thread::Runtime {
            return Err(StepError::NeedsDisk);
        }
        self.files = dir.open(&self.page)?.map(Arc::new);
        if let Some(files) = &self.files {
            self.page = Arc::downgrade(&files.page);
        }
        Ok(())
    }

    /// Closes files that do not stay open between uses.
    pub(crate) fn release_files(&mut self) {
        if self.files.as_ref().is_some_and(|files| !files.stays_open()) {
            self.files = None;
        }
    }
}
