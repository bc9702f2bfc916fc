//! The directory of a store, after the check that it can carry locks.
//!
//! A directory in which two processes could use different files for one lock is refused here,
//! once: one on a network file system, or one whose files other users may remove. Files inside get
//! the permissions of the directory itself, so that exactly the users who may write to it share
//! its locks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use fencelock_core::{Error, Result};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::{self, Errno};

use crate::directory::account::Account;
use crate::directory::default_dir;
use crate::directory::draft::{Draft, Rights};
use crate::directory::open::{MAX_RETRIES, OPEN_DIR, Pin, refuse_network};
use crate::directory::walk::{Guide, walk};
use crate::error::{failed, refused};
use crate::platform;

/// The directory of a connected store.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    fd: OwnedFd,
    pub(crate) rights: Rights,
    /// Whether a reboot empties it.
    pub(crate) in_memory: bool,
}

impl Directory {
    /// Opens a directory by `open`, and does `work` in it. Again, if another process has removed the
    /// directory meanwhile, which was still empty.
    pub(crate) fn open_for<T>(
        open: impl Fn() -> Result<Directory>,
        work: impl Fn(&Directory) -> Result<T>,
    ) -> Result<(Directory, T)> {
        let mut tries = 0..MAX_RETRIES;
        let mut pin = None;
        loop {
            let directory = open()?;
            match work(&directory) {
                Ok(done) => {
                    drop(pin);
                    return Ok((directory, done));
                }
                Err(error) if is_gone(&error) || directory.still_there().is_err() => {
                    if tries.next().is_none() {
                        return Err(error);
                    }
                    pin = Pin::set(&directory.path);
                    // It was not removed: no file can be created in it.
                    if pin.is_none() && directory.still_there().is_ok() {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens the directory at `path`. If it is missing, it is created for this user alone; its
    /// parent must exist.
    pub(crate) fn at(path: &Path) -> Result<Directory> {
        let (whole, fd) = walk(path, true, &AnyDirectory)?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed("stat", path, e))?;
        is_open(&whole, &stat)?;
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
        // systemd-tmpfiles skips a directory that is locked so, with all that is in it. A hint to it: without
        // the lock, the directory is only removed sooner.
        let _ = rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared);
        let (rights, in_memory) = (Rights::of(stat), platform::in_memory(&fs));
        Ok(Directory { path, fd, rights, in_memory })
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

    /// The names of the directories in it, of locks and others.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(self.fd())? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let file_type = match entry.file_type() {
                // Some file systems do not say what it is.
                FileType::Unknown => self.file_type(name)?,
                known => Some(known),
            };
            if file_type == Some(FileType::Directory) {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// What `name` in it is; `None` if it was removed.
    fn file_type(&self, name: &str) -> io::Result<Option<FileType>> {
        match rustix::fs::statat(self.fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Opens directory `name` in it, which must not be a symbolic link.
    pub(crate) fn open_dir(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OPEN_DIR | OFlags::NOFOLLOW;
        rustix::fs::openat(self.fd(), name, flags, Mode::empty())
    }
}

/// A directory that a user has chosen: whose component it is, and who may replace one, could lead two processes into two
/// directories, and both would hold a lock.
struct AnyDirectory;

impl Guide for AnyDirectory {
    fn check(&self, name: &Path, parent: &Stat, own: &Stat) -> Result<()> {
        let dir = name.parent().unwrap_or(name);
        if !is_open(dir, parent)? || is_trusted(own) {
            return Ok(());
        }
        Err(refused(format!(
            "{} belongs to user {}, and every user may make one in {}; remove it, or use another file:///DIR",
            name.display(),
            own.st_uid,
            dir.display()
        )))
    }

    fn error(&self, name: &Path, errno: Errno) -> Error {
        failed("open the directory", name, errno)
    }
}

/// Whether every user may make files in `dir`; refused if another than root and this user may rename those of others.
fn is_open(dir: &Path, stat: &Stat) -> Result<bool> {
    let (mode, shown) = (Mode::from_raw_mode(stat.st_mode), dir.display());
    if !mode.contains(Mode::WOTH) {
        return Ok(false);
    }
    if !mode.contains(Mode::SVTX) {
        return Err(refused(format!(
            "every user may rename files in {shown}; run chmod +t on it, or use another file:///DIR"
        )));
    }
    if !is_trusted(stat) {
        return Err(refused(format!(
            "{shown} is open to all users and belongs to user {}, who may remove their files; run chown root on it, \
             or use another file:///DIR",
            stat.st_uid
        )));
    }
    Ok(true)
}

fn is_trusted(stat: &Stat) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&stat.st_uid)
}

/// Whether a file that was just created is missing.
fn is_gone(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|source| source.kind() == std::io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_slow_process_can_use_a_directory_that_another_one_creates_and_removes_all_the_time() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("locks");
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let _ = std::fs::create_dir(&path);
                    let _ = std::fs::remove_dir(&path);
                }
            });
            let tries = AtomicUsize::new(0);
            let used = Directory::open_for(
                || Directory::at(&path),
                |directory| {
                    tries.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(1));
                    let made = directory.create("used", |_| Ok(()));
                    made.map_err(|errno| failed("create", &path, errno))
                },
            );
            ends.store(true, Ordering::Relaxed);
            used.unwrap();
            assert!(tries.into_inner() <= 2, "it wins by luck only");
        });
        let entries = std::fs::read_dir(&path).unwrap();
        let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["used"]);
    }
}
