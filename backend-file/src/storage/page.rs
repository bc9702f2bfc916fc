//! The page of a lock: its queue in the buffer of the named pipe `q`, in the lock's directory.
//!
//! A file system that is frozen, or whose device is dead, blocks a thread that writes to one of its
//! files. A pipe's buffer is kernel memory: it is read and written at once whatever the disk does,
//! and lives for as long as a process has the pipe open. `tee` reads it without consuming it. A
//! commit appends the new record and from time to time consumes the outdated ones before it, so a
//! killed process leaves whole records, and the last one counts. The latch is an flock on the pipe.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, flock};
use rustix::io::{self, Errno};

use crate::directory::draft::Draft;
use crate::platform::{Identity, identity_of};
use crate::queue::record::MAX_RECORD;

/// The name of a lock's page, in its directory.
pub(crate) const QUEUE: &str = "q";
/// The time of a page's last change, in s and ns.
pub(crate) type Changed = (i64, i64);

/// How often the latch is tried before the caller pauses.
const LATCH_TRIES: u32 = 8;

/// The page of one lock. Its content lives for as long as any process has it open.
#[derive(Debug)]
pub(crate) struct Page {
    fd: OwnedFd,
    pub(crate) identity: Identity,
}

impl Page {
    /// Opens the page in a lock's directory.
    pub(crate) fn open(dir: BorrowedFd<'_>) -> io::Result<Page> {
        let fd = system::open(dir)?;
        let identity = identity_of(fd.as_fd())?;
        Ok(Page { fd, identity })
    }

    /// Whether the page still has its name: it was not removed.
    pub(crate) fn is_linked(&self) -> io::Result<bool> {
        Ok(identity_of(self.fd.as_fd())? == self.identity)
    }

    /// The time of the last change.
    pub(crate) fn changed(&self) -> Option<Changed> {
        let stat = rustix::fs::fstat(&self.fd).ok()?;
        Some((stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or_default()))
    }

    /// Takes the latch if it is free, or will be within microseconds: a process that holds it on
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
        // Fails only for a bad descriptor.
        let unlocked = flock(&self.fd, FlockOperation::Unlock);
        debug_assert!(unlocked.is_ok(), "flock: {unlocked:?}");
    }

    /// Reads the content: nothing, or records of which the last counts.
    pub(crate) fn read(&self, reader: &PipeReader, content: &mut Vec<u8>) -> io::Result<()> {
        reader.copy(self.fd.as_fd(), content)
    }
}

/// Reads the buffers of pipes, with two system calls that never block. Concurrent readers use pipes
/// of their own, if there are descriptors, and otherwise wait for the first one.
#[derive(Debug)]
pub(crate) struct PipeReader([Mutex<Option<system::Copier>>; READERS]);

/// How many concurrent readers have pipes of their own.
const READERS: usize = 8;

impl PipeReader {
    pub(crate) fn new() -> io::Result<PipeReader> {
        let reader = PipeReader(Default::default());
        *reader.first() = Some(system::Copier::new()?);
        Ok(reader)
    }

    /// Reads the buffer of `pipe` without consuming it.
    pub(crate) fn copy(&self, pipe: BorrowedFd<'_>, content: &mut Vec<u8>) -> io::Result<()> {
        let mut slot = self.free().unwrap_or_else(|| self.first());
        // A copier that failed may have bytes left in it and is not reused.
        let mut copier = slot.take().map_or_else(system::Copier::new, Ok)?;
        copier.copy(pipe, content)?;
        *slot = Some(copier);
        Ok(())
    }

    /// A copier that no other thread uses.
    fn free(&self) -> Option<MutexGuard<'_, Option<system::Copier>>> {
        let mut free = self.0.iter().find_map(|copier| copier.try_lock().ok())?;
        if free.is_none() {
            *free = Some(system::Copier::new().ok()?);
        }
        Some(free)
    }

    fn first(&self) -> MutexGuard<'_, Option<system::Copier>> {
        self.0[0].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The longest content of a page: two of the longest records.
const MAX_CONTENT: usize = 2 * MAX_RECORD;

#[cfg(target_os = "linux")]
mod system {
    use super::{
        AsFd, BorrowedFd, Draft, Errno, MAX_CONTENT, MAX_RECORD, OwnedFd, Page, QUEUE, io,
    };
    use crate::platform::open_quietly;
    use crate::queue::record::COMPACT_ABOVE;
    use crate::storage::named_pipe::{LARGEST, OPEN, checked};
    use std::mem::MaybeUninit;

