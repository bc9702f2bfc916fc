//! The directory of a store, after the check that it can carry locks.
//!
//! A directory in which two processes could use different files for one lock is refused here,
//! once: one on a network file system, or one whose files other users may remove. Files inside get
//! the permissions of the directory itself, so that exactly the users who may write to it share
//! its locks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use fencelock_core::Result;
use rustix::fs::{CWD, Mode, OFlags, Stat, Uid};
use rustix::io::{self, Errno};

use crate::directory::account::Account;
use crate::directory::default_dir;
use crate::directory::draft::{Draft, Rights};
use crate::directory::open::{OPEN_DIR, open_or_make, refuse_network};
use crate::error::{failed, refused};
use crate::platform;

/// The directory of a connected store.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    fd: OwnedFd,
    rights: Rights,
    in_memory: bool,
}

impl Directory {
    /// Opens the directory at `path`. If it is missing, it is created for this user alone; its
    /// parent must exist.
    pub(crate) fn at(path: &Path) -> Result<Directory> {
        let fd = open_or_make(CWD, path, OPEN_DIR)
            .map_err(|errno| failed("open the directory", path, errno))?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed("stat", path, e))?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        if mode.contains(Mode::WOTH) {
            if !mode.contains(Mode::SVTX) {
                return Err(refused(format!(
                    "every user may remove files in {}; run chmod +t on it, or use another \
                     file:///DIR",
                    path.display()
                )));
            }
            let owner = Uid::from_raw(stat.st_uid);
            if !owner.is_root() && owner != rustix::process::geteuid() {
                return Err(refused(format!(
                    "{} is open to all users and belongs to user {owner}, who may remove their \
                     files; run chown root on it, or use another file:///DIR",
                    path.display()
                )));
            }
        }
        Directory::checked(path.to_owned(), fd, &stat)
    }

    /// Opens the default directory of this user.
    pub(crate) fn of_user() -> Result<Directory> {
        let (path, fd) = default_dir::open(&Account::of_this_user()?)?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed("stat", &path, e))?;
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

    /// Fails if the path leads to another directory by now: this store's locks and those of
    /// processes that connect from now on would not exclude each other.
    pub(crate) fn still_there(&self) -> Result<()> {
        let gone = |errno| failed("find the store's directory", &self.path, errno);
        let now = rustix::fs::stat(&self.path).map_err(gone)?;
        let then = rustix::fs::fstat(&self.fd).map_err(gone)?;
        if (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino) {
            return Ok(());
        }
        Err(refused(format!(
            "{} was replaced after this program connected; connect again",
            self.path.display()
        )))
    }

    /// Creates directory `name`, filled by `fill`, so that it appears complete or not at all. An
    /// existing directory stays as it is.
    pub(crate) fn create(
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

    /// Opens directory `name` in it, which must not be a symbolic link.
    pub(crate) fn open_dir(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OPEN_DIR | OFlags::NOFOLLOW;
        rustix::fs::openat(self.fd(), name, flags, Mode::empty())
    }
}
