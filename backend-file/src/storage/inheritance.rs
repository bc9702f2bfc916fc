//! The record of a holder's entry in the buffer of its pipe, for a child that inherits the pipe.
//!
//! A child may outlive all processes that had the queue open, with which the queue's page is lost.
//! The buffer of the child's pipe stays as long as the child does; its record has the mode and the
//! token with which the child holds. The last record counts: a release, which does not close the
//! child's copy, appends one that is not held.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use fencelock_core::Mode;
use rustix::fs::OFlags;
use rustix::io::{self, Errno};

use crate::directory::open::OPEN_DIR;
use crate::platform::identity_of;
use crate::queue::entry::{ENTRY, Entry, NO_WAKE_PIPE, Slot};
use crate::storage::page::PipeReader;
use crate::storage::slot_pipe::slot_name;
use crate::storage::{named_pipe, slot_pipe};

/// The last byte is the version.
const MAGIC: [u8; 8] = *b"fencels\x02";
const RECORD: usize = MAGIC.len() + ENTRY;

/// The descriptor that a child inherits.
#[derive(Debug)]
pub(crate) struct Inheritance {
    copy: OwnedFd,
    /// The same pipe, open in both directions, so that a write cannot raise SIGPIPE.
    buffer: OwnedFd,
}

impl AsFd for Inheritance {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.copy.as_fd()
    }
}

impl Inheritance {
    /// Records how `entry` holds from now on.
    pub(crate) fn update(&self, entry: &Entry) {
        write(self.buffer.as_fd(), entry);
    }

    /// Records that `entry` no longer holds, whatever keeps its pipe open.
    pub(crate) fn revoke(&self, entry: &Entry) {
        write(self.buffer.as_fd(), &Entry { held: false, ..*entry });
    }
}

/// Copies the holder's `pipe` for a child, with its `entry` in the buffer. The lock's directory is
/// at `path`.
pub(crate) fn pass_on(path: &Path, pipe: &OwnedFd, entry: &Entry) -> std::io::Result<Inheritance> {
    let copy = pipe.try_clone()?;
    let dir = rustix::fs::open(path, OPEN_DIR | OFlags::NOFOLLOW, rustix::fs::Mode::empty())?;
    let buffer = named_pipe::open(dir.as_fd(), &slot_name(entry.slot), OFlags::RDWR)?;
    if identity_of(buffer.as_fd())? != identity_of(copy.as_fd())? {
        return Err(Errno::NOENT.into());
    }
    write(buffer.as_fd(), entry);
    Ok(Inheritance { copy, buffer })
}

/// Records that the holder `entry` was evicted, whatever keeps its pipe open. Under the latch.
pub(crate) fn revoke(dir: BorrowedFd<'_>, entry: &Entry) {
    let Ok(Some(_)) = slot_pipe::watch(dir, entry.slot) else { return };
    if let Ok(buffer) = named_pipe::open(dir, &slot_name(entry.slot), OFlags::RDWR) {
        write(buffer.as_fd(), &Entry { held: false, ..*entry });
    }
}

/// Writes a record, which is short enough to be written as a whole or not at all. If it is not
/// written, a child counts as a holder for as long as it lives, which costs others only time.
fn write(buffer: BorrowedFd<'_>, entry: &Entry) {
    let mut record = [0; RECORD];
    record[..MAGIC.len()].copy_from_slice(&MAGIC);
    record[MAGIC.len()..].copy_from_slice(&entry.encode());
    if let Err(errno) = io::write(buffer, &record) {
        let error = std::io::Error::from(errno);
        tracing::debug!(target: "fencelock", %error, "cannot write to the pipe of a holder");
    }
}

/// The entries of all living owners of pipes in `dir`, for a lock whose page is lost, under its
/// latch. An owner without a record, such as a child that has not yet started its program, counts
/// as an exclusive holder until it ends.
pub(crate) fn survivors(
    dir: BorrowedFd<'_>,
    pipe_reader: &PipeReader,
    since: u32,
) -> io::Result<Vec<Entry>> {
    let mut survivors = Vec::new();
    let mut content = Vec::new();
    for slot in slot_pipe::live_slots(dir)? {
        let own = named_pipe::open(dir, &slot_name(slot), OFlags::RDONLY)?;
        pipe_reader.copy(own.as_fd(), &mut content)?;
        match last(&content, slot) {
            Some(entry) if entry.held => survivors.push(entry),
            Some(_) => {}
            None => {
                // The same in every process, and below all real tickets.
                let ticket = u64::from(slot) + 1;
                let unknown = Entry::waiting(ticket, Mode::Exclusive, NO_WAKE_PIPE, since);
                survivors.push(Entry { held: true, slot, ..unknown });
            }
        }
    }
    Ok(survivors)
}

/// The last record in `content`, if all of it is records of `slot`.
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
            token: 9,
            held: true,
            labelled: true,
            slot: 4,
            ..Entry::waiting(7, Mode::Shared, 1, 3)
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
