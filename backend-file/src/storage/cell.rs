//! A lock's cell, in its state file: a record, two slots for contents, and which stores watch it.
//!
//! In a file that is there anyway, nothing has to be created, renamed or removed for a cell, so a
//! killed process leaves nothing to clean up, and users of a sticky directory, who cannot replace
//! each other's files, share cells too. Reading takes no latch: what is read while it is replaced
//! has another checksum, and is read again. Writing takes one of its own, an flock on the state
//! file: a change that waits for the disk must not block the lock of the same name.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fencelock_core::{Content, Error, ErrorKind, Keep, Result, Stamp};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::platform::{BootId, allocate, punch_hole};
use crate::queue::entry::{Corrupt, MAX_ENTRIES};
use crate::queue::record::OTHER_VERSION;
use crate::storage::cell_record::CellRecord;
use crate::storage::state::State;

/// The offset of the record; above the labels.
const RECORD_AT: u64 = 24 << 20;
/// The offset of the slots.
const SLOTS_AT: u64 = RECORD_AT + 4096;
const SLOT: u64 = Content::MAX_BYTES as u64;
/// The offset of the watches: a byte for each wake pipe, 1 if its store has to be notified of the next
/// change. At the end of the file, so that few are read.
const WATCHES_AT: u64 = RECORD_AT + (1 << 20);

/// How often a cell that is being replaced is read, before the latch is taken.
const READS: u32 = 8;

/// The open cell of a lock.
#[derive(Debug)]
pub(crate) struct Cell<'a> {
    pub(super) dir: OwnedFd,
    pub(super) state: State<'a>,
    /// The store's directory.
    pub(super) root: BorrowedFd<'a>,
    pub(super) boot: BootId,
}

/// What is in a cell.
#[derive(Debug)]
struct Found {
    record: CellRecord,
    content: Option<Content>,
}

/// Exclusive access to a cell's record and slots.
#[derive(Debug)]
pub(crate) struct CellGuard<'a>(&'a Cell<'a>);

impl<'a> Cell<'a> {
    /// The content; an error if the cell is damaged or being replaced all the time.
    pub(crate) fn read(&self) -> Result<std::result::Result<Option<Content>, Corrupt>> {
        let mut why = OTHER_VERSION;
        for _ in 0..READS {
            match self.find()? {
                Ok(None) => return Ok(Ok(None)),
                Ok(Some(found)) => {
                    // Its writer may have been killed before it synced it, or is about to do so:
                    // what is read must not be lost.
                    if found.record.needs_sync(self.boot) {
                        self.state.sync(None)?;
                    }
                    return Ok(Ok(found.content));
                }
                Err(corrupt) => why = corrupt,
            }
        }
        Ok(Err(why))
    }

    /// Has the store with wake pipe `number` notified of the next change. Called before the cell is
    /// read: a change that is not read is one whose writer sees the watch.
    pub(crate) fn watch(&self, number: u16) -> Result<()> {
        let at = WATCHES_AT + u64::from(number);
        let mut armed = Vec::new();
        self.state.read(at, 1, &mut armed)?;
        match armed[..] {
            [1] => Ok(()),
            _ => self.state.write(&[1], at),
        }
    }

    /// The wake pipes of the stores to be notified, after a change. They have to watch again.
    pub(crate) fn take_watches(&self) -> Result<Vec<u16>> {
        let mut armed = Vec::new();
        self.state.read(WATCHES_AT, MAX_ENTRIES, &mut armed)?;
        let mut numbers = Vec::new();
        for (number, _) in (0..).zip(armed).filter(|(_, armed)| *armed != 0) {
            // Before the notification, after which it may be set again. One that cannot be cleared
            // costs a needless notification later.
            let _ = self.state.write(&[0], WATCHES_AT + u64::from(number));
            numbers.push(number);
        }
        Ok(numbers)
    }

    /// Takes the latch; `None` if another process or thread has it.
    pub(crate) fn latch(&'a self) -> Result<Option<CellGuard<'a>>> {
        match flock(self.state.file(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(CellGuard(self))),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(self.state.failed("lock", errno)),
        }
    }

    /// What is there now, unless it is damaged or just being replaced.
    fn find(&self) -> Result<std::result::Result<Option<Found>, Corrupt>> {
        let record = match self.record()? {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(Ok(None)),
            Err(why) => return Ok(Err(why)),
        };
        let Some(stamp) = record.stamp else {
            return Ok(Ok(Some(Found { record, content: None })));
        };
        let mut bytes = Vec::new();
        self.state.read(slot_at(record.slot), record.length, &mut bytes)?;
        match record.names(&bytes) {
            true => Ok(Ok(Some(Found { record, content: Some(Content { stamp, bytes }) }))),
            // It was not synced when the power failed, unless it is that of a later record.
            false
                if record.may_be_lost(self.boot)
                    && self.record()?.is_ok_and(|now| now.as_ref() == Some(&record)) =>
            {
                Ok(Ok(Some(Found { record, content: None })))
            }
            false => Ok(Err(Corrupt("the content of its cell is damaged"))),
        }
    }

    fn record(&self) -> Result<std::result::Result<Option<CellRecord>, Corrupt>> {
        let mut bytes = Vec::new();
        self.state.read(RECORD_AT, CellRecord::LEN, &mut bytes)?;
        Ok(CellRecord::decode(&bytes))
    }
}

impl CellGuard<'_> {
    /// The content, of a cell that no other process replaces now.
    ///
    /// # Errors
    /// [`Foreign`](fencelock_core::ErrorKind::Foreign) if it is damaged.
    pub(crate) fn read(&self) -> Result<Option<Content>> {
        self.0.read()?.map_err(|why| self.0.state.foreign(why.0))
    }

