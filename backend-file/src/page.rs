//! Where the queue of a lock is: in the buffer of the named pipe `q`, in the lock's directory.
//!
//! A file system that is frozen, or whose device is dead, blocks a thread that writes to a file of
//! it. A pipe's buffer is the kernel's memory: it is read and written at once whatever the disk
//! does, and lives for as long as a process has the pipe open. It is read without being consumed,
//! by `tee`. A commit writes the new record behind the old one and now and then consumes what is in
//! front, so a process that is killed leaves whole records, and the last one counts. The latch is an
//! flock on the pipe.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::{self, Errno};

use crate::draft::Draft;
use crate::platform::{Identity, identity_of};
use crate::queue::MAX_RECORD;

/// The name of a lock's page, in its directory.
pub(crate) const QUEUE: &str = "q";
/// How often the latch is tried before its caller pauses.
const LATCH_TRIES: u32 = 8;

/// The page of one lock. What is in it stays for as long as any process has it open.
#[derive(Debug)]
pub(crate) struct Page {
    fd: OwnedFd,
    identity: Identity,
}

impl Page {
    /// Makes an empty one.
    pub(crate) fn make(draft: &mut Draft<'_>) -> io::Result<()> {
        system::make(draft)
    }

    /// Opens the page in a lock's directory.
    pub(crate) fn open(dir: BorrowedFd<'_>) -> io::Result<Page> {
        let fd = system::open(dir)?;
        let identity = identity_of(fd.as_fd())?;
        Ok(Page { fd, identity })
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Whether it was not removed.
    pub(crate) fn is_linked(&self) -> io::Result<bool> {
        Ok(identity_of(self.fd.as_fd())? == self.identity)
    }

    /// When it was changed last, in s and ns.
    pub(crate) fn changed(&self) -> Option<(i64, i64)> {
        let stat = rustix::fs::fstat(&self.fd).ok()?;
        Some((stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or_default()))
    }

    /// The latch, if it is free, or will be within microseconds: a process that works under it on
    /// another processor is done by then, and to sleep and be woken takes ten times as long.
    pub(crate) fn try_latch(&self) -> io::Result<bool> {
        for _ in 0..LATCH_TRIES {
            match flock(&self.fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(true),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(false)
    }

    pub(crate) fn unlatch(&self) {
        // Fails for a bad descriptor only.
        let unlocked = flock(&self.fd, FlockOperation::Unlock);
        debug_assert!(unlocked.is_ok(), "flock: {unlocked:?}");
    }

    /// Reads what is in it: nothing, or records of which the last counts.
    pub(crate) fn read(&self, scratch: &PipeReader, content: &mut Vec<u8>) -> io::Result<()> {
        scratch.copy(self.fd.as_fd(), content)
    }

    /// Puts `record` in place of what is in it, under the latch: of an `old` record and `left`
    /// bytes in front of it. How many bytes are in front of the new one now.
    pub(crate) fn commit(&self, left: usize, old: usize, record: &[u8]) -> io::Result<usize> {
        system::commit(self.fd.as_fd(), left, old, record)
    }

    /// Takes away what is in it, under the latch: of a page that something else has damaged.
    pub(crate) fn clear(&self) -> io::Result<()> {
        system::clear(self.fd.as_fd())
    }
}

/// What a store needs to read pages. It takes two system calls that wait for nothing; who reads at
/// the same time as another has pipes of its own for it, if there are descriptors.
#[derive(Debug)]
pub(crate) struct PipeReader {
    first: Mutex<Option<system::Copier>>,
    spare: Mutex<Vec<system::Copier>>,
}

/// How many are kept beside the first.
const SPARE: usize = 7;

impl PipeReader {
    pub(crate) fn new() -> io::Result<PipeReader> {
        let first = Mutex::new(Some(system::Copier::new()?));
        Ok(PipeReader { first, spare: Mutex::default() })
    }

    /// Reads what is in the buffer of `pipe`, which stays there.
    pub(crate) fn copy(&self, pipe: BorrowedFd<'_>, content: &mut Vec<u8>) -> io::Result<()> {
        match self.first.try_lock() {
            Ok(first) => return PipeReader::copy_by(first, pipe, content),
            Err(TryLockError::Poisoned(first)) => {
                return PipeReader::copy_by(first.into_inner(), pipe, content);
            }
            Err(TryLockError::WouldBlock) => {}
        }
        let spare = self.spare().pop();
        let Ok(mut copier) = spare.map_or_else(system::Copier::new, Ok) else {
            let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
            return PipeReader::copy_by(first, pipe, content);
        };
        // One that failed may have something left in it, and is not used again.
        copier.copy(pipe, content)?;
        let mut spare = self.spare();
        if spare.len() < SPARE {
            spare.push(copier);
        }
        Ok(())
    }

    fn copy_by(
        mut slot: MutexGuard<'_, Option<system::Copier>>,
        pipe: BorrowedFd<'_>,
        content: &mut Vec<u8>,
    ) -> io::Result<()> {
        let mut copier = match slot.take() {
            Some(copier) => copier,
            None => system::Copier::new()?,
        };
        copier.copy(pipe, content)?;
        *slot = Some(copier);
        Ok(())
    }

    fn spare(&self) -> MutexGuard<'_, Vec<system::Copier>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The most that a page can have: two of the longest records.
const MAX_CONTENT: usize = 2 * MAX_RECORD;
const OPEN: OFlags =
    OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

#[cfg(target_os = "linux")]
mod system {
    use super::{
        AsFd, BorrowedFd, Draft, Errno, MAX_CONTENT, MAX_RECORD, OPEN, OwnedFd, QUEUE, io,
    };
    use crate::pipe::{LARGEST, checked};
    use crate::platform::open_quietly;
    use crate::queue::COMPACT_ABOVE;
    use std::mem::MaybeUninit;

    use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, pipe_with, tee};

    pub(super) fn make(draft: &mut Draft<'_>) -> io::Result<()> {
        draft.pipe(QUEUE).map(drop)
    }

    pub(super) fn open(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let pipe = checked(open_quietly(dir, QUEUE, OPEN)?)?;
        has_room(&pipe).map(|()| pipe)
    }

    pub(super) fn commit(
        pipe: BorrowedFd<'_>,
        left: usize,
        old: usize,
        record: &[u8],
    ) -> io::Result<usize> {
        let stays = left + old + record.len() <= COMPACT_ABOVE;
        let left = match stays {
            true => left,
            false => consume(pipe, left).map(|()| 0)?,
        };
        // As a whole or not at all, whatever kills this process. There is room, since a record lies
        // in one of the pipe's pages: either the old one is the only other, or what is there is so
        // short that it lies in two at most, the second of which has room for more.
        if io::write(pipe, record)? != record.len() {
            return Err(Errno::IO);
        }
        // The new one counts from now on. What could not be consumed is left for the next commit.
        match stays || consume(pipe, old).is_err() {
            true => Ok(left + old),
            false => Ok(0),
        }
    }

    pub(super) fn clear(pipe: BorrowedFd<'_>) -> io::Result<()> {
        // Not without end, since another user of the directory may write on and on.
        match consume(pipe, LARGEST) {
            Err(Errno::AGAIN) => Ok(()),
            cleared => cleared,
        }
    }

    fn consume(pipe: BorrowedFd<'_>, mut len: usize) -> io::Result<()> {
        let mut room = [MaybeUninit::<u8>::uninit(); MAX_RECORD];
        while len > 0 {
            let part = len.min(room.len());
            match io::read(pipe, &mut room[..part]) {
                Ok(([], _)) => return Err(Errno::IO),
                Ok((read, _)) => len -= read.len(),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Whether the kernel gave a pipe room for two records. It does, unless its version is from
    /// before 2021 and its user has more than 1,024 pipes open.
    fn has_room(pipe: &OwnedFd) -> io::Result<()> {
        match fcntl_getpipe_size(pipe)? >= 2 * rustix::param::page_size() {
            true => Ok(()),
            false => Err(Errno::NOBUFS),
        }
    }

    /// A pipe of this store's own, into which another's content is copied before it is read.
    #[derive(Debug)]
    pub(super) struct Copier {
        from: OwnedFd,
        to: OwnedFd,
    }

    impl Copier {
        pub(super) fn new() -> io::Result<Copier> {
            let (from, to) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
            has_room(&from)?;
            Ok(Copier { from, to })
        }

        pub(super) fn copy(
            &mut self,
            pipe: BorrowedFd<'_>,
            content: &mut Vec<u8>,
        ) -> io::Result<()> {
            let len = match tee(pipe, self.to.as_fd(), MAX_CONTENT, SpliceFlags::NONBLOCK) {
                Ok(len) => len,
                Err(Errno::AGAIN) => 0,
                Err(errno) => return Err(errno),
            };
            content.clear();
            content.resize(len, 0);
            match len > 0 && io::read(&self.from, &mut content[..])? != len {
                true => Err(Errno::IO),
                false => Ok(()),
            }
        }
    }
}

/// Elsewhere there is no `tee`, and no way to freeze a file system: the page is the beginning of a
/// file, which one call replaces.
#[cfg(not(target_os = "linux"))]
mod system {
    use super::{BorrowedFd, Draft, Errno, MAX_CONTENT, OPEN, OwnedFd, QUEUE, io};
    use crate::platform::open_quietly;
    use rustix::fs::{FileType, fstat};

    pub(super) fn make(draft: &mut Draft<'_>) -> io::Result<()> {
        draft.file(QUEUE).map(drop)
    }

    pub(super) fn open(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let file = open_quietly(dir, QUEUE, OPEN)?;
        let stat = fstat(&file)?;
        match FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_nlink == 1 {
            true => Ok(file),
            false => Err(crate::pipe::NOT_OURS),
        }
    }

    pub(super) fn commit(
        file: BorrowedFd<'_>,
        _left: usize,
        _old: usize,
        record: &[u8],
    ) -> io::Result<usize> {
        // Padded, so that what is behind a shorter record is not taken for another.
        let mut page = vec![0; MAX_CONTENT / 2];
        page[..record.len()].copy_from_slice(record);
        match io::pwrite(file, &page, 0)? {
            written if written == page.len() => Ok(0),
            _ => Err(Errno::NOSPC),
        }
    }

    pub(super) fn clear(file: BorrowedFd<'_>) -> io::Result<()> {
        rustix::fs::ftruncate(file, 0)
    }

    #[derive(Debug)]
    pub(super) struct Copier;

    impl Copier {
        // As where it can fail.
        #[allow(clippy::unnecessary_wraps)]
        pub(super) fn new() -> io::Result<Copier> {
            Ok(Copier)
        }

        pub(super) fn copy(
            &mut self,
            file: BorrowedFd<'_>,
            content: &mut Vec<u8>,
        ) -> io::Result<()> {
            content.resize(MAX_CONTENT / 2, 0);
            let read = match io::pread(file, &mut content[..], 0) {
                // The pipe of a slot, which cannot be read without being consumed.
                Err(Errno::SPIPE) => 0,
                read => read?,
            };
            content.truncate(read);
            let len = crate::queue::first_record(content).len();
            content.truncate(len);
            Ok(())
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::draft::Rights;
    use crate::queue::COMPACT_ABOVE;
    use rustix::fs::{Mode, OFlags, fstat};
    use rustix::pipe::fcntl_setpipe_size;

    #[allow(clippy::unwrap_used)]
    fn opened(dir: &tempfile::TempDir) -> Page {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(dir.path(), flags, Mode::empty()).unwrap();
        let rights = Rights::of(&fstat(&dir).unwrap());
        let mut draft = Draft::in_dir(dir.as_fd(), &rights).unwrap();
        Page::make(&mut draft).unwrap();
        draft.move_out(QUEUE, QUEUE).unwrap();
        drop(draft);
        Page::open(dir.as_fd()).unwrap()
    }

    #[test]
    fn the_smallest_pipe_has_room_for_every_commit_and_for_what_a_killed_process_left() {
        let dir = tempfile::tempdir().unwrap();
        let page = opened(&dir);
        let pages = rustix::param::page_size();
        assert_eq!(fcntl_setpipe_size(&page.fd, 2 * pages).unwrap(), 2 * pages);
        let scratch = PipeReader::new().unwrap();
        let mut content = Vec::new();
        let (mut left, mut old) = (0, 0);
        for step in 0..20_000_usize {
            // Long ones among crowds of short ones.
            let longest = [MAX_RECORD, 40, 300, COMPACT_ABOVE][step / 50 % 4];
            let len = 1 + step * 7919 % longest;
            let record = vec![b'0' + (step % 10) as u8; len];
            let consumes =
                left + old + len > COMPACT_ABOVE && (left == 0 || left + len > COMPACT_ABOVE);
            if step % 3 == 0 && consumes {
                // As of a process that is killed before it consumes the old one.
                system::commit(page.fd.as_fd(), left, 0, &record).unwrap();
                left = old;
            } else {
                left = page.commit(left, old, &record).unwrap();
            }
            old = len;
            for _ in 0..2 {
                page.read(&scratch, &mut content).unwrap();
                assert_eq!(content.len(), left + old, "step {step}");
                assert_eq!(&content[left..], record, "step {step}");
            }
        }
        page.clear().unwrap();
        page.read(&scratch, &mut content).unwrap();
        assert_eq!(content, []);
    }

    #[test]
    fn a_page_is_lost_when_no_process_has_it_open() {
        let dir = tempfile::tempdir().unwrap();
        let page = opened(&dir);
        let scratch = PipeReader::new().unwrap();
        let open_again = || {
            let dir = rustix::fs::open(dir.path(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
            Page::open(dir.unwrap().as_fd()).unwrap()
        };
        let mut content = Vec::new();
        page.commit(0, 0, b"record").unwrap();
        let other = open_again();
        drop(page);
        other.read(&scratch, &mut content).unwrap();
        assert_eq!(content, b"record");
        drop(other);
        open_again().read(&scratch, &mut content).unwrap();
        assert_eq!(content, []);
    }
}
