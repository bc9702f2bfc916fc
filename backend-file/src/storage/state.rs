//! The state file `L` of a lock, which outlives its processes and reboots.
//!
//! It has the lock's name, the reservation above which no fencing token is granted, the labels
//! that differ from the label of their process, and the entries of a queue that outgrew its page.
//! Reading and writing it waits for the disk, so an ordinary change of the queue does not need it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use fencelock_core::{Error, ErrorKind, Label, Result};
use rustix::fs::{FileType, FlockOperation, OFlags, flock};
use rustix::io::{self, Errno};

use crate::directory::draft::Draft;
use crate::error::{corrupt, failed, foreign};
use crate::platform::{open_quietly, sync_data};
use crate::queue::entry::{Corrupt, Slot};
use crate::queue::ledger::Ledger;
use crate::storage::labels::{LABEL_LEN, read_label, write_label};
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
    file: OwnedFd,
    /// The path of the lock's directory.
    path: &'a Path,
}

impl<'a> State<'a> {
    /// Creates the state file of the lock `key`.
    pub(crate) fn create(draft: &mut Draft<'_>, key: &str, ledger: &Ledger) -> io::Result<()> {
        let length = u32::try_from(key.len()).unwrap_or(u32::MAX);
        let name = [&length.to_le_bytes(), key.as_bytes()].concat();
        let file = draft.file(STATE)?;
        write_all(file.as_fd(), &name, NAME_AT)?;
        write_all(file.as_fd(), &ledger.encode(), 0)?;
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
        let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = open_quietly(dir, STATE, flags).map_err(|errno| match errno {
            Errno::NOENT | Errno::LOOP | Errno::ISDIR | Errno::NXIO => {
                foreign(&path.join(STATE), "it is not a regular file")
            }
            errno => failed("open", &path.join(STATE), errno),
        })?;
        let state = State { file, path };
        let stat = rustix::fs::fstat(&state.file).map_err(|e| state.failed("stat", e))?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(state.foreign("it is not a regular file"));
        }
        if stat.st_nlink > 1 {
            return Err(state.foreign("it has a second name (a hard link)"));
        }
        Ok(state)
    }

    /// Migrates a file of format 1, in the directory `dir`, if no process uses it any more. A later
    /// process of that version finds another version here and fails.
    pub(crate) fn migrate(&self, dir: BorrowedFd<'_>) -> Result<()> {
        let in_use = Corrupt(
            "an earlier version of this library uses the lock; end the processes that have it open",
        );
        let head = || self.head().map_err(|errno| self.failed("read", errno));
        if Ledger::of_version_1(&head()?).is_none() {
            return Ok(());
        }
        // The latch of that version.
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Err(corrupt(&self.path.join(STATE), in_use)),
            Err(errno) => return Err(self.failed("lock", errno)),
        }
        let Some(ledger) = Ledger::of_version_1(&head()?) else { return Ok(()) };
        let living = slot_pipe::live_slots(dir)
            .map_err(|errno| failed("watch the named pipes in", self.path, errno))?;
        match living.is_empty() {
            true => self.write_ledger(&ledger),
            false => Err(corrupt(&self.path.join(STATE), in_use)),
        }
    }

    fn head(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; Ledger::LEN];
        let read = read_fully(self.file.as_fd(), &mut bytes, 0)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// Refuses the file of another lock, and one of another version.
    pub(crate) fn check_owner(&self, key: &str) -> Result<()> {
        self.ledger()?;
        let name = self.name().map_err(|errno| self.failed("read", errno))?;
        if name == key.as_bytes() {
            return Ok(());
        }
        Err(self.foreign(&format!(
            "it belongs to the lock {:?}; is the file system case-insensitive?",
            String::from_utf8_lossy(&name)
        )))
    }

    fn name(&self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        read_fully(self.file.as_fd(), &mut length, NAME_AT)?;
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        let mut name = vec![0; length.min(MAX_NAME)];
        let read = read_fully(self.file.as_fd(), &mut name, NAME_AT + 4)?;
        name.truncate(read);
        Ok(name)
    }

    pub(crate) fn ledger(&self) -> Result<Ledger> {
        let head = self.head().map_err(|errno| self.failed("read", errno))?;
        Ledger::decode(&head).map_err(|why| corrupt(&self.path.join(STATE), why))
    }

    pub(crate) fn write_ledger(&self, ledger: &Ledger) -> Result<()> {
        let written = write_all(self.file.as_fd(), &ledger.encode(), 0);
        written.map_err(|errno| self.failed("write", errno))
    }

    /// Syncs the file to the disk, and `dirs` too, if given.
    pub(crate) fn sync(&self, dirs: Option<[BorrowedFd<'_>; 2]>) -> Result<()> {
        let synced = match dirs {
            None => sync_data(self.file.as_fd()),
            Some([dir, root]) => rustix::fs::fsync(&self.file)
                .and_then(|()| rustix::fs::fsync(dir))
                .and_then(|()| rustix::fs::fsync(root)),
        };
        synced.map_err(|errno| self.failed("sync", errno))
    }

    /// Reads `len` bytes of area `which`, or less at the end of the file.
    pub(crate) fn read_area(&self, which: u32, len: usize, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.resize(len, 0);
        let read = read_fully(self.file.as_fd(), bytes, u64::from(which) * AREA);
        bytes.truncate(read.map_err(|errno| self.failed("read", errno))?);
        Ok(())
    }

    pub(crate) fn write_area(&self, which: u32, bytes: &[u8]) -> Result<()> {
        let written = write_all(self.file.as_fd(), bytes, u64::from(which) * AREA);
        written.map_err(|errno| self.failed("write", errno))
    }

    /// Writes the label of the claim with `slot`.
    pub(crate) fn write_label(&self, slot: Slot, label: &Label) -> Result<()> {
        let written = write_label(self.file.as_fd(), label_at(slot), label);
        written.map_err(|errno| self.failed("write", errno))
    }

    pub(crate) fn read_label(&self, slot: Slot) -> Option<Label> {
        read_label(self.file.as_fd(), label_at(slot))
    }

    fn failed(&self, doing: &str, errno: Errno) -> Error {
        failed(doing, &self.path.join(STATE), errno)
    }

    fn foreign(&self, why: &str) -> Error {
        foreign(&self.path.join(STATE), why)
    }
}

fn label_at(slot: Slot) -> u64 {
    LABELS_AT + u64::from(slot) * LABEL_LEN as u64
}

/// Reads until `bytes` is full or the file ends. Returns the number of bytes.
fn read_fully(file: BorrowedFd<'_>, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match io::pread(file, &mut bytes[read..], at + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(read)
}

fn write_all(file: BorrowedFd<'_>, bytes: &[u8], at: u64) -> io::Result<()> {
    let mut written = 0;
    while written < bytes.len() {
        match io::pwrite(file, &bytes[written..], at + written as u64) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(more) => written += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
