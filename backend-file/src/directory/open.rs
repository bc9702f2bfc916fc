//! Opening of directories that may be created or removed at the same time, and the refusal of
//! network file systems.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use fencelock_core::Result;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatFs, mkdirat};
use rustix::io::{self, Errno};

use crate::directory::draft::draft_name;
use crate::error::{failed, refused};
use crate::platform;

pub(crate) const OPEN_DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// How often a directory may be removed while it is created and opened, before that is an error. It
/// takes a fraction of a second; a process that does nothing else wins many of the races.
pub(crate) const MAX_RETRIES: usize = 10_000;

/// Refuses a file system on which locks do not work across all its users.
pub(crate) fn refuse_network(fd: BorrowedFd<'_>, path: &Path) -> Result<StatFs> {
    let fs = rustix::fs::fstatfs(fd).map_err(|e| failed("stat the file system of", path, e))?;
    match platform::network(&fs) {
        None => Ok(fs),
        Some(kind) => Err(refused(format!(
            "{} is on {kind}, where locks do not reach the other machines; use a file:///DIR on a \
             local file system, or a store for several machines, such as redis:// or zk://",
            path.display()
        ))),
    }
}

/// Opens the directory `path` below `dir`. If it is missing, it is created for this user alone.
pub(crate) fn open_or_make(dir: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    for _ in 0..MAX_RETRIES {
        match rustix::fs::openat(dir, path, flags, Mode::empty()) {
            Err(Errno::NOENT) => {}
            opened => return opened,
        }
        match mkdirat(dir, path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::NOENT)
}

/// A directory that is not empty, so that no process removes it by accident: it contains an empty
/// directory, until this is dropped.
#[derive(Debug)]
pub(crate) struct Pin(PathBuf);

impl Pin {
    /// Pins the directory at `path`, and creates it if it is missing; `None` if that is impossible.
    ///
    /// A process that opens a directory before it creates a file there never wins against one that
    /// removes it faster than that takes. This is one system call, which succeeds at any moment at
    /// which the directory exists.
    pub(crate) fn set(path: &Path) -> Option<Pin> {
        for _ in 0..MAX_RETRIES {
            let pin = path.join(draft_name());
            match mkdirat(CWD, &pin, Mode::RWXU) {
                Ok(()) => return Some(Pin(pin)),
                Err(Errno::EXIST) => {}
                Err(Errno::NOENT) => match mkdirat(CWD, path, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(_) => return None,
                },
                Err(_) => return None,
            }
        }
        None
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // Only if it is empty, so that another user gains nothing by replacing it.
        let _ = rustix::fs::unlinkat(CWD, &self.0, AtFlags::REMOVEDIR);
    }
}
