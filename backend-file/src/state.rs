//! The file `L` of a lock: what outlives its processes and the machine's boot.
//!
//! It has the lock's name, the promise above which no fencing token is given out, the labels that
//! differ from their process's own, and the entries of a queue that outgrew its page. To read or
//! write it may take as long as the disk does, so it is in nobody's way while a queue changes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use fencelock_core::{Error, ErrorKind, Label, Result};
use rustix::fs::{FileType, FlockOperation, OFlags, flock};
use rustix::io::{self, Errno};

use crate::draft::Draft;
use crate::error::{corrupt, failed, foreign};
use crate::labels::{read_label, write_label};
use crate::ledger::Ledger;
use crate::pipe;
use crate::platform::{open_quietly, sync_data};
use crate::queue::{Corrupt, Slot};

/// Its name, in the lock's directory.
pub(crate) const STATE: &str = "L";

/// Where the lock's full name is, after its length in four bytes.
const NAME_AT: u64 = 4096;
/// The longest name with its prefix.
const MAX_NAME: usize = 60 * 1024;
/// Where an entry area begins, times its number.
const AREA: u64 = 4 << 20;
/// Where the labels are, one record for each slot.
const LABELS_AT: u64 = 16 << 20;
/// Room for one label, and its length in the first byte.
pub(crate) const LABEL_LEN: usize = 128;

/// The open file of one lock.
#[derive(Debug)]
pub(crate) struct State<'a> {
    file: OwnedFd,
    /// Of the lock's directory.
    path: &'a Path,
}

impl<'a> State<'a> {
    /// Makes that of the lock `key`.
    pub(crate) fn make(draft: &mut Draft<'_>, key: &str, ledger: &Ledger) -> io::Result<()> {
        let length = u32::try_from(key.len()).unwrap_or(u32::MAX);
        let name = [&length.to_le_bytes(), key.as_bytes()].concat();
        let file = draft.file(STATE)?;
        write_all(file.as_fd(), &name, NAME_AT)?;
        write_all(file.as_fd(), &ledger.encode(), 0)?;
        // A power failure must not leave the name of the directory without what is in it.
        rustix::fs::fsync(&file)
    }

    /// Refuses a name for which there is no room.
    pub(crate) fn check_name(key: &str) -> Result<()> {
        if key.len() <= MAX_NAME {
            return Ok(());
        }
        let message = format!("the prefix is too long; expected at most {NAME_MOST} bytes");
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// Opens the one in the directory `dir` at `path`.
    pub(crate) fn open(dir: BorrowedFd<'_>, path: &'a Path) -> Result<State<'a>> {
        let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = open_quietly(dir, STATE, flags).map_err(|errno| match errno {
            Errno::NOENT | Errno::LOOP | Errno::ISDIR | Errno::NXIO => {
                foreign(&path.join(STATE), "it is no regular file")
            }
            errno => failed("open", &path.join(STATE), errno),
        })?;
        let state = State { file, path };
        let stat = rustix::fs::fstat(&state.file).map_err(|e| state.failed("look at", e))?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(state.foreign("it is no regular file"));
        }
        if stat.st_nlink > 1 {
            return Err(state.foreign("it has a second name (a hard link)"));
        }
        Ok(state)
    }

    /// Takes over a file of format 1, in the directory `dir`, that no process uses any more. A
    /// process of that version which comes later finds another version here, and is refused.
    pub(crate) fn take_over(&self, dir: BorrowedFd<'_>) -> Result<()> {
        let in_use = Corrupt(
            "an earlier version of this library uses the lock; end the processes that have it open",
        );
        let head = || self.head().map_err(|errno| self.failed("read", errno));
        if Ledger::of_version_1(&head()?).is_none() {
            return Ok(());
        }
        // What latched the queue of that version.
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Err(corrupt(&self.path.join(STATE), in_use)),
            Err(errno) => return Err(self.failed("lock", errno)),
        }
        let Some(ledger) = Ledger::of_version_1(&head()?) else { return Ok(()) };
        let living =
            pipe::living(dir).map_err(|errno| failed("watch the pipes in", self.path, errno))?;
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

    /// Refuses the file of another lock, and that of another version.
    pub(crate) fn belongs_to(&self, key: &str) -> Result<()> {
        self.ledger()?;
        let name = self.name().map_err(|errno| self.failed("read", errno))?;
        if name == key.as_bytes() {
            return Ok(());
        }
        Err(self.foreign(&format!(
            "it belongs to the lock {:?}; does the file system know upper and lower case?",
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

    /// Has what was written on the disk; and, where `dirs` are given, those directories.
    pub(crate) fn sync(&self, dirs: Option<[BorrowedFd<'_>; 2]>) -> Result<()> {
        let synced = match dirs {
            None => sync_data(self.file.as_fd()),
            Some([dir, root]) => rustix::fs::fsync(&self.file)
                .and_then(|()| rustix::fs::fsync(dir))
                .and_then(|()| rustix::fs::fsync(root)),
        };
        synced.map_err(|errno| self.failed("sync", errno))
    }

    /// Reads `len` bytes of entry area `which`, or what there is.
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

    /// Writes the label of the claim that has `slot`.
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

/// Reads until `bytes` is full or the file ends.
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
