//! The named pipes by which the owner of an entry is known to live.
//!
//! The owner of an entry has the pipe of its slot open for reading, and its watchers have it open
//! for writing. The kernel signals an error to the watchers exactly when the last copy of the
//! owner's descriptor closes: the end of a process is a wake-up, and so is a release. The direction
//! matters: a reader that opens a pipe after its writer died would not be notified.
//!
//! The pipe's buffer has the record for a child that inherits the pipe (`inheritance.rs`).

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FlockOperation, OFlags, flock};
use rustix::io::{self, Errno};

use crate::directory::draft::{Draft, Rights};
use crate::error::NOT_OURS;
use crate::queue::entry::{MAX_ENTRIES, NO_SLOT, Slot};
use crate::queue::rules::Queue;
use crate::storage::named_pipe::{KEPT_PIPES, LARGEST, PipeName, open, open_unchecked};

pub(crate) fn slot_name(slot: Slot) -> PipeName {
    PipeName::new(b's', slot)
}

/// Takes a free pipe, under the latch. `None` if a pipe would have to be created, which waits for
/// the disk, and no rights are given.
///
/// An owner also has its pipe locked. Every copy of the descriptor shares that lock, so a pipe that
/// can be locked has neither an owner nor a child that inherited it. The `known` pipe was the last
/// one of the caller; it is unchanged and unwatched, so it is neither checked nor emptied.
pub(crate) fn take(
    dir: BorrowedFd<'_>,
    queue: &Queue,
    rights: Option<&Rights>,
    known: Option<Slot>,
) -> io::Result<Option<(Slot, OwnedFd)>> {
    if let Some(slot) = known
        && let Ok(pipe) = open_unchecked(dir, &slot_name(slot), OFlags::RDONLY)
        && flock(&pipe, FlockOperation::NonBlockingLockExclusive).is_ok()
    {
        return Ok(Some((slot, pipe)));
    }
    let mut slot = queue.free_slot(0);
    while usize::from(slot) < MAX_ENTRIES {
        match open(dir, &slot_name(slot), OFlags::RDONLY) {
            Ok(pipe) => {
                let locked = flock(&pipe, FlockOperation::NonBlockingLockExclusive);
                // A waiter that still watches an earlier owner has yet to notice its end, and
                // would not notice it with a new owner there.
                if locked.is_ok() && (empty(&pipe)? || !queue.is_watched(slot)) {
                    return Ok(Some((slot, pipe)));
                }
            }
            Err(Errno::NOENT) => {
                let Some(rights) = rights else { return Ok(None) };
                create(dir, &slot_name(slot), rights)?;
                continue;
            }
            // Created while the directory had other permissions, or not by this library.
            Err(Errno::ACCESS | Errno::LOOP | NOT_OURS) => {}
            Err(errno) => return Err(errno),
        }
        slot = queue.free_slot(slot + 1);
    }
    Err(Errno::NFILE)
}

/// Empties the buffer of `pipe`, in which an earlier owner's record stays while an old watcher has
/// the pipe open: it must not count as the new owner's. Returns whether no watcher has it open,
/// which is the end of file. Bounded, since another user of the directory may keep writing.
fn empty(pipe: &OwnedFd) -> io::Result<bool> {
    let mut left = [0; 4096];
    for _ in 0..=LARGEST / left.len() {
        match io::read(pipe, &mut left) {
            Ok(0) => return Ok(true),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(false),
            Err(errno) => return Err(errno),
        }
    }
    Ok(false)
}

/// The surplus pipes to be removed now that no entry has the slot `gone`. One is kept for as long
/// as there are many waiters, for the next one that joins.
pub(crate) fn surplus(queue: &mut Queue, gone: Slot) -> impl Iterator<Item = Slot> + use<> {
    let mut gone = Some(gone).filter(|gone| *gone >= KEPT_PIPES);
    let mut spare = None;
    if queue.entries.len() < usize::from(KEPT_PIPES) {
        spare =
            Some(std::mem::replace(&mut queue.spare, NO_SLOT)).filter(|spare| *spare != NO_SLOT);
    } else if queue.spare == NO_SLOT {
        queue.spare = gone.take().unwrap_or(NO_SLOT);
    }
    gone.into_iter().chain(spare)
}

/// Removes the pipe of `slot`. Its owner does so under the latch, once no entry has the slot.
/// Watchers have the pipe open and still notice its end.
pub(crate) fn remove(dir: BorrowedFd<'_>, slot: Slot) {
    // A pipe that could not be removed is reused.
    let _ = rustix::fs::unlinkat(dir, slot_name(slot).as_str(), AtFlags::empty());
}

/// The slots of a lock whose owners live, under the latch.
pub(crate) fn live_slots(dir: BorrowedFd<'_>) -> io::Result<Vec<Slot>> {
    let mut living = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let Some(slot) = slot_of(entry.file_name().to_bytes()) else { continue };
        match watch(dir, slot) {
            Ok(Some(_)) => living.push(slot),
            // No claim uses a file that is not a named pipe of this library.
            Ok(None) | Err(Errno::NOENT | Errno::LOOP | NOT_OURS) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(living)
}

fn slot_of(name: &[u8]) -> Option<Slot> {
    let slot = std::str::from_utf8(name.strip_prefix(b"s")?).ok()?.parse().ok()?;
    (slot_name(slot).as_bytes() == name).then_some(slot)
}

/// Opens `slot` to watch its owner; `None` when no copy of the owner's descriptor is open. Under
/// the latch, since another claim could take the slot otherwise. A missing pipe is an error: it was
/// removed by hand, and its owner may live.
pub(crate) fn watch(dir: BorrowedFd<'_>, slot: Slot) -> io::Result<Option<OwnedFd>> {
    match open(dir, &slot_name(slot), OFlags::WRONLY) {
        Ok(pipe) => Ok(Some(pipe)),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Creates pipe `name`, replacing a file there, under the latch.
fn create(dir: BorrowedFd<'_>, name: &PipeName, rights: &Rights) -> io::Result<()> {
    let mut draft = Draft::in_dir(dir, rights)?;
    draft.pipe(name.as_str())?;
    draft.move_out(name.as_str(), name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencelock_core::Mode;

    #[test]
    fn many_waiters_keep_one_spare_pipe_until_they_are_gone() {
        let mut queue = Queue::starting_after(0, 0, false, 0);
        for slot in 0..KEPT_PIPES + 3 {
            let at = queue.push(Mode::Exclusive, 0, 0);
            queue.entries[at].slot = slot;
        }
        let mut leaves = |slot| -> Vec<Slot> {
            queue.entries.retain(|entry| entry.slot != slot);
            surplus(&mut queue, slot).collect()
        };
        assert_eq!(leaves(1), [], "it is always kept");
        assert_eq!(leaves(KEPT_PIPES + 1), [], "it is the spare one");
        assert_eq!(leaves(KEPT_PIPES), [KEPT_PIPES], "one spare is enough");
        assert_eq!(leaves(2), [KEPT_PIPES + 1], "few waiters need no spare");
        assert_eq!(leaves(KEPT_PIPES + 2), [KEPT_PIPES + 2]);
        assert_eq!(leaves(3), []);
    }
}
