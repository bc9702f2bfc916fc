//! A private directory in which this process creates files and pipes before other users can reach
//! them.
//!
//! In a directory that other users may write to, a name can lead to another file at any moment:
//! `mkfifo` followed by `chmod` of the same name changes whatever file a second user renamed over
//! it in between, through a symbolic link even outside the directory. So no file is changed by
//! such a name. Files are created in a draft directory of mode 0700; their owner, group and mode
//! are set through descriptors whose type and owner were checked; and only complete files are
//! moved out. This does not rely on kernel settings (`fs.protected_*`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, openat};
use rustix::io::{self, Errno};

use crate::platform;

/// The prefix of the names of drafts.
const DRAFT: &str = ".draft-";

const PRIVATE: Mode = Mode::RWXU;

/// The permissions of the files that are created in the store's directory: the users who may write
/// to the directory may use them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    file: Mode,
    dir: Mode,
    group: Gid,
    /// The directory's owner, if root creates files in another user's directory: the owner must not
    /// be locked out of them.
    owner: Option<Uid>,
}

impl Rights {
    /// The permissions that follow from those of the store's directory.
    pub(crate) fn of(stat: &Stat) -> Rights {
        let mode = Mode::from_raw_mode(stat.st_mode);
        let mut file = Mode::RUSR | Mode::WUSR;
        let mut dir = PRIVATE | mode & (Mode::SGID | Mode::SVTX);
        // Never read access alone: a foreign reader of a pipe would count as its owner.
        if mode.contains(Mode::WGRP) {
            file |= Mode::RGRP | Mode::WGRP;
            dir |= Mode::RWXG;
        }
        if mode.contains(Mode::WOTH) {
            file |= Mode::ROTH | Mode::WOTH;
            dir |= Mode::RWXO;
        }
        let as_root = rustix::process::geteuid().is_root() && stat.st_uid != 0;
        let owner = as_root.then(|| Uid::from_raw(stat.st_uid));
        Rights { file, dir, group: Gid::from_raw(stat.st_gid), owner }
    }

    /// Whether only this user and root can replace the files.
    pub(crate) fn are_private(&self) -> bool {
        !self.file.intersects(Mode::WGRP | Mode::WOTH) && self.owner.is_none()
    }

    /// Applies them to an open file or directory, whatever the umask is.
    fn give(&self, fd: BorrowedFd<'_>, mode: Mode) -> io::Result<()> {
        let stat = rustix::fs::fstat(fd)?;
        if self.owner.is_some_and(|owner| owner.as_raw() != stat.st_uid) {
            rustix::fs::fchown(fd, self.owner, Some(self.group))?;
        } else if mode.contains(Mode::WGRP) && stat.st_gid != self.group.as_raw() {
            // A user who is not a member of the group cannot set it; its members then get an error
            // with advice.
            let _ = rustix::fs::fchown(fd, None, Some(self.group));
        }
        rustix::fs::fchmod(fd, mode)
    }
}

/// A private directory inside a possibly shared one. When it is dropped, it is removed with the
/// files in it that were not moved out.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    parent: BorrowedFd<'a>,
    name: String,
    dir: OwnedFd,
    rights: &'a Rights,
    made: Vec<String>,
    published: bool,
}

impl<'a> Draft<'a> {
    pub(crate) fn in_dir(parent: BorrowedFd<'a>, rights: &'a Rights) -> io::Result<Draft<'a>> {
        let name = make_dir(parent)?;
        let opened = open_private(parent, &name);
        let dir = opened.inspect_err(|_| remove_if_empty(parent, &name))?;
        Ok(Draft { parent, name, dir, rights, made: Vec::new(), published: false })
    }

    /// Creates a file with the store's permissions, open for writing.
    pub(crate) fn file(&mut self, name: &str) -> io::Result<OwnedFd> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR)?;
        self.made.push(name.to_owned());
        self.rights.give(file.as_fd(), self.rights.file)?;
        Ok(file)
    }

    /// Creates a named pipe with the store's permissions, open in both directions.
    pub(crate) fn pipe(&mut self, name: &str) -> io::Result<OwnedFd> {
        platform::make_pipe(self.dir.as_fd(), name, Mode::RUSR | Mode::WUSR)?;
        self.made.push(name.to_owned());
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pipe = openat(&self.dir, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&pipe)?;
        if !is_own(&stat) || !FileType::from_raw_mode(stat.st_mode).is_fifo() || stat.st_nlink != 1
        {
            return Err(Errno::AGAIN);
        }
        self.rights.give(pipe.as_fd(), self.rights.file)?;
        Ok(pipe)
    }

    /// Moves the created file `name` to `to` in the parent directory, replacing a file there.
    pub(crate) fn move_out(&mut self, name: &str, to: &str) -> io::Result<()> {
        rustix::fs::renameat(&self.dir, name, self.parent, to)?;
        self.made.retain(|made| made != name);
        Ok(())
    }

    /// Moves the created file `name` to `to` in the parent directory, unless that name is taken.
    pub(crate) fn move_out_if_free(&mut self, name: &str, to: &str) -> io::Result<()> {
        platform::rename_if_free(self.dir.as_fd(), name, self.parent, to)?;
        self.made.retain(|made| made != name);
        Ok(())
    }

    /// Gives the directory itself the store's permissions, and renames it to `name` unless a
    /// directory of that name is not empty.
    pub(crate) fn publish(mut self, name: &str) -> io::Result<()> {
        self.rights.give(self.dir.as_fd(), self.rights.dir)?;
        rustix::fs::renameat(self.parent, &self.name, self.parent, name)?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if self.published {
            return;
        }
        for name in &self.made {
            let _ = rustix::fs::unlinkat(&self.dir, name, AtFlags::empty());
        }
        remove_if_empty(self.parent, &self.name);
    }
}

fn make_dir(parent: BorrowedFd<'_>) -> io::Result<String> {
    loop {
        let name = draft_name();
        match rustix::fs::mkdirat(parent, &name, PRIVATE) {
            Err(Errno::EXIST) => {}
            made => return made.map(|()| name),
        }
    }
}

/// A name for a draft, another one for each call. The time is for a process that has the id of an
/// earlier one, whose draft may still be there.
pub(crate) fn draft_name() -> String {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let nanoseconds = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_nsec;
    format!("{DRAFT}{}-{nanoseconds}-{number}", std::process::id())
}

/// Opens the directory `name`, if only this user has access to it.
fn open_private(parent: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(parent, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&dir)?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    match is_own(&stat) && !mode.intersects(Mode::RWXG | Mode::RWXO) {
        true => Ok(dir),
        // Another user renamed something over it. The next attempt uses another name.
        false => Err(Errno::AGAIN),
    }
}

/// Removes `name`, an empty directory only, so that another user gains nothing by replacing it.
fn remove_if_empty(parent: BorrowedFd<'_>, name: &str) {
    let _ = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
}

fn is_own(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw()
}
