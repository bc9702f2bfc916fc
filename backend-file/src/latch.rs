//! What a request has that has latched a lock: its queue, and the right to change it.

use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use fencelock_core::{Error, Result};

use crate::error::{corrupt, failed, no_answer};
use crate::files::Files;
use crate::inheritance;
use crate::page::Page;
use crate::pipe;
use crate::place::{FileLock, StoreContext};
use crate::platform::{centiseconds, since_boot};
use crate::queue::{Corrupt, OTHER_VERSION, Queue, Slot, has_area, last_record};

/// On which thread a request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thread {
    /// Its caller's, a runtime's: it must not wait for the disk.
    Runtime,
    /// The store's own.
    Io,
}

/// Why a request was not carried out.
#[derive(Debug)]
pub(crate) enum StepError {
    /// It needs the disk, on a thread that must not wait for that. It has changed nothing.
    NeedsDisk,
    Failed(Error),
}

impl From<Error> for StepError {
    fn from(error: Error) -> StepError {
        StepError::Failed(error)
    }
}

impl From<StepError> for Error {
    fn from(stop: StepError) -> Error {
        match stop {
            // Only a thread that waits for it meets this.
            StepError::NeedsDisk => no_answer(),
            StepError::Failed(error) => error,
        }
    }
}

/// A lock as this store last saw it.
#[derive(Debug, Default)]
pub(crate) struct QueueCache {
    pub(crate) files: Option<Arc<Files>>,
    /// When the path was last seen to lead to them, since the boot.
    pub(crate) checked: Option<Duration>,
    pub(crate) queue: Queue,
    /// The last page that was open, which claims may still have.
    pub(crate) page: Weak<Page>,
    /// The pipe that this store released last, and the next ticket at that time. While no ticket is
    /// drawn, no other claim can have used the pipe.
    left_slot: Option<(Slot, u64)>,
    /// The length of the record that counts in the page, and of what is in front of it.
    old: usize,
    left: usize,
    record: Vec<u8>,
    area: Vec<u8>,
}

/// What was in a lock's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageContent {
    Queue,
    /// Nothing: no process has had it open, or something else has emptied it.
    Empty,
    /// What something else has written or left there.
    Damaged,
}

fn damaged(lock: &FileLock, why: Corrupt) -> Result<PageContent, StepError> {
    match why {
        OTHER_VERSION => Err(corrupt(lock.path(), why).into()),
        _ => Ok(PageContent::Damaged),
    }
}

impl QueueCache {
    fn files(&self) -> Result<Arc<Files>> {
        // They are closed by `let_go` and `abandon` only, after which nobody has the latch.
        self.files.clone().ok_or_else(no_answer)
    }

    /// Reads the queue.
    pub(crate) fn read(
        &mut self,
        lock: &FileLock,
        thread: Thread,
    ) -> Result<PageContent, StepError> {
        let files = self.files()?;
        let read = files.page().read(&lock.context().pipe_reader, &mut self.record);
        read.map_err(|errno| failed("read the queue in", lock.path(), errno))?;
        let last = match last_record(&self.record) {
            Ok(last) => last.unwrap_or(0..0),
            Err(why) => return damaged(lock, why),
        };
        (self.left, self.old) = (last.start, last.len());
        if last.is_empty() {
            return Ok(PageContent::Empty);
        }
        let record = &self.record[last];
        if thread == Thread::Runtime && has_area(record) {
            return Err(StepError::NeedsDisk);
        }
        let area = |which, len, bytes: &mut _| Ok(files.state()?.read_area(which, len, bytes)?);
        match self.queue.decode(record, area) {
            Ok(()) => Ok(PageContent::Queue),
            Err(ReadError::Failed(error)) => Err(error.into()),
            Err(ReadError::Corrupt(why)) => damaged(lock, why),
        }
    }

    /// Begins a queue in place of one that is lost, as it can be known.
    fn begin(&mut self, context: &StoreContext, path: &std::path::Path) -> Result<()> {
        let files = self.files()?;
        let ledger = files.state()?.ledger()?;
        // Above all tickets that there have been: so many can not be drawn in a second.
        let ticket = u64::try_from(since_boot().as_nanos()).unwrap_or(u64::MAX / 2);
        self.queue = ledger.begin(context.boot, ticket);
        if !ledger.was_left_empty(context.boot) {
            let survivors =
                inheritance::survivors(files.dir(), &context.pipe_reader, centiseconds());
            self.queue.adopt(survivors.map_err(|errno| failed("watch the pipes in", path, errno))?);
        }
        Ok(())
    }

    /// Closes what is not to be kept open.
    pub(crate) fn let_go(&mut self) {
        if self.files.as_ref().is_some_and(|files| !files.is_kept()) {
            self.files = None;
        }
    }
}

enum ReadError {
    Failed(Error),
    Corrupt(Corrupt),
}

impl From<Error> for ReadError {
    fn from(error: Error) -> ReadError {
        ReadError::Failed(error)
    }
}

impl From<Corrupt> for ReadError {
    fn from(why: Corrupt) -> ReadError {
        ReadError::Corrupt(why)
    }
}

/// The latched queue of one lock; unlatched when it is dropped.
#[derive(Debug)]
pub(crate) struct QueueGuard<'a> {
    cache: MutexGuard<'a, QueueCache>,
    lock: &'a FileLock,
    thread: Thread,
}

