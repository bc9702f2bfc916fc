//! The named pipes that tell the living from the dead.
//!
//! The owner of an entry has its pipe open for reading, whoever watches it for writing. The
//! kernel raises an error at the watcher exactly when the last copy of the owner's descriptor
//! closes: the end of a process is a wake-up, and so is a release. Hence the direction: a reader
//! that opens a pipe after its writer died would not be told.
//!
//! What an owner leaves to a child is in the pipe's own buffer ([`inheritance`](crate::inheritance)).
//!
//! In a shared directory a name may lead to whatever another user has put there, so each pipe is
//! checked when it is open: what is not a named pipe, or has a second name elsewhere, is not used.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::{self, Errno};

use crate::draft::{Draft, Rights};
use crate::queue::{MAX_ENTRIES, NO_SLOT, Queue, Slot};

/// How many pipes of one kind stay for those who come next; what a crowd needed beyond them goes.
pub(crate) const KEPT_PIPES: u16 = 64;

/// The most that a pipe's buffer holds, unless root has raised `fs.pipe-max-size`.
pub(crate) const LARGEST: usize = 1 << 20;

/// A pipe's file name without an allocation.
pub(crate) struct PipeName {
    bytes: [u8; 6],
    len: usize,
}

impl PipeName {
    /// Pipe `number` of those that begin with `letter`.
    pub(crate) fn new(letter: u8, number: u16) -> PipeName {
        let mut name = PipeName { bytes: [letter; 6], len: 1 };
        let mut place = 10_000;
        while place > 0 {
            let digit = number / place % 10;
            if number >= place || place == 1 {
                // A decimal digit.
                name.bytes[name.len] = b'0' + digit as u8;
                name.len += 1;
            }
            place /= 10;
        }
        name
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn as_str(&self) -> &str {
        // ASCII as made above.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

pub(crate) fn slot_name(slot: Slot) -> PipeName {
    PipeName::new(b's', slot)
}

/// What is there is not a named pipe of this store. No opening gives this error by itself.
pub(crate) const NOT_OURS: Errno = Errno::NOSTR;

pub(crate) fn open(dir: BorrowedFd<'_>, name: &PipeName, access: OFlags) -> io::Result<OwnedFd> {
    checked(open_unchecked(dir, name, access)?)
}

fn open_unchecked(dir: BorrowedFd<'_>, name: &PipeName, access: OFlags) -> io::Result<OwnedFd> {
    // Without CREATE: fs.protected_fifos would refuse another user's pipe in a sticky directory.
    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY;
    openat(dir, name.as_bytes(), flags, Mode::empty())
}

/// Refuses what is not a named pipe with one name.
pub(crate) fn checked(pipe: OwnedFd) -> io::Result<OwnedFd> {
    let stat = rustix::fs::fstat(&pipe)?;
    // A ring into a hard link to another file would change that file.
    match FileType::from_raw_mode(stat.st_mode).is_fifo() && stat.st_nlink == 1 {
        true => Ok(pipe),
        false if stat.st_nlink == 0 => Err(Errno::NOENT),
        false => Err(NOT_OURS),
    }
}

/// Takes a pipe that nobody has: under the latch. `None` where one has to be made and must not be,
/// since that takes as long as the disk does.
///
/// Its owner has it locked too. Every copy of the descriptor shares that lock, so a pipe that can
/// be locked has no owner and no child that inherited it. The `known` pipe was the caller's last; it
/// is unchanged and unwatched, and so is neither checked nor emptied.
pub(crate) fn take(
    dir: BorrowedFd<'_>,
    queue: &Queue,
    makes: Option<&Rights>,
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
                // Whoever still watches an earlier owner of it has yet to hear that it is gone,
                // and would not with a new one there.
                if locked.is_ok() && (empty(&pipe)? || !queue.is_watched(slot)) {
                    return Ok(Some((slot, pipe)));
                }
            }
            Err(Errno::NOENT) => {
                let Some(rights) = makes else { return Ok(None) };
                make(dir, &slot_name(slot), rights)?;
                continue;
            }
            // Made by somebody whose directory had other rights, as before a chmod, or not by
            // this library.
            Err(Errno::ACCESS | Errno::LOOP | NOT_OURS) => {}
            Err(errno) => return Err(errno),
        }
        slot = queue.free_slot(slot + 1);
    }
    Err(Errno::NFILE)
}

/// Takes what an earlier owner left in the buffer of `pipe`, which must not be taken for the new
/// one's: it stays there while an old watcher has the pipe open. Whether none has: the end of file.
/// Not without end, since another user of the directory may write on and on.
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

/// The pipes that have to be removed now that no entry has `gone` any more: what a crowd needed
/// beyond those that stay goes with it. One is spared for as long as it is a crowd, since the next
/// that joins it takes that.
pub(crate) fn extra(queue: &mut Queue, gone: Slot) -> impl Iterator<Item = Slot> + use<> {
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

/// Removes the pipe of `slot`: by its owner, under the latch, once no entry has it. Those that
/// watch it have it open, and hear its end all the same.
pub(crate) fn retire(dir: BorrowedFd<'_>, slot: Slot) {
    // One that stays is taken again.
    let _ = rustix::fs::unlinkat(dir, slot_name(slot).as_str(), AtFlags::empty());
}

/// The slots of a lock whose owners live, as `watch` finds them: under the latch.
pub(crate) fn living(dir: BorrowedFd<'_>) -> io::Result<Vec<Slot>> {
    let mut living = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let Some(slot) = slot_of(entry.file_name().to_bytes()) else { continue };
        match watch(dir, slot) {
            Ok(Some(_)) => living.push(slot),
            // Nobody takes what is not a named pipe of its own.
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

/// Opens `slot` to watch its owner: `None` when it is dead, and so is every copy it left. Under
/// the latch, for else the slot may be another's meanwhile. A pipe that is not there is an error:
/// it was removed by hand, and its owner may well live.
pub(crate) fn watch(dir: BorrowedFd<'_>, slot: Slot) -> io::Result<Option<OwnedFd>> {
    match open(dir, &slot_name(slot), OFlags::WRONLY) {
        Ok(pipe) => Ok(Some(pipe)),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Makes pipe `name`, complete, in place of what is there: under the latch.
fn make(dir: BorrowedFd<'_>, name: &PipeName, rights: &Rights) -> io::Result<()> {
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
            extra(&mut queue, slot).collect()
        };
        assert_eq!(leaves(1), [], "it stays in any case");
        assert_eq!(leaves(KEPT_PIPES + 1), [], "it is spared");
        assert_eq!(leaves(KEPT_PIPES), [KEPT_PIPES], "one is enough");
        assert_eq!(leaves(2), [KEPT_PIPES + 1], "no crowd any more");
        assert_eq!(leaves(KEPT_PIPES + 2), [KEPT_PIPES + 2]);
        assert_eq!(leaves(3), []);
    }

    #[test]
    fn pipes_are_numbered_in_decimal() {
        for number in [0, 1, 9, 10, 11, 99, 100, 1234, 10_000, 65_533] {
            assert_eq!(PipeName::new(b's', number).as_str(), format!("s{number}"));
        }
    }
}
