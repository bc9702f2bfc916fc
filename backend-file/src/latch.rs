//! What one holds who has a lock's queue for itself.

use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use fencelock_core::Result;

use crate::error::{failed, runtime_ended};
use crate::files::{Files, Room};
use crate::pipe;
use crate::place::{Ground, Place};
use crate::queue::{Queue, Slot};

/// A lock's queue as this store last read it.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) files: Option<Arc<Files>>,
    /// When the path was last seen to lead to them, since the boot.
    pub(crate) checked: Option<Duration>,
    pub(crate) queue: Queue,
    room: Room,
}

impl Default for Desk {
    fn default() -> Desk {
        let queue = Queue::new(Default::default(), Duration::ZERO);
        Desk { files: None, checked: None, queue, room: Room::default() }
    }
}

impl Desk {
    fn files(&self) -> Result<&Arc<Files>> {
        // They are closed by `let_go` and `abandon` only, after which nobody has the latch.
        self.files.as_ref().ok_or_else(runtime_ended)
    }

    pub(crate) fn read(&mut self, ground: &Ground) -> Result<()> {
        let files = self.files()?.clone();
        files.read(&mut self.queue, &mut self.room, ground.boot)
    }

    fn write(&mut self) -> Result<()> {
        let files = self.files()?.clone();
        files.write(&mut self.queue, &mut self.room)
    }

    /// Closes what is not to be kept open.
    pub(crate) fn let_go(&mut self) {
        if self.files.as_ref().is_some_and(|files| !files.is_kept()) {
            self.files = None;
        }
    }
}

/// The latched queue of one lock; unlatched when it is dropped.
#[derive(Debug)]
pub(crate) struct Latched<'a> {
    desk: MutexGuard<'a, Desk>,
    place: &'a Place,
}

impl<'a> Latched<'a> {
    /// For whoever has just latched the files on `desk`.
    pub(crate) fn new(desk: MutexGuard<'a, Desk>, place: &'a Place) -> Latched<'a> {
        Latched { desk, place }
    }

    pub(crate) fn desk(&mut self) -> &mut Desk {
        &mut self.desk
    }

    /// Reads the queue.
    pub(crate) fn load(&mut self) -> Result<&mut Queue> {
        self.desk.read(self.place.ground())?;
        Ok(&mut self.desk.queue)
    }

    pub(crate) fn queue(&mut self) -> &mut Queue {
        &mut self.desk.queue
    }

    /// Writes the queue.
    pub(crate) fn commit(&mut self) -> Result<()> {
        self.desk.write()
    }

    /// The lock's files, which may outlive the latch.
    pub(crate) fn files(&self) -> Result<&Arc<Files>> {
        self.desk.files()
    }

    /// Takes a pipe that nobody has.
    pub(crate) fn take_slot(&self) -> Result<(Slot, OwnedFd)> {
        let rights = self.place.ground().directory.rights();
        let taken = pipe::take(self.files()?.dir(), &self.desk.queue, rights);
        taken.map_err(|errno| failed("take a pipe beside", self.place.path(), errno))
    }

    /// Has the disk promise more tokens, which takes milliseconds.
    pub(crate) fn promise_tokens(&mut self) -> Result<()> {
        // The first promise is also that the lock's files will be found.
        let root = self.queue().is_fresh().then_some(());
        self.queue().promise();
        self.commit()?;
        let root = root.map(|()| self.place.ground().directory.fd());
        self.files()?.sync(root)?;
        // Only now may they be used: a crash between must not leave a promise that looks kept.
        self.queue().promise_kept();
        self.commit()
    }

    /// Unlatches files that are none of this lock's any more.
    pub(crate) fn abandon(mut self) {
        if let Some(files) = self.desk.files.take() {
            files.unlatch();
        }
        self.desk.checked = None;
    }
}

impl Drop for Latched<'_> {
    fn drop(&mut self) {
        if let Some(files) = &self.desk.files {
            files.unlatch();
        }
        self.desk.let_go();
    }
}
