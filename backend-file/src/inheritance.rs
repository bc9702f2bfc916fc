//! What a holder leaves to a child that inherits its pipe: its entry, in the pipe's own buffer.
//!
//! A child may outlive all processes that had the queue open, and the queue's page is lost with
//! those. What is in the buffer of the child's pipe stays as long as the child does, and says in
//! which mode it holds and with which token. The last record counts: a release, which does not
//! close the child's copy, writes one behind it that says so.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use fencelock_core::Mode;
use rustix::fs::OFlags;
use rustix::io::{self, Errno};

use crate::directory::OPEN_DIR;
use crate::page::PipeReader;
use crate::pipe::{self, slot_name};
use crate::platform::identity_of;
use crate::queue::{ENTRY, Entry, NO_SLOT, NO_WAKE_PIPE, Slot};

/// The last byte is the version.
const MAGIC: [u8; 8] = *b"fencels\x02";
const RECORD: usize = MAGIC.len() + ENTRY;

/// What a child inherits.
#[derive(Debug)]
pub(crate) struct Inheritance {
    copy: OwnedFd,
    /// The same pipe, open in both directions: a write can then not raise SIGPIPE.
    buffer: OwnedFd,
}

impl AsFd for Inheritance {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.copy.as_fd()
    }
}

impl Inheritance {
    /// Says that `entry` holds no more, whatever keeps its pipe open.
    pub(crate) fn revoke(&self, entry: &Entry) {
        write(self.buffer.as_fd(), &Entry { held: false, ..*entry });
    }
}

/// Makes a copy of the holder's `pipe` to pass on, with its `entry` in the buffer. The lock's
/// directory is at `path`.
pub(crate) fn pass_on(path: &Path, pipe: &OwnedFd, entry: &Entry) -> std::io::Result<Inheritance> {
    let copy = pipe.try_clone()?;
    let dir = rustix::fs::open(path, OPEN_DIR | OFlags::NOFOLLOW, rustix::fs::Mode::empty())?;
    let buffer = pipe::open(dir.as_fd(), &slot_name(entry.slot), OFlags::RDWR)?;
    if identity_of(buffer.as_fd())? != identity_of(copy.as_fd())? {
        return Err(Errno::NOENT.into());
    }
    write(buffer.as_fd(), entry);
    Ok(Inheritance { copy, buffer })
}

/// Says that the holder `entry` was evicted, whatever keeps its pipe open: under the latch.
pub(crate) fn revoke(dir: BorrowedFd<'_>, entry: &Entry) {
    let Ok(Some(_)) = pipe::watch(dir, entry.slot) else { return };
    if let Ok(buffer) = pipe::open(dir, &slot_name(entry.slot), OFlags::RDWR) {
        write(buffer.as_fd(), &Entry { held: false, ..*entry });
    }
}

/// As a whole or not at all, since it is short. What is not written makes a child count as a holder
/// for as long as it lives, in which nobody loses more than time.
fn write(buffer: BorrowedFd<'_>, entry: &Entry) {
    let mut record = [0; RECORD];
    record[..MAGIC.len()].copy_from_slice(&MAGIC);
    record[MAGIC.len()..].copy_from_slice(&entry.encode());
    if let Err(errno) = io::write(buffer, &record) {
        let error = std::io::Error::from(errno);
        tracing::debug!(target: "fencelock", %error, "could not write into the pipe of a holder");
    }
}

/// The entries of all owners of pipes in `dir` that live: of a lock whose page is lost, under its
/// latch. What is not known counts against others: an owner that left nothing, such as a child
/// that has not yet started its program, holds exclusively until it ends.
pub(crate) fn survivors(
    dir: BorrowedFd<'_>,
    pipe_reader: &PipeReader,
    since: u32,
) -> io::Result<Vec<Entry>> {
    let mut survivors = Vec::new();
    let mut content = Vec::new();
    for slot in pipe::living(dir)? {
        let own = pipe::open(dir, &slot_name(slot), OFlags::RDONLY)?;
        pipe_reader.copy(own.as_fd(), &mut content)?;
        match last(&content, slot) {
            Some(entry) if entry.held => survivors.push(entry),
            Some(_) => {}
            None => survivors.push(Entry {
                // The same whoever asks, and below all that were drawn.
                ticket: u64::from(slot) + 1,
                token: 0,
                mode: Mode::Exclusive,
                held: true,
                labelled: false,
                since,
                slot,
                watch: NO_SLOT,
                wake_pipe: NO_WAKE_PIPE,
            }),
        }
    }
    Ok(survivors)
}

/// The last record, if there are only records of this slot.
fn last(content: &[u8], slot: Slot) -> Option<Entry> {
    let (records, rest) = content.as_chunks::<RECORD>();
    let mut last = None;
    for record in records {
        let entry = Entry::decode(record.strip_prefix(&MAGIC)?.try_into().ok()?).ok()?;
        if entry.slot != slot || entry.ticket == 0 {
            return None;
        }
        last = Some(entry);
    }
    last.filter(|_| rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(entry: &Entry) -> Vec<u8> {
        [&MAGIC[..], &entry.encode()].concat()
    }

    #[test]
    fn the_last_record_counts_and_anything_else_is_unknown() {
        let held = Entry {
            ticket: 7,
            token: 9,
            mode: Mode::Shared,
            held: true,
            labelled: true,
            since: 3,
            slot: 4,
            watch: NO_SLOT,
            wake_pipe: 1,
        };
        let released = Entry { held: false, ..held };
        let both = [record(&held), record(&released)].concat();
        assert_eq!(last(&record(&held), 4), Some(held));
        assert_eq!(last(&both, 4), Some(released));
        assert_eq!(last(&[], 4), None);
        assert_eq!(last(&both[..50], 4), None);
        assert_eq!(last(&record(&held), 5), None);
        assert_eq!(last(&[0; RECORD], 4), None);
    }
}