    /// Like [`CellStore::reserve`](fencelock_core::CellStore::reserve): of the record, and of both slots.
    pub(crate) fn reserve(&self) -> Result<()> {
        let reserved = allocate(self.0.state.file(), RECORD_AT, SLOTS_AT + 2 * SLOT - RECORD_AT);
        reserved.map_err(|errno| self.0.state.failed("reserve space in", errno))
    }

    /// Like [`CellStore::swap`](fencelock_core::CellStore::swap).
    pub(crate) fn swap(
        &self,
        from: Option<Stamp>,
        to: Option<&Content>,
        keep: Keep,
    ) -> Result<bool> {
        let Cell { state, boot, .. } = self.0;
        // It would reach into the other slot.
        if let Some(to) = to.filter(|to| to.bytes.len() > Content::MAX_BYTES) {
            let message = format!("{} bytes are too many for a cell", to.bytes.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let found = self.0.find()?.map_err(|why| state.foreign(why.0))?;
        let stamp = found.as_ref().and_then(|found| found.content.as_ref());
        let stamp = stamp.map(|content| content.stamp);
        if stamp != from {
            let is_made = to.is_some_and(|to| stamp == Some(to.stamp));
            if is_made && found.is_some_and(|found| found.record.needs_sync(*boot)) {
                state.sync(None)?;
            }
            return Ok(is_made);
        }
        let before = found.map(|found| found.record);
        match (to, &before) {
            (Some(to), before) => self.put(before.as_ref(), to, keep)?,
            (None, Some(before)) => self.remove(before)?,
            (None, None) => {}
        }
        Ok(true)
    }

    fn put(&self, before: Option<&CellRecord>, to: &Content, keep: Keep) -> Result<()> {
        let Cell { dir, state, root, boot } = self.0;
        let was_kept = before.is_some_and(|before| before.is_kept_for_ever);
        let is_kept = keep == Keep::Forever;
        // A cell that was synced is replaced by one that is: the disk must not have the record of
        // the one and the content of the other. Without a boot id, what was lost is not recognised.
        let syncs = is_kept || was_kept || *boot == BootId::default();
        let slot = before.map_or(0, |before| 1 - before.slot);
        if let Err(error) = state.write(&to.bytes, slot_at(slot)) {
            if before.is_none() {
                self.free();
            }
            return Err(error);
        }
        if syncs {
            // The lock may have been created for its cell.
            let fresh = !was_kept && state.ledger()?.is_fresh();
            state.sync(fresh.then_some([dir.as_fd(), *root]))?;
        }
        self.write(CellRecord::of(to, slot, is_kept, *boot), syncs)
    }

    fn remove(&self, before: &CellRecord) -> Result<()> {
        if before.stamp.is_some() {
            self.write(before.removal(self.0.boot), before.is_kept_for_ever)?;
        }
        self.free();
        Ok(())
    }

    /// Writes `record`; readers sync it until this has done so.
    fn write(&self, mut record: CellRecord, syncs: bool) -> Result<()> {
        let Cell { state, .. } = self.0;
        record.is_settled = !syncs;
        state.write(&record.encode(), RECORD_AT)?;
        if syncs {
            state.sync(None)?;
            state.write(&[1], RECORD_AT + CellRecord::LEN as u64 - 1)?;
        }
        Ok(())
    }

    /// Gives back the space of a cell that is not there.
    fn free(&self) {
        // It is only space.
        let _ = punch_hole(self.0.state.file(), RECORD_AT, SLOTS_AT + 2 * SLOT - RECORD_AT);
    }
}

impl Drop for CellGuard<'_> {
    fn drop(&mut self) {
        // Closing the file is not enough: a forked child may have a copy of the descriptor.
        let unlocked = flock(self.0.state.file(), FlockOperation::Unlock);
        debug_assert!(unlocked.is_ok(), "flock: {unlocked:?}");
    }
}

fn slot_at(slot: u8) -> u64 {
    SLOTS_AT + u64::from(slot) * SLOT
}
