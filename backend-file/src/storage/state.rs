//! The state file `L` of a lock, which outlives its processes and reboots.
//!
//! It has the lock's name, the reservation above which no fencing token is granted, the labels
//! that differ from the label of their process, the entries of a queue that outgrew its page, and
//! the cell of the lock's name (`cell.rs`).
//! Reading and writing it waits for the disk, so an ordinary change of the queue does not need it.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::Path;

use fencelock_core::{Error, ErrorKind, Label, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::{self, Errno};

use crate::directory::draft::Draft;
use crate::error::{NOT_OURS, failed, foreign};
use crate::platform::sync_data;
use crate::queue::entry::{Slot, array};
use crate::queue::ledger::Ledger;
use crate::queue::record::{OTHER_VERSION, check_magic};
use crate::storage::regular_file::{self, LABEL_LEN, read, write};
use crate::storage::slot_pipe;

/// The file's name, in the lock's directory.
pub(crate) const STATE: &str = "L";

/// The offset of the lock's full name, after its length in four bytes.
const NAME_AT: u64 = 4096;
/// The longest lock name, with its prefix.
const MAX_NAME: usize = 60 * 1024;
/// The offset of area 1 for entries; area 2 is at twice this offset.
const AREA: u64 = 4 << 20;
/// The offset of the labels, one record for each slot.
const LABELS_AT: u64 = 16 << 20;

/// The open state file of one lock.
#[derive(Debug)]
pub(crate) struct State<'a> {
    file: File,
    /// The path of the lock's directory.
    path: &'a Path,
}

impl<'a> State<'a> {
    /// Creates the state file of the lock `key`.
    pub(crate) fn create(draft: &mut Draft<'_>, key: &str, ledger: &Ledger) -> io::Result<()> {
        let length = u32::try_from(key.len()).unwrap_or(u32::MAX);
        let name = [&length.to_le_bytes(), key.as_bytes()].concat();
        let file = File::from(draft.file(STATE)?);
        write(&file, &name, NAME_AT)?;
        write(&file, &ledger.encode(), 0)?;
        // A power failure must not leave the directory's name without its files.
        rustix::fs::fsync(&file)
    }

    /// Refuses a name that does not fit into the file.
    pub(crate) fn check_name(key: &str) -> Result<()> {
        if key.len() <= MAX_NAME {
            return Ok(());
        }
        let message = format!("the prefix is too long: expected at most {MAX_NAME} bytes");
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// Opens the state file in the directory `dir` at `path`.
    pub(crate) fn open(dir: BorrowedFd<'_>, path: &'a Path) -> Result<State<'a>> {
        let file = regular_file::open(dir, STATE).map_err(|errno| match errno {
            Errno::NOENT => {
                let why = format!(
                    "it is missing, perhaps removed by a cleaner of old files; when no process uses the lock any \
                     more, run rm -r '{}': the lock's fencing tokens then begin again, and what it remembers, \
                     such as runs of once, is gone",
                    path.display()
                );
                foreign(&path.join(STATE), &why)
            }
            Errno::LOOP | Errno::ISDIR | Errno::NXIO => {
                foreign(&path.join(STATE), "it is not a regular file")
            }
            NOT_OURS => {
                let why = "it is not a regular file, or it has a second name (a hard link)";
                foreign(&path.join(STATE), why)
            }
            errno => failed("open", &path.join(STATE), errno),
        })?;
        let state = State { file, path };
        // Each time: another user of the directory may have renamed a file over it that only this user may write.
        match check_magic(&state.head()?) {
            Ok(()) | Err(OTHER_VERSION) => Ok(state),
            Err(why) => Err(state.foreign(why.0)),
        }
    }

