//! The directory of a store: is it one, whose is it, and can it carry locks?
//!
//! Whatever would make two processes believe in different locks is refused here, once: a network
//! file system, a directory that others may take away, a symbolic link where the default should
//! be. What is made inside gets the rights of the directory itself, so that whoever may write
//! there shares the locks, and nobody else touches them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use fencelock_core::Result;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat};
use rustix::io::{self, Errno};

use crate::error::{failed, refused};
use crate::{home, platform};

/// The directory of a connected store.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    fd: OwnedFd,
    rights: Rights,
}

/// Who may use what is made in the directory: those who may write to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    file: Mode,
    dir: Mode,
    group: Gid,
}

const OPEN_DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const PRIVATE: Mode = Mode::RWXU;

impl Directory {
    /// The directory at `path`, which is made, for this user alone, if its parent is there.
    pub(crate) fn at(path: &Path) -> Result<Directory> {
        let opened = match rustix::fs::open(path, OPEN_DIR, Mode::empty()) {
            Err(Errno::NOENT) => rustix::fs::mkdir(path, PRIVATE)
                .or_else(|errno| if errno == Errno::EXIST { Ok(()) } else { Err(errno) })
                .and_then(|()| rustix::fs::open(path, OPEN_DIR, Mode::empty())),
            opened => opened,
        };
        let fd = opened.map_err(|errno| failed("open the directory", path, errno))?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed("look at", path, e))?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        if mode.contains(Mode::WOTH) && !mode.contains(Mode::SVTX) {
            return Err(refused(format!(
                "every user may remove what is in {}; make it chmod +t, or use another \
                 file:///DIR",
                path.display()
            )));
        }
        Directory::checked(path.to_owned(), fd, &stat)
    }

    /// `.local/state/fencelock` in this user's home directory: the same for a shell, cron and a
    /// service of that user.
    pub(crate) fn of_user() -> Result<Directory> {
        let home = home::of_this_user()?;
        let here = |path: &Path, why: &str| {
            let path = path.display();
            refused(format!(
                "the default directory cannot be used: {path} {why}; name another one as \
                 file:///DIR"
            ))
        };
        let user = rustix::process::geteuid().as_raw();
        let mut path = home;
        let mut fd = rustix::fs::open(&path, OPEN_DIR, Mode::empty())
            .map_err(|e| here(&path, &format!("cannot be opened ({})", std::io::Error::from(e))))?;
        for part in ["", ".local", "state", "fencelock"] {
            if !part.is_empty() {
                path.push(part);
                fd = open_or_make(fd.as_fd(), part).map_err(|errno| match errno {
                    Errno::LOOP | Errno::NOTDIR => {
                        here(&path, "is no directory, or a symbolic link")
                    }
                    errno => {
                        here(&path, &format!("cannot be used ({})", std::io::Error::from(errno)))
                    }
                })?;
            }
            let stat = rustix::fs::fstat(&fd).map_err(|e| failed("look at", &path, e))?;
            if stat.st_uid != user {
                return Err(here(&path, &format!("belongs to user {}, not {user}", stat.st_uid)));
            }
            let mode = Mode::from_raw_mode(stat.st_mode);
            if mode.intersects(Mode::WGRP | Mode::WOTH) && !mode.contains(Mode::SVTX) {
                return Err(here(&path, "may be written by others"));
            }
            if part == "fencelock" && mode.intersects(Mode::RWXG | Mode::RWXO) {
                return Err(here(&path, "is open to others (expected mode 0700)"));
            }
        }
        let stat = rustix::fs::fstat(&fd).map_err(|e| failed("look at", &path, e))?;
        Directory::checked(path, fd, &stat)
    }

    fn checked(path: PathBuf, fd: OwnedFd, stat: &Stat) -> Result<Directory> {
        refuse_network(fd.as_fd(), &path)?;
        Ok(Directory { path, fd, rights: Rights::of(stat) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn rights(&self) -> &Rights {
        &self.rights
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
        fill: impl Fn(BorrowedFd<'_>, &Rights) -> io::Result<()>,
    ) -> io::Result<()> {
        let root = self.fd();
        let draft = self.draft()?;
        let made = self.open_dir(&draft).and_then(|dir| {
            fill(dir.as_fd(), &self.rights)?;
            self.rights.give_dir(root, &draft)?;
            rustix::fs::renameat(root, &draft, root, name)
        });
        if made.is_err() {
            // Somebody else was first, or it failed: nobody has seen the draft.
            let _ = std::fs::remove_dir_all(self.path.join(&draft));
        }
        match made {
            Err(Errno::EXIST | Errno::NOTEMPTY) => Ok(()),
            made => made,
        }
    }

    fn draft(&self) -> io::Result<String> {
        let mut number = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_nsec;
        loop {
            let draft = format!(".draft-{}-{number}", std::process::id());
            match rustix::fs::mkdirat(self.fd(), &draft, PRIVATE) {
                Err(Errno::EXIST) => number += 1,
                made => return made.map(|()| draft),
            }
        }
    }

    /// Opens directory `name` in it, which must be none that leads elsewhere.
    pub(crate) fn open_dir(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OPEN_DIR | OFlags::NOFOLLOW;
        rustix::fs::openat(self.fd(), name, flags, Mode::empty())
    }
}

impl Rights {
    fn of(stat: &Stat) -> Rights {
        let mode = Mode::from_raw_mode(stat.st_mode);
        let mut file = Mode::RUSR | Mode::WUSR;
        let mut dir = PRIVATE | mode & (Mode::SGID | Mode::SVTX);
        // Reading alone is not given: a stranger who reads a pipe would count as its owner.
        if mode.contains(Mode::WGRP) {
            file |= Mode::RGRP | Mode::WGRP;
            dir |= Mode::RWXG;
        }
        if mode.contains(Mode::WOTH) {
            file |= Mode::ROTH | Mode::WOTH;
            dir |= Mode::RWXO;
        }
        Rights { file, dir, group: Gid::from_raw(stat.st_gid) }
    }

    /// Gives file `name` of `dir` these rights, whatever the umask took away.
    pub(crate) fn give_file(&self, dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        self.give(dir, name, self.file)
    }

    fn give_dir(&self, dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        self.give(dir, name, self.dir)
    }

    fn give(&self, dir: BorrowedFd<'_>, name: &str, mode: Mode) -> io::Result<()> {
        if mode.contains(Mode::WGRP) {
            let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if Gid::from_raw(stat.st_gid) != self.group {
                // Whoever is no member of the group cannot give to it; the others will be told
                // that they have no permission.
                let group = Some(self.group);
                let _ = rustix::fs::chownat(dir, name, None, group, AtFlags::SYMLINK_NOFOLLOW);
            }
        }
        rustix::fs::chmodat(dir, name, mode, AtFlags::empty())
    }
}

/// Refuses a file system where other machines, or nobody, would see the locks.
pub(crate) fn refuse_network(fd: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let fs = rustix::fs::fstatfs(fd).map_err(|e| failed("look at the file system of", path, e))?;
    match platform::network(&fs) {
        None => Ok(()),
        Some(kind) => Err(refused(format!(
            "{} is on {kind}, where locks do not reach the other machines; use file:///DIR on a \
             local file system, or a store for several machines, as redis:// or zk://",
            path.display()
        ))),
    }
}

fn open_or_make(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = OPEN_DIR | OFlags::NOFOLLOW;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => {
            match rustix::fs::mkdirat(dir, name, PRIVATE) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            rustix::fs::openat(dir, name, flags, Mode::empty())
        }
        opened => opened,
    }
}
