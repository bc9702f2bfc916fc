//! Opening of files in a shared directory, and of named pipes by number.
//!
//! There a name may lead to a file of another user, so each file is checked when it is open: a file
//! of another type, or one that has a second name elsewhere, is not used.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, openat};
use rustix::io::{self, Errno};

use crate::error::NOT_OURS;

/// How many pipes of one kind are kept for reuse. Surplus pipes are removed after use.
pub(crate) const KEPT_PIPES: u16 = 64;

/// The largest buffer of a pipe, unless root has raised `fs.pipe-max-size`.
pub(crate) const LARGEST: usize = 1 << 20;

/// A pipe's file name, without an allocation.
pub(crate) struct PipeName {
    bytes: [u8; 6],
    len: usize,
}

impl PipeName {
    /// The name of pipe `number` of the kind `letter`.
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

/// The flags with which each existing file in a shared directory is opened. Without CREATE:
/// fs.protected_fifos would refuse another user's pipe in a sticky directory.
pub(crate) const OPEN: OFlags =
    OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

pub(crate) fn open(dir: BorrowedFd<'_>, name: &PipeName, access: OFlags) -> io::Result<OwnedFd> {
    checked(open_unchecked(dir, name, access)?, FileType::Fifo)
}

pub(crate) fn open_unchecked(
    dir: BorrowedFd<'_>,
    name: &PipeName,
    access: OFlags,
) -> io::Result<OwnedFd> {
    openat(dir, name.as_bytes(), access | OPEN, Mode::empty())
}

/// Refuses a file that is not of type `expected` or has a second name.
pub(crate) fn checked(file: OwnedFd, expected: FileType) -> io::Result<OwnedFd> {
    let stat = rustix::fs::fstat(&file)?;
    // A write to a hard link to another file would change that file.
    match FileType::from_raw_mode(stat.st_mode) == expected && stat.st_nlink == 1 {
        true => Ok(file),
        false if stat.st_nlink == 0 => Err(Errno::NOENT),
        false => Err(NOT_OURS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_are_numbered_in_decimal() {
        for number in [0, 1, 9, 10, 11, 99, 100, 1234, 10_000, 65_533] {
            assert_eq!(PipeName::new(b's', number).as_str(), format!("s{number}"));
        }
    }
}
