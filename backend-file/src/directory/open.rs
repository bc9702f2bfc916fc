//! OPEN DOC

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use fencelock_core::Result;
use rustix::fs::{Mode, OFlags, StatFs};
use rustix::io::{self, Errno};

use crate::error::{failed, refused};
use crate::platform;

pub(crate) const OPEN_DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// How often a directory may be removed while it is made and opened before that is an error: a
/// fraction of a second, for a process that does nothing else wins most of the races.
pub(crate) const MAX_RETRIES: usize = 10_000;

/// Refuses a file system where other machines, or nobody, would see the locks.
pub(crate) fn refuse_network(fd: BorrowedFd<'_>, path: &Path) -> Result<StatFs> {
    let fs = rustix::fs::fstatfs(fd).map_err(|e| failed("look at the file system of", path, e))?;
    match platform::network(&fs) {
        None => Ok(fs),
        Some(kind) => Err(refused(format!(
            "{} is on {kind}, where locks do not reach the other machines; use file:///DIR on a \
             local file system, or a store for several machines, as redis:// or zk://",
            path.display()
        ))),
    }
}

/// Opens the directory `path` below `dir`, which is made for this user alone if it is not there.
pub(crate) fn open_or_make(dir: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    for _ in 0..MAX_RETRIES {
        match rustix::fs::openat(dir, path, flags, Mode::empty()) {
            Err(Errno::NOENT) => {}
            opened => return opened,
        }
        match rustix::fs::mkdirat(dir, path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::NOENT)
}
