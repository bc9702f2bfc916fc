//! The named pipe behind a wake pipe: how a store finds a free one, and its removal.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, FlockOperation, OFlags, flock};
use rustix::io::{self, Errno};

use crate::directory::draft::{Draft, Rights};
use crate::error::NOT_OURS;
use crate::queue::entry::MAX_ENTRIES;
use crate::storage::named_pipe::{self, KEPT_PIPES, PipeName};

/// How many numbers are tried before that is an error.
const DRAWS: u32 = 256;

/// A numbered pipe that this process alone owns until this is dropped.
#[derive(Debug)]
pub(crate) struct OwnedPipe {
    pipe: OwnedFd,
    pub(crate) number: u16,
    dir: Arc<OwnedFd>,
    process: u32,
}

impl OwnedPipe {
    /// Takes a pipe that no process owns, in the directory `dir`.
    ///
    /// Its owner has the pipe locked, and every copy of the descriptor shares that lock: a pipe
    /// that can be locked has neither an owner nor a child that inherited it. Nothing else is
    /// locked, so no process can block another one here. The k-th number is drawn below 2^k: few
    /// stores use few pipes, and one of n stores finds a pipe after about log n draws, however many
    /// pipes there have ever been.
    pub(crate) fn take(dir: &Arc<OwnedFd>, rights: &Rights) -> io::Result<OwnedPipe> {
        let mut spare = None;
        for draw in 0..DRAWS {
            let number = draw_below(1_u64.checked_shl(draw).unwrap_or(u64::MAX));
            let taken = match named_pipe::open(dir.as_fd(), &name(number), OFlags::RDWR) {
                Ok(pipe) => is_free(&pipe)?.then_some(pipe),
                Err(Errno::NOENT) => create(dir.as_fd(), number, rights, &mut spare)?,
                // Created while the directory had other permissions, or not by this library.
                Err(Errno::ACCESS | Errno::LOOP | NOT_OURS) => None,
                Err(errno) => return Err(errno),
            };
            if let Some(pipe) = taken {
                let (dir, process) = (dir.clone(), std::process::id());
                return Ok(OwnedPipe { pipe, number, dir, process });
            }
        }
        Err(Errno::NFILE)
    }
}

impl AsFd for OwnedPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

impl std::os::fd::AsRawFd for OwnedPipe {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.pipe.as_raw_fd()
    }
}

impl Drop for OwnedPipe {
    fn drop(&mut self) {
        // Removed while it is still locked: a process that has opened it and locks it afterwards
        // sees that it has no name any more. A forked child is not its owner.
        if self.number >= KEPT_PIPES && self.process == std::process::id() {
            let _ = rustix::fs::unlinkat(&self.dir, name(self.number).as_str(), AtFlags::empty());
        }
    }
}

pub(crate) fn name(number: u16) -> PipeName {
    PipeName::new(b'p', number)
}

/// Locks `pipe`. Returns `false` if it has an owner or was removed meanwhile.
fn is_free(pipe: &OwnedFd) -> io::Result<bool> {
    match flock(pipe, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(rustix::fs::fstat(pipe)?.st_nlink == 1),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// A pipe that was created but has no number yet.
type Spare<'a> = Option<(Draft<'a>, OwnedFd)>;

/// Creates pipe `number`; `None` when another process was first.
fn create<'a>(
    dir: BorrowedFd<'a>,
    number: u16,
    rights: &'a Rights,
    spare: &mut Spare<'a>,
) -> io::Result<Option<OwnedFd>> {
    const SPARE: &str = "p";
    let (mut draft, pipe) = match spare.take() {
        Some(spare) => spare,
        None => {
            let mut draft = Draft::in_dir(dir, rights)?;
            let pipe = draft.pipe(SPARE)?;
            // The pipe becomes visible with its owner.
            flock(&pipe, FlockOperation::NonBlockingLockExclusive)?;
            (draft, pipe)
        }
    };
    match draft.move_out_if_free(SPARE, name(number).as_str()) {
        Ok(()) => Ok(Some(pipe)),
        Err(Errno::EXIST) => {
            *spare = Some((draft, pipe));
            Ok(None)
        }
        Err(errno) => Err(errno),
    }
}

fn draw_below(limit: u64) -> u16 {
    // Seeded by the system for each use.
    let random = RandomState::new().build_hasher().finish();
    // Less than MAX_ENTRIES, which fits.
    (random % limit.clamp(1, MAX_ENTRIES as u64)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_draw_is_zero_and_later_ones_fill_their_range() {
        assert!((0..99).all(|_| draw_below(1) == 0));
        let mut drawn: Vec<u16> = (0..999).map(|_| draw_below(8)).collect();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!((0..99).all(|_| usize::from(draw_below(u64::MAX)) < MAX_ENTRIES));
    }
}
