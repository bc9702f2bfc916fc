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
use crate::place::{Ground, Place};
use crate::platform::{centiseconds, since_boot};
use crate::queue::{Corrupt, OTHER_VERSION, Queue, Slot, is_elsewhere, last_record};

/// On which thread a request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thread {
    /// Its caller's, a runtime's: it must not wait for the disk.
    Caller,
    /// The store's own.
    Own,
}

/// Why a request was not carried out.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It needs the disk, on a thread that must not wait for that. It has changed nothing.
    NeedsDisk,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Error {
        match stop {
            // Only a thread that waits for it meets this.
            Stop::NeedsDisk => no_answer(),
            Stop::Failed(error) => error,
        }
    }
}

/// A lock as this store last saw it.
#[derive(Debug, Default)]
pub(crate) struct Desk {
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
pub(crate) enum Found {
    Queue,
    /// Nothing: no process has had it open, or something else has emptied it.
    Nothing,
    /// What something else has written or left there.
    Damage,
}

fn damaged(place: &Place, why: Corrupt) -> Result<Found, Stop> {
    match why {
        OTHER_VERSION => Err(corrupt(place.path(), why).into()),
        _ => Ok(Found::Damage),
    }
}

impl Desk {
    fn files(&self) -> Result<Arc<Files>> {
        // They are closed by `let_go` and `abandon` only, after which nobody has the latch.
        self.files.clone().ok_or_else(no_answer)
    }

    /// Reads the queue.
    pub(crate) fn read(&mut self, place: &Place, thread: Thread) -> Result<Found, Stop> {
        let files = self.files()?;
        let read = files.page().read(&place.ground().scratch, &mut self.record);
        read.map_err(|errno| failed("read the queue in", place.path(), errno))?;
        let last = match last_record(&self.record) {
            Ok(last) => last.unwrap_or(0..0),
            Err(why) => return damaged(place, why),
        };
        (self.left, self.old) = (last.start, last.len());
        if last.is_empty() {
            return Ok(Found::Nothing);
        }
        let record = &self.record[last];
        if thread == Thread::Caller && is_elsewhere(record) {
            return Err(Stop::NeedsDisk);
        }
        let area = |which, len, bytes: &mut _| Ok(files.state()?.read_area(which, len, bytes)?);
        match self.queue.decode(record, area) {
            Ok(()) => Ok(Found::Queue),
            Err(Unread::Failed(error)) => Err(error.into()),
            Err(Unread::Corrupt(why)) => damaged(place, why),
        }
    }

