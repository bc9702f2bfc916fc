//! The files of one lock while they are open: its state `L`, and the directory with its pipes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fencelock_core::{Error, ErrorKind, Label, Result};
use rustix::fs::{FileType, FlockOperation, OFlags, flock, fstat};
use rustix::io::{self, Errno};

use crate::directory::{Directory, refuse_network};
use crate::error::{corrupt, failed, foreign};
use crate::labels::{read_label, write_label};
use crate::pipe;
use crate::platform::{Identity, identity_of, open_quietly, since_boot, sync_data};
use crate::queue::{
    BootId, Corrupt, LABEL, LABELS_AT, NAME_AT, NAME_MOST, PAGE, Queue, Slot, area_at,
};
use crate::turn::Changed;

/// The state of a lock, in its directory.
pub(crate) const STATE: &str = "L";
/// How many locks' files a store keeps open between uses.
const KEPT_OPEN: usize = 128;

/// How often the latch is tried before a thread waits for it.
const LATCH_TRIES: u32 = 8;

/// A lock's open files.
#[derive(Debug)]
pub(crate) struct Files {
    dir: OwnedFd,
    state: OwnedFd,
    path: Arc<Path>,
    identity: Identity,
    kept: Option<Kept>,
}

/// Room to read and write a queue in.
#[derive(Debug)]
pub(crate) struct Room {
    page: Box<[u8; PAGE]>,
    area: Vec<u8>,
}

impl Default for Room {
    fn default() -> Room {
        Room { page: Box::new([0; PAGE]), area: Vec::new() }
    }
}