impl<'a> QueueGuard<'a> {
    /// For a request that has just latched the files on `desk`.
    pub(crate) fn new(
        cache: MutexGuard<'a, QueueCache>,
        lock: &'a FileLock,
        thread: Thread,
    ) -> QueueGuard<'a> {
        QueueGuard { cache, lock, thread }
    }

    pub(crate) fn cache(&mut self) -> &mut QueueCache {
        &mut self.cache
    }

    /// Reads the queue, or begins it.
    pub(crate) fn load(&mut self) -> Result<(), StepError> {
        let found = self.cache.read(self.lock, self.thread)?;
        if found == PageContent::Queue {
            return Ok(());
        }
        self.needs_disk()?;
        if found == PageContent::Damaged {
            // What it said does not matter: all owners that live will be in the new queue.
            tracing::warn!(target: "fencelock", path = %self.lock.path().display(),
                "a lock's queue was damaged by something else and is made anew");
            let cleared = self.cache.files()?.page().clear();
            cleared.map_err(|errno| failed("clear the queue in", self.lock.path(), errno))?;
            (self.cache.left, self.cache.old) = (0, 0);
        }
        Ok(self.cache.begin(self.lock.context(), self.lock.path())?)
    }

    pub(crate) fn queue(&mut self) -> &mut Queue {
        &mut self.cache.queue
    }

    /// Writes the queue: all of it or nothing, also when this process is killed meanwhile.
    pub(crate) fn commit(&mut self) -> Result<(), StepError> {
        if !self.cache.queue.is_inline() {
            self.needs_disk()?;
        }
        let files = self.cache.files()?;
        let QueueCache { queue, record, area, left, old, .. } = &mut *self.cache;
        if let Some(which) = queue.encode(record, area) {
            files.state()?.write_area(which, area)?;
        }
        let committed = files.page().commit(*left, *old, record);
        *left = committed.map_err(|errno| failed("write the queue in", self.lock.path(), errno))?;
        *old = record.len();
        Ok(())
    }

    /// To be asked before anything is changed that takes as long as the disk does.
    pub(crate) fn needs_disk(&self) -> Result<(), StepError> {
        match self.thread {
            Thread::Runtime => Err(StepError::NeedsDisk),
            Thread::Io => Ok(()),
        }
    }

    /// The lock's files, which may outlive the latch.
    pub(crate) fn files(&self) -> Result<Arc<Files>> {
        self.cache.files()
    }

    /// Takes a free pipe for the claim with `ticket`.
    pub(crate) fn take_slot(&mut self, ticket: u64) -> Result<(Slot, OwnedFd), StepError> {
        let rights = self.lock.context().directory.rights();
        let makes = self.needs_disk().is_ok().then_some(rights);
        let queue = &self.cache.queue;
        let known = self.cache.left_slot.filter(|(slot, next)| {
            *next == ticket && rights.are_private() && !queue.is_watched(*slot)
        });
        let taken = pipe::take(self.files()?.dir(), queue, makes, known.map(|(slot, _)| slot))
            .map_err(|errno| failed("take a pipe in", self.lock.path(), errno))?;
        taken.ok_or(StepError::NeedsDisk)
    }

    /// Remembers a pipe that is about to be closed, with an empty buffer.
    pub(crate) fn leave_slot(&mut self, slot: Slot) {
        self.cache.left_slot = Some((slot, self.cache.queue.next_ticket()));
    }

    /// Makes sure that a token may be given out next: promised to the disk, which takes
    /// milliseconds, and above what was noted, which is struck out.
    pub(crate) fn prepare_tokens(&mut self) -> Result<(), StepError> {
        if !self.cache.queue.noted && !self.cache.queue.needs_tokens() {
            return Ok(());
        }
        self.needs_disk()?;
        let files = self.cache.files()?;
        let state = files.state()?;
        let mut ledger = state.ledger()?;
        if self.cache.queue.needs_tokens() {
            // The first promise is also that the lock's files will be found.
            let fresh = ledger.is_fresh();
            let reserved = ledger.reserve(self.cache.queue.token);
            state.write_ledger(&ledger)?;
            let root = self.lock.context().directory.fd();
            state.sync(fresh.then_some([files.dir(), root]))?;
            // Only now may they be used.
            self.cache.queue.durable = reserved;
        } else {
            ledger.clear_note();
            state.write_ledger(&ledger)?;
        }
        self.cache.queue.noted = false;
        self.commit()
    }

    /// Notes in the lock's state where the queue is, if it is empty: for a process that closes the
    /// page, which may be the last one. Whoever gives out a token afterwards strikes it out first,
    /// and is told to by the page.
    pub(crate) fn note_tokens(&mut self) {
        if let Err(StepError::Failed(error)) = self.try_note_tokens() {
            // Tokens are skipped then, if this is the last process.
            tracing::debug!(target: "fencelock", %error, "could not note a lock's last token");
        }
    }

    fn try_note_tokens(&mut self) -> Result<(), StepError> {
        self.needs_disk()?;
        let lost = self.cache.read(self.lock, self.thread)? != PageContent::Queue;
        if lost || self.cache.queue.noted || !self.cache.queue.entries.is_empty() {
            return Ok(());
        }
        self.cache.queue.noted = true;
        self.commit()?;
        let files = self.cache.files()?;
        let state = files.state()?;
        let mut ledger = state.ledger()?;
        ledger.note(&self.cache.queue, self.lock.context().boot);
        Ok(state.write_ledger(&ledger)?)
    }

    /// Unlatches files that are none of this lock's any more.
    pub(crate) fn abandon(mut self) {
        if let Some(files) = self.cache.files.take() {
            files.page().unlatch();
        }
        self.cache.checked = None;
    }
}

impl Drop for QueueGuard<'_> {
    fn drop(&mut self) {
        let Some(files) = self.cache.files.clone() else { return };
        if !files.is_kept() {
            self.note_tokens();
        }
        files.page().unlatch();
        self.cache.let_go();
    }
}
