//! The latched queue of a lock: access for the one request that has the latch.

use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard};

use fencelock_core::Result;

use crate::error::failed;
use crate::lock::queue_cache::{PageContent, QueueCache, StepError, Thread};
use crate::queue::entry::{Entry, Slot};
use crate::queue::rules::Queue;
use crate::storage::lock_files::{LockDir, LockFiles};
use crate::storage::slot_pipe;
use crate::wake::notifications::Notifications;

/// The latched queue of one lock. Its drop releases the latch.
#[derive(Debug)]
pub(crate) struct QueueGuard<'a> {
    /// The cache of a request that has just latched the files in it.
    pub(super) cache: MutexGuard<'a, QueueCache>,
    pub(super) dir: &'a LockDir,
    pub(super) thread: Thread,
}

impl QueueGuard<'_> {
    /// Reads the queue, or begins a new one.
    pub(crate) fn load(&mut self) -> Result<(), StepError> {
        let found = self.cache.read(self.dir, self.thread)?;
        if found == PageContent::Queue {
            return Ok(());
        }
        self.needs_disk()?;
        if found == PageContent::Damaged {
            // Its content does not matter: all living owners will be in the new queue.
            tracing::warn!(target: "fencelock", path = %self.dir.path.display(),
                "another program damaged a lock's queue; it is rebuilt");
            let cleared = self.cache.files()?.page.clear();
            cleared.map_err(|errno| failed("clear the queue in", &self.dir.path, errno))?;
            (self.cache.left, self.cache.old) = (0, 0);
        }
        Ok(self.cache.begin(self.dir)?)
    }

    pub(crate) fn queue(&mut self) -> &mut Queue {
        &mut self.cache.queue
    }

    /// Removes entry `at` from the queue. Returns it, with the notifications that this requires.
    pub(crate) fn remove(&mut self, at: usize) -> (Entry, Notifications) {
        let removed = self.cache.queue.entries.remove(at);
        let mut notifications = self.notifications();
        notifications.after_removal(&self.cache.queue, &removed);
        (removed, notifications)
    }

    /// Notifications of claims of this lock.
    pub(crate) fn notifications(&self) -> Notifications {
        Notifications::new(self.dir.hash)
    }

    /// Writes the queue atomically, even if this process is killed meanwhile.
    pub(crate) fn commit(&mut self) -> Result<(), StepError> {
        if !self.cache.queue.is_inline() {
            self.needs_disk()?;
        }
        let files = self.cache.files()?;
        let QueueCache { queue, record, area, left, old, .. } = &mut *self.cache;
        if let Some(which) = queue.encode(record, area) {
            files.state()?.write_area(which, area)?;
        }
        let committed = files.page.commit(*left, *old, record);
        *left = committed.map_err(|errno| failed("write the queue in", &self.dir.path, errno))?;
        *old = record.len();
        Ok(())
    }

    /// Fails on a runtime's thread. Called before a change that waits for the disk.
    pub(crate) fn needs_disk(&self) -> Result<(), StepError> {
        match self.thread {
            Thread::Runtime => Err(StepError::NeedsDisk),
            Thread::Io => Ok(()),
        }
    }

    /// The lock's files, which may outlive the latch.
    pub(crate) fn files(&self) -> Result<Arc<LockFiles>> {
        self.cache.files()
    }

    /// Takes a free slot for the claim with `ticket`.
    pub(crate) fn take_slot(&mut self, ticket: u64) -> Result<(Slot, OwnedFd), StepError> {
        let rights = &self.dir.context.directory.rights;
        let may_create = self.needs_disk().is_ok().then_some(rights);
        let queue = &self.cache.queue;
        let known = self.cache.freed_slot.filter(|(slot, next)| {
            *next == ticket && rights.are_private() && !queue.is_watched(*slot)
        });
        let taken =
            slot_pipe::take(self.files()?.dir(), queue, may_create, known.map(|(slot, _)| slot))
                .map_err(|errno| failed("take a named pipe in", &self.dir.path, errno))?;
        taken.ok_or(StepError::NeedsDisk)
    }

    /// Remembers a slot whose pipe is about to be closed, with an empty buffer.
    pub(crate) fn note_free_slot(&mut self, slot: Slot) {
        self.cache.freed_slot = Some((slot, self.cache.queue.next_ticket));
    }

    /// Makes sure that the next token may be granted: it is reserved on the disk, which takes
    /// milliseconds, and a note of an earlier token is cleared.
    pub(crate) fn prepare_tokens(&mut self) -> Result<(), StepError> {
        if !self.cache.queue.noted && !self.cache.queue.needs_tokens() {
            return Ok(());
        }
        self.needs_disk()?;
        let files = self.cache.files()?;
        let state = files.state()?;
        let mut ledger = state.ledger()?;
        if self.cache.queue.needs_tokens() {
            // The first reservation also syncs the directories, so that the lock's files are found.
            let fresh = ledger.is_fresh();
            let reserved = ledger.reserve(self.cache.queue.token);
            state.write_ledger(&ledger)?;
            let root = self.dir.context.directory.fd();
            state.sync(fresh.then_some([files.dir(), root]))?;
            // Only now may the tokens be granted.
            self.cache.queue.durable = reserved;
        } else {
            ledger.clear_note();
            state.write_ledger(&ledger)?;
        }
        self.cache.queue.noted = false;
        self.commit()
    }

    /// Notes the last token in the lock's state file if the queue is empty, for a process that
    /// closes the page and may be the last one. The page says that there is a note, which has to
    /// be cleared before the next grant.
    pub(crate) fn note_tokens(&mut self) {
        if let Err(StepError::Failed(error)) = self.try_note_tokens() {
            // If this is the last process, tokens are skipped.
            tracing::debug!(target: "fencelock", %error, "cannot note a lock's last token");
        }
    }

    fn try_note_tokens(&mut self) -> Result<(), StepError> {
        self.needs_disk()?;
        let lost = self.cache.read(self.dir, self.thread)? != PageContent::Queue;
        if lost || self.cache.queue.noted || !self.cache.queue.entries.is_empty() {
            return Ok(());
        }
        self.cache.queue.noted = true;
        self.commit()?;
        let files = self.cache.files()?;
        let state = files.state()?;
        let mut ledger = state.ledger()?;
        ledger.note(&self.cache.queue, self.dir.context.boot);
        Ok(state.write_ledger(&ledger)?)
    }

    /// Unlatches and closes files that are no longer this lock's.
    pub(crate) fn abandon(mut self) {
        if let Some(files) = self.cache.files.take() {
            files.page.unlatch();
        }
        self.cache.checked = None;
    }
}

impl Drop for QueueGuard<'_> {
    fn drop(&mut self) {
        let Some(files) = self.cache.files.clone() else { return };
        if !files.stays_open() {
            self.note_tokens();
        }
        files.page.unlatch();
        self.cache.release_files();
    }
}