impl Files {
    /// Opens the files of the lock `key` in directory `dir_name`; `None` when it has none yet.
    pub(crate) fn open(
        directory: &Directory,
        dir_name: &str,
        path: &Arc<Path>,
        key: &str,
        kept: Option<Kept>,
    ) -> Result<Option<Files>> {
        directory.still_there()?;
        let failed = |errno| failed("open", path, errno);
        let dir = match directory.open_dir(dir_name) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        refuse_network(dir.as_fd(), path)?;
        let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let state = open_quietly(dir.as_fd(), STATE, flags).map_err(|errno| match errno {
            Errno::NOENT | Errno::LOOP | Errno::ISDIR | Errno::NXIO => {
                foreign(path, "it is no regular file")
            }
            errno => failed(errno),
        })?;
        let stat = rustix::fs::fstat(&state).map_err(failed)?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(foreign(path, "it is no regular file"));
        }
        let name = read_name(state.as_fd()).map_err(failed)?;
        if name != key.as_bytes() {
            let why = format!(
                "it belongs to the lock {:?}; does the file system know upper and lower case?",
                String::from_utf8_lossy(&name)
            );
            return Err(foreign(path, &why));
        }
        let identity = identity_of(state.as_fd()).map_err(failed)?;
        if identity.links() > 1 {
            return Err(foreign(path, "it has a second name (a hard link)"));
        }
        Ok(Some(Files { dir, state, path: path.clone(), identity, kept }))
    }

    /// Makes the directory of the lock `key`, complete, unless another process has done so
    /// meanwhile.
    pub(crate) fn make(
        directory: &Directory,
        dir_name: &str,
        path: &Path,
        key: &str,
        boot: BootId,
    ) -> Result<()> {
        let Some(length) = u32::try_from(key.len()).ok().filter(|_| key.len() <= NAME_MOST) else {
            let message = format!("the prefix is too long; expected at most {NAME_MOST} bytes");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        let name = [&length.to_le_bytes(), key.as_bytes()].concat();
        let mut room = Room::default();
        let commit = Queue::new(boot, since_boot()).encode(&mut room.page, &mut room.area);
        let page = &room.page[..commit.page_len];
        let made = directory.make(dir_name, |draft| {
            let state = draft.file(STATE)?;
            write_all(state.as_fd(), &name, NAME_AT)?;
            write_all(state.as_fd(), page, 0)?;
            draft.pipe("s0")?;
            // A power failure must not leave the name of the directory without what is in it.
            rustix::fs::fsync(&state)
        });
        made.map_err(|errno| failed("make", path, errno))
    }

    /// Whether the state is still the file it was, and was not removed.
    pub(crate) fn is_linked(&self) -> Result<bool> {
        let now = identity_of(self.state.as_fd()).map_err(|e| failed("look at", &self.path, e))?;
        Ok(now == self.identity)
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Whether to keep the files open between uses.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// When the queue changed last.
    pub(crate) fn changed(&self) -> Option<Changed> {
        let stat = fstat(&self.state).ok()?;
        Some((stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or_default()))
    }

    /// The latch, if it is free, or will be within microseconds: whoever works under it on
    /// another processor is done by then, and to sleep and be woken takes ten times as long.
    pub(crate) fn try_latch(&self) -> Result<bool> {
        for _ in 0..LATCH_TRIES {
            match flock(&self.state, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(true),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(failed("lock", &self.path, errno)),
            }
        }
        Ok(false)
    }

    pub(crate) fn unlatch(&self) {
        // Fails for a bad descriptor only.
        let unlocked = flock(&self.state, FlockOperation::Unlock);
        debug_assert!(unlocked.is_ok(), "flock: {unlocked:?}");
    }

    /// Reads the queue as it is in boot `boot`.
    pub(crate) fn read(&self, queue: &mut Queue, room: &mut Room, boot: BootId) -> Result<()> {
        let failed = |errno| failed("read", &self.path, errno);
        let read = read_fully(self.state.as_fd(), &mut room.page[..], 0).map_err(failed)?;
        let decoded = queue.decode(&room.page[..read], boot, |range, bytes| {
            bytes.resize(usize::try_from(range.end - range.start).unwrap_or(0), 0);
            let read = read_fully(self.state.as_fd(), bytes, range.start).map_err(Unread::Errno)?;
            bytes.truncate(read);
            Ok(())
        });
        decoded.map_err(|unread| match unread {
            Unread::Errno(errno) => failed(errno),
            Unread::Corrupt(why) => corrupt(&self.path, why),
        })?;
        queue.begin(boot, |slot| matches!(pipe::watch(self.dir(), slot), Ok(Some(_))));
        Ok(())
    }

    /// Writes the queue: all of it or nothing, also when this process is killed meanwhile.
    pub(crate) fn write(&self, queue: &mut Queue, room: &mut Room) -> Result<()> {
        let commit = queue.encode(&mut room.page, &mut room.area);
        let state = self.state.as_fd();
        let written = match commit.area {
            Some(which) => write_all(state, &room.area, area_at(which)),
            None => Ok(()),
        };
        let written = written.and_then(|()| write_all(state, &room.page[..commit.page_len], 0));
        written.map_err(|errno| failed("write", &self.path, errno))
    }

    /// Has the state on the disk; and, where `root` is given, that it can be found there.
    pub(crate) fn sync(&self, root: Option<BorrowedFd<'_>>) -> Result<()> {
        let synced = match root {
            Some(root) => rustix::fs::fsync(&self.state)
                .and_then(|()| rustix::fs::fsync(&self.dir))
                .and_then(|()| rustix::fs::fsync(root)),
            None => sync_data(self.state.as_fd()),
        };
        synced.map_err(|errno| failed("sync", &self.path, errno))
    }

    /// The directory of the pipes.
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// As [`pipe::watch`].
    pub(crate) fn watch(&self, slot: Slot) -> Result<Option<OwnedFd>> {
        pipe::watch(self.dir(), slot).map_err(|errno| match errno {
            Errno::NOENT => foreign(&self.path, &format!("pipe s{slot} beside it was removed")),
            Errno::LOOP | pipe::NOT_OURS => {
                foreign(&self.path, &format!("s{slot} beside it is not a named pipe of its own"))
            }
            errno => failed("watch a pipe beside", &self.path, errno),
        })
    }

    /// Writes the label of whoever has `slot`.
    pub(crate) fn write_label(&self, slot: Slot, label: &Label) -> Result<()> {
        let written = write_label(self.state.as_fd(), label_at(slot), label);
        written.map_err(|errno| failed("write", &self.path, errno))
    }

    pub(crate) fn read_label(&self, slot: Slot) -> Option<Label> {
        read_label(self.state.as_fd(), label_at(slot))
    }
}

/// One of the locks whose files a store keeps open.
#[derive(Debug)]
pub(crate) struct Kept(Arc<AtomicUsize>);

impl Kept {
    /// One of as many as `count` still allows.
    pub(crate) fn one_of(count: &Arc<AtomicUsize>) -> Option<Kept> {
        let more = |count| (count < KEPT_OPEN).then_some(count + 1);
        let kept = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        kept.is_ok().then(|| Kept(count.clone()))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

enum Unread {
    Errno(Errno),
    Corrupt(Corrupt),
}

impl From<Corrupt> for Unread {
    fn from(why: Corrupt) -> Unread {
        Unread::Corrupt(why)
    }
}

fn label_at(slot: Slot) -> u64 {
    LABELS_AT + u64::from(slot) * LABEL as u64
}

fn read_name(state: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    read_fully(state, &mut length, NAME_AT)?;
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    let mut name = vec![0; length.min(NAME_MOST)];
    let read = read_fully(state, &mut name, NAME_AT + 4)?;
    name.truncate(read);
    Ok(name)
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