    /// Begins a queue in place of one that is lost, as it can be known.
    fn begin(&mut self, ground: &Ground, path: &std::path::Path) -> Result<()> {
        let files = self.files()?;
        let ledger = files.state()?.ledger()?;
        // Above all tickets that there have been: so many can not be drawn in a second.
        let ticket = u64::try_from(since_boot().as_nanos()).unwrap_or(u64::MAX / 2);
        self.queue = ledger.begin(ground.boot, ticket);
        if !ledger.was_left_empty(ground.boot) {
            let survivors = inheritance::survivors(files.dir(), &ground.scratch, centiseconds());
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

enum Unread {
    Failed(Error),
    Corrupt(Corrupt),
}

impl From<Error> for Unread {
    fn from(error: Error) -> Unread {
        Unread::Failed(error)
    }
}

impl From<Corrupt> for Unread {
    fn from(why: Corrupt) -> Unread {
        Unread::Corrupt(why)
    }
}

/// The latched queue of one lock; unlatched when it is dropped.
#[derive(Debug)]
pub(crate) struct Latched<'a> {
    desk: MutexGuard<'a, Desk>,
    place: &'a Place,
    thread: Thread,
}

impl<'a> Latched<'a> {
    /// For a request that has just latched the files on `desk`.
    pub(crate) fn new(desk: MutexGuard<'a, Desk>, place: &'a Place, thread: Thread) -> Latched<'a> {
        Latched { desk, place, thread }
    }

    pub(crate) fn desk(&mut self) -> &mut Desk {
        &mut self.desk
    }

    /// Reads the queue, or begins it.
    pub(crate) fn load(&mut self) -> Result<(), Stop> {
        let found = self.desk.read(self.place, self.thread)?;
        if found == Found::Queue {
            return Ok(());
        }
        self.needs_disk()?;
        if found == Found::Damage {
            // What it said does not matter: all owners that live will be in the new queue.
            tracing::warn!(target: "fencelock", path = %self.place.path().display(),
                "a lock's queue was damaged by something else and is made anew");
            let cleared = self.desk.files()?.page().clear();
            cleared.map_err(|errno| failed("clear the queue in", self.place.path(), errno))?;
            (self.desk.left, self.desk.old) = (0, 0);
        }
        Ok(self.desk.begin(self.place.ground(), self.place.path())?)
    }

    pub(crate) fn queue(&mut self) -> &mut Queue {
        &mut self.desk.queue
    }

    /// Writes the queue: all of it or nothing, also when this process is killed meanwhile.
    pub(crate) fn commit(&mut self) -> Result<(), Stop> {
        if !self.desk.queue.is_inline() {
            self.needs_disk()?;
        }
        let files = self.desk.files()?;
        let Desk { queue, record, area, left, old, .. } = &mut *self.desk;
        if let Some(which) = queue.encode(record, area) {
            files.state()?.write_area(which, area)?;
        }
        let committed = files.page().commit(*left, *old, record);
        *left =
            committed.map_err(|errno| failed("write the queue in", self.place.path(), errno))?;
        *old = record.len();
        Ok(())
    }

    /// To be asked before anything is changed that takes as long as the disk does.
    pub(crate) fn needs_disk(&self) -> Result<(), Stop> {
        match self.thread {
            Thread::Caller => Err(Stop::NeedsDisk),
            Thread::Own => Ok(()),
        }
    }

    /// The lock's files, which may outlive the latch.
    pub(crate) fn files(&self) -> Result<Arc<Files>> {
        self.desk.files()
    }

    /// Takes a free pipe for the claim with `ticket`.
    pub(crate) fn take_slot(&mut self, ticket: u64) -> Result<(Slot, OwnedFd), Stop> {
        let rights = self.place.ground().directory.rights();
        let makes = self.needs_disk().is_ok().then_some(rights);
        let queue = &self.desk.queue;
        let known = self.desk.left_slot.filter(|(slot, next)| {
            *next == ticket && rights.are_private() && !queue.is_watched(*slot)
        });
        let taken = pipe::take(self.files()?.dir(), queue, makes, known.map(|(slot, _)| slot))
            .map_err(|errno| failed("take a pipe in", self.place.path(), errno))?;
        taken.ok_or(Stop::NeedsDisk)
    }

    /// Remembers a pipe that is about to be closed, with an empty buffer.
    pub(crate) fn leave_slot(&mut self, slot: Slot) {
        self.desk.left_slot = Some((slot, self.desk.queue.next_ticket()));
    }

    /// Makes sure that a token may be given out next: promised to the disk, which takes
    /// milliseconds, and above what was noted, which is struck out.
    pub(crate) fn prepare_tokens(&mut self) -> Result<(), Stop> {
        if !self.desk.queue.noted && !self.desk.queue.needs_tokens() {
            return Ok(());
        }
        self.needs_disk()?;
        let files = self.desk.files()?;
        let state = files.state()?;
        let mut ledger = state.ledger()?;
        if self.desk.queue.needs_tokens() {
            // The first promise is also that the lock's files will be found.
            let fresh = ledger.is_fresh();
            let promised = ledger.promise(self.desk.queue.token);
            state.write_ledger(&ledger)?;
            let root = self.place.ground().directory.fd();
            state.sync(fresh.then_some([files.dir(), root]))?;
            // Only now may they be used.
            self.desk.queue.durable = promised;
        } else {
            ledger.strike_out();
            state.write_ledger(&ledger)?;
        }
        self.desk.queue.noted = false;
        self.commit()
    }

    /// Notes in the lock's state where the queue is, if it is empty: for a process that closes the
    /// page, which may be the last one. Whoever gives out a token afterwards strikes it out first,
    /// and is told to by the page.
    pub(crate) fn note_tokens(&mut self) {
        if let Err(Stop::Failed(error)) = self.try_note_tokens() {
            // Tokens are skipped then, if this is the last process.
            tracing::debug!(target: "fencelock", %error, "could not note a lock's last token");
        }
    }

    fn try_note_tokens(&mut self) -> Result<(), Stop> {
        self.needs_disk()?;
        let lost = self.desk.read(self.place, self.thread)? != Found::Queue;
        if lost || self.desk.queue.noted || !self.desk.queue.entries.is_empty() {
            return Ok(());
        }
        self.desk.queue.noted = true;
        self.commit()?;
        let files = self.desk.files()?;
        let state = files.state()?;
        let mut ledger = state.ledger()?;
        ledger.note(&self.desk.queue, self.place.ground().boot);
        Ok(state.write_ledger(&ledger)?)
    }

    /// Unlatches files that are none of this lock's any more.
    pub(crate) fn abandon(mut self) {
        if let Some(files) = self.desk.files.take() {
            files.page().unlatch();
        }
        self.desk.checked = None;
    }
}

impl Drop for Latched<'_> {
    fn drop(&mut self) {
        let Some(files) = self.desk.files.clone() else { return };
        if !files.is_kept() {
            self.note_tokens();
        }
        files.page().unlatch();
        self.desk.let_go();
    }
}
