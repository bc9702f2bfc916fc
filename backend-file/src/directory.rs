//! The directory of a store: is it one, whose is it, and can it carry locks?
//!
//! Whatever would make two processes believe in different locks is refused here, once: a network
//! file system, a directory that others may take away. What is made inside gets the rights of the directory itself, so that whoever may write
//! there shares the locks, and nobody else touches them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use fencelock_core::Result;
use rustix::fs::{CWD, Mode, OFlags, Stat, StatFs, Uid};
use rustix::io::{self, Errno};

use crate::draft::{Draft, Rights};
use crate::error::{failed, refused};
use crate::home::Account;
use crate::{default_dir, platform};

/// The directory of a connected store.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    fd: OwnedFd,
    rights: Rights,
    in_memory: bool,
}

pub(crate) const OPEN_DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// How often a directory may be removed while it is made and opened before that is an error: a
/// fraction of a second, for a process that does nothing else wins most of the races.
pub(crate) const MAX_RETRIES: usize = 10_000;

impl Directory {
    /// The directory at `path`, which is made, for this user alone, if its parent is there.
    pub(crate) fn at(path: &Path) -> Result<Directory> {
        let fd = open_or_make(CWD, path, OPEN_DIR)
            .map_err(|errno| failed("open the directory", path, errno))?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed("look at", path, e))?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        if mode.contains(Mode::WOTH) {
            if !mode.contains(Mode::SVTX) {
                return Err(refused(format!(
                    "every user may remove what is in {}; make it chmod +t, or use another \
                     file:///DIR",
                    path.display()
                )));
            }
            let owner = Uid::from_raw(stat.st_uid);
            if !owner.is_root() && owner != rustix::process::geteuid() {
                return Err(refused(format!(
                    "{} is open to all users and belongs to user {owner}, who may remove what \
                     they make there; have root own it, as after chown root, or use another \
                     file:///DIR",
                    path.display()
                )));
            }
        }
        Directory::checked(path.to_owned(), fd, &stat)
    }

    /// The default directory of this user.
    pub(crate) fn of_user() -> Result<Directory> {
        let (path, fd) = default_dir::open(&Account::of_this_user()?)?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed("look at", &path, e))?;
        Directory::checked(path, fd, &stat)
    }

    fn checked(path: PathBuf, fd: OwnedFd, stat: &Stat) -> Result<Directory> {
        let fs = refuse_network(fd.as_fd(), &path)?;
        let (rights, in_memory) = (Rights::of(stat), platform::in_memory(&fs));
        Ok(Directory { path, fd, rights, in_memory })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn rights(&self) -> &Rights {
        &self.rights
    }

    /// Whether a reboot empties it.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Refuses to go on when the path leads to another directory by now: this store's locks and
    /// those of processes that connect from now on would not exclude each other.
    pub(crate) fn still_there(&self) -> Result<()> {
        let gone = |errno| failed("find the store's directory", &self.path, errno);
        let now = rustix::fs::stat(&self.path).map_err(gone)?;
        let then = rustix::fs::fstat(&self.fd).map_err(gone)?;
        if (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino) {
            return Ok(());
        }
        Err(refused(format!(
            "{} was replaced since this program connected; connect again",
            self.path.display()
        )))
    }

    /// Makes directory `name`, filled by `fill`, so that it appears complete or not at all. One
    /// that is there already stays as it is.
    pub(crate) fn make(
        &self,
        name: &str,
        fill: impl FnOnce(&mut Draft<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut draft = Draft::in_dir(self.fd(), &self.rights)?;
        fill(&mut draft)?;
        match draft.publish(name) {
            // Another process was first.
            Err(Errno::EXIST | Errno::NOTEMPTY) => Ok(()),
            published => published,
        }
    }

    /// Opens directory `name` in it, which must be none that leads elsewhere.
    pub(crate) fn open_dir(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OPEN_DIR | OFlags::NOFOLLOW;
        rustix::fs::openat(self.fd(), name, flags, Mode::empty())
    }
}

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