    /// Migrates a file of format 1, in the directory `dir`, if no process uses it any more. A later
    /// process of that version finds another version here and fails.
    pub(crate) fn migrate(&self, dir: BorrowedFd<'_>) -> Result<()> {
        let in_use = || {
            self.foreign(
                "an earlier version of this library uses the lock; end the processes that have it \
                 open",
            )
        };
        if !self.is_of_version_1()? {
            return Ok(());
        }
        // The latch of that version.
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Err(in_use()),
            Err(errno) => return Err(self.failed("lock", errno)),
        }
        let Some(ledger) = Ledger::of_version_1(&self.head()?) else { return Ok(()) };
        let living = slot_pipe::live_slots(dir)
            .map_err(|errno| failed("watch the named pipes in", self.path, errno))?;
        if living.is_empty() { self.write_ledger(&ledger) } else { Err(in_use()) }
    }

    /// Whether it has format 1, which has no cells.
    pub(crate) fn is_of_version_1(&self) -> Result<bool> {
        Ok(Ledger::of_version_1(&self.head()?).is_some())
    }

    fn head(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read(0, Ledger::LEN, &mut bytes)?;
        Ok(bytes)
    }

    /// Refuses the file of another lock, and one of another version.
    pub(crate) fn check_owner(&self, key: &str) -> Result<()> {
        self.ledger()?;
        let name = self.name()?;
        if name == key.as_bytes() {
            return Ok(());
        }
        Err(self.foreign(&format!(
            "it belongs to the lock {:?}; is the file system case-insensitive?",
            String::from_utf8_lossy(&name)
        )))
    }

    /// The full name of the lock that it belongs to.
    pub(crate) fn name(&self) -> Result<Vec<u8>> {
        let (mut length, mut name) = (Vec::new(), Vec::new());
        self.read(NAME_AT, 4, &mut length)?;
        let length = usize::try_from(u32::from_le_bytes(array(&length))).unwrap_or(usize::MAX);
        self.read(NAME_AT + 4, length.min(MAX_NAME), &mut name)?;
        Ok(name)
    }

    pub(crate) fn ledger(&self) -> Result<Ledger> {
        Ledger::decode(&self.head()?).map_err(|why| self.foreign(why.0))
    }

    pub(crate) fn write_ledger(&self, ledger: &Ledger) -> Result<()> {
        self.write(&ledger.encode(), 0)
    }

    /// Syncs the file to the disk, and `dirs` too, if given.
    pub(crate) fn sync(&self, dirs: Option<[BorrowedFd<'_>; 2]>) -> Result<()> {
        let synced = match dirs {
            None => sync_data(&self.file),
            Some([dir, root]) => rustix::fs::fsync(&self.file)
                .and_then(|()| rustix::fs::fsync(dir))
                .and_then(|()| rustix::fs::fsync(root)),
        };
        synced.map_err(|errno| self.failed("sync", errno))
    }

    /// Reads `len` bytes of area `which`, or less at the end of the file.
    pub(crate) fn read_area(&self, which: u32, len: usize, bytes: &mut Vec<u8>) -> Result<()> {
        self.read(u64::from(which) * AREA, len, bytes)
    }

    pub(crate) fn write_area(&self, which: u32, bytes: &[u8]) -> Result<()> {
        self.write(bytes, u64::from(which) * AREA)
    }

    /// Writes the label of the claim with `slot`.
    pub(crate) fn write_label(&self, slot: Slot, label: &Label) -> Result<()> {
        let written = regular_file::write_label(&self.file, label_at(slot), label);
        written.map_err(|errno| self.failed("write", errno))
    }

    pub(crate) fn read_label(&self, slot: Slot) -> Option<Label> {
        regular_file::read_label(&self.file, label_at(slot))
    }

    /// Reads `len` bytes at `at`, or less at the end of the file.
    pub(super) fn read(&self, at: u64, len: usize, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.resize(len, 0);
        let read = read(&self.file, bytes, at).map_err(|errno| self.failed("read", errno))?;
        bytes.truncate(read);
        Ok(())
    }

    pub(super) fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        write(&self.file, bytes, at).map_err(|errno| self.failed("write", errno))
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn failed(&self, doing: &str, errno: Errno) -> Error {
        failed(doing, &self.path.join(STATE), errno)
    }

    pub(super) fn foreign(&self, why: &str) -> Error {
        foreign(&self.path.join(STATE), why)
    }
}

fn label_at(slot: Slot) -> u64 {
    LABELS_AT + u64::from(slot) * LABEL_LEN as u64
}
