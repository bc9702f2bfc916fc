//! The named pipe of one door: how a process finds a free one, and what becomes of it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, FlockOperation, OFlags, flock};
use rustix::io::{self, Errno};

use crate::draft::{Draft, Rights};
use crate::pipe::{self, KEPT_PIPES, PipeName};
use crate::queue::MAX_ENTRIES;

/// How many numbers are drawn before there is no free door.
const DRAWS: u32 = 256;

/// A door's pipe. This process is its only owner until this is dropped.
#[derive(Debug)]
pub(crate) struct OwnedPipe {
    pipe: OwnedFd,
    number: u16,
    dir: Arc<OwnedFd>,
    process: u32,
}

impl OwnedPipe {
    /// Takes a pipe that no process has, in the directory `dir` of the doors.
    ///
    /// Its owner has the pipe locked, and every copy of the descriptor shares that lock: a pipe
    /// that can be locked has neither an owner nor a child that inherited it. Nothing else is
    /// locked, so no process can hold up another one here. The k-th number is drawn below 2^k:
    /// few processes use few doors, and a crowd of n finds one after about log n draws, however
    /// many there have ever been.
    pub(crate) fn take(dir: &Arc<OwnedFd>, rights: &Rights) -> io::Result<OwnedPipe> {
        let mut spare = None;
        for draw in 0..DRAWS {
            let number = draw_below(1_u64.checked_shl(draw).unwrap_or(u64::MAX));
            let taken = match pipe::open(dir.as_fd(), &name(number), OFlags::RDWR) {
                Ok(pipe) => is_free(&pipe)?.then_some(pipe),
                Err(Errno::NOENT) => make(dir.as_fd(), number, rights, &mut spare)?,
                // Made where other rights were given, or not by this library.
                Err(Errno::ACCESS | Errno::LOOP | pipe::NOT_OURS) => None,
                Err(errno) => return Err(errno),
            };
            if let Some(pipe) = taken {
                let (dir, process) = (dir.clone(), std::process::id());
                return Ok(OwnedPipe { pipe, number, dir, process });
            }
        }
        Err(Errno::NFILE)
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
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
        // While it is still locked: a process that has opened it and locks it afterwards sees that
        // it has no name any more. A forked child is not its owner.
        if self.number >= KEPT_PIPES && self.process == std::process::id() {
            let _ = rustix::fs::unlinkat(&self.dir, name(self.number).as_str(), AtFlags::empty());
        }
    }
}

pub(crate) fn name(number: u16) -> PipeName {
    PipeName::new(b'p', number)
}

/// Locks `pipe`, unless it has an owner or was removed meanwhile.
fn is_free(pipe: &OwnedFd) -> io::Result<bool> {
    match flock(pipe, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(rustix::fs::fstat(pipe)?.st_nlink == 1),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// A pipe that was made but has no number yet.
type Spare<'a> = Option<(Draft<'a>, OwnedFd)>;

/// Makes pipe `number`; `None` when another process was first.
fn make<'a>(
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
            // It appears with its owner.
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
    // Seeded by the system, and anew for each use.
    let random = RandomState::new().build_hasher().finish();
    // Less than MOST, which fits.
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