    use rustix::fs::FileType;
    use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, pipe_with, tee};

    impl Page {
        /// Creates an empty page.
        pub(crate) fn create(draft: &mut Draft<'_>) -> io::Result<()> {
            draft.pipe(QUEUE).map(drop)
        }

        /// Replaces the content by `record`, under the latch. The content is `left` outdated bytes
        /// and a record of `old` bytes. Returns the number of outdated bytes before the new record.
        pub(crate) fn commit(&self, left: usize, old: usize, record: &[u8]) -> io::Result<usize> {
            let stays = left + old + record.len() <= COMPACT_ABOVE;
            let left = if stays { left } else { consume(self.fd.as_fd(), left).map(|()| 0)? };
            // Written as a whole or not at all, whatever kills this process. There is room, since a
            // record lies within one of the buffer's pages: either the old record is the only
            // other, or the content is so short that it lies in at most two, the second of which
            // has room.
            if io::write(&self.fd, record)? != record.len() {
                return Err(Errno::IO);
            }
            // The new record counts from now on. What could not be consumed is left to the next
            // commit.
            if stays || consume(self.fd.as_fd(), old).is_err() { Ok(left + old) } else { Ok(0) }
        }

        /// Removes the content of a damaged page, under the latch.
        pub(crate) fn clear(&self) -> io::Result<()> {
            // Bounded, since another user of the directory may keep writing.
            match consume(self.fd.as_fd(), LARGEST) {
                Err(Errno::AGAIN) => Ok(()),
                cleared => cleared,
            }
        }
    }

    pub(super) fn open(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let pipe = checked(open_quietly(dir, QUEUE, OPEN)?, FileType::Fifo)?;
        has_room(&pipe).map(|()| pipe)
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

    /// Checks that the kernel gave a pipe room for two records. It does, unless it is older than
    /// 2021 and the user has more than 1,024 pipes open.
    fn has_room(pipe: &OwnedFd) -> io::Result<()> {
        match fcntl_getpipe_size(pipe)? >= 2 * rustix::param::page_size() {
            true => Ok(()),
            false => Err(Errno::NOBUFS),
        }
    }

    /// A private pipe, into which the content of another pipe is copied before it is read.
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

/// On other systems there is no `tee`, and no way to freeze a file system: the page is the beginning
/// of a file, which one call replaces.
#[cfg(not(target_os = "linux"))]
mod system {
    use super::{AsFd, BorrowedFd, Draft, Errno, MAX_CONTENT, OwnedFd, Page, QUEUE, io};
    use crate::queue::record::first_record;
    use crate::storage::regular_file;

    impl Page {
        pub(crate) fn create(draft: &mut Draft<'_>) -> io::Result<()> {
            draft.file(QUEUE).map(drop)
        }

        pub(crate) fn commit(&self, _left: usize, _old: usize, record: &[u8]) -> io::Result<usize> {
            // Padded, so that the rest of a longer record does not count as another record.
            let mut page = vec![0; MAX_CONTENT / 2];
            page[..record.len()].copy_from_slice(record);
            match io::pwrite(self.fd.as_fd(), &page, 0)? {
                written if written == page.len() => Ok(0),
                _ => Err(Errno::NOSPC),
            }
        }

        pub(crate) fn clear(&self) -> io::Result<()> {
            rustix::fs::ftruncate(&self.fd, 0)
        }
    }

    pub(super) fn open(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        regular_file::open(dir, QUEUE).map(OwnedFd::from)
    }

    #[derive(Debug)]
    pub(super) struct Copier;

    impl Copier {
        // The same signature as on Linux, where it can fail.
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
                // A slot pipe, which cannot be read here without consuming it.
                Err(Errno::SPIPE) => 0,
                read => read?,
            };
            content.truncate(read);
            let len = first_record(content).len();
            content.truncate(len);
            Ok(())
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::directory::draft::Rights;
    use crate::queue::record::COMPACT_ABOVE;
    use rustix::fs::{Mode, OFlags, fstat};
    use rustix::pipe::fcntl_setpipe_size;

    #[allow(clippy::unwrap_used)]
    fn opened(dir: &tempfile::TempDir) -> Page {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(dir.path(), flags, Mode::empty()).unwrap();
        let rights = Rights::of(&fstat(&dir).unwrap());
        let mut draft = Draft::in_dir(dir.as_fd(), &rights).unwrap();
        Page::create(&mut draft).unwrap();
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
        let reader = PipeReader::new().unwrap();
        let mut content = Vec::new();
        let (mut left, mut old) = (0, 0);
        for step in 0..20_000_usize {
            // Long records among many short ones.
            let longest = [MAX_RECORD, 40, 300, COMPACT_ABOVE][step / 50 % 4];
            let len = 1 + step * 7919 % longest;
            let record = vec![b'0' + (step % 10) as u8; len];
            let consumes =
                left + old + len > COMPACT_ABOVE && (left == 0 || left + len > COMPACT_ABOVE);
            if step % 3 == 0 && consumes {
                // Like a process that is killed before it consumes the old record.
                page.commit(left, 0, &record).unwrap();
                left = old;
            } else {
                left = page.commit(left, old, &record).unwrap();
            }
            old = len;
            for _ in 0..2 {
                page.read(&reader, &mut content).unwrap();
                assert_eq!(content.len(), left + old, "step {step}");
                assert_eq!(&content[left..], record, "step {step}");
            }
        }
        page.clear().unwrap();
        page.read(&reader, &mut content).unwrap();
        assert_eq!(content, []);
    }

    #[test]
    fn a_page_is_lost_when_no_process_has_it_open() {
        let dir = tempfile::tempdir().unwrap();
        let page = opened(&dir);
        let reader = PipeReader::new().unwrap();
        let open_again = || {
            let dir = rustix::fs::open(dir.path(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
            Page::open(dir.unwrap().as_fd()).unwrap()
        };
        let mut content = Vec::new();
        page.commit(0, 0, b"record").unwrap();
        let other = open_again();
        drop(page);
        other.read(&reader, &mut content).unwrap();
        assert_eq!(content, b"record");
        drop(other);
        open_again().read(&reader, &mut content).unwrap();
        assert_eq!(content, []);
    }
}
