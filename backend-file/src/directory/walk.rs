//! Opens a directory one component after the other, each of them from the descriptor of the one before it. What was
//! checked is what is used: nobody can put another directory or link in its place meanwhile.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use fencelock_core::{Error, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;

use crate::directory::open::{OPEN_DIR, open_or_make};
use crate::platform::{self, PASS_THROUGH};

/// As many as Linux follows (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// Who decides about a walk.
pub(crate) trait Guide {
    /// Whether the directory or link `name`, `own`, may be passed through, in a directory that is `parent`.
    fn check(&self, name: &Path, parent: &Stat, own: &Stat) -> Result<()>;

    fn error(&self, name: &Path, errno: Errno) -> Error;
}

/// Opens the directory at `path`, an absolute one, and returns its path without links. With `make` it is created for
/// this user alone if it is missing.
pub(crate) fn walk(path: &Path, make: bool, guide: &impl Guide) -> Result<(PathBuf, OwnedFd)> {
    let root = || openat(CWD, "/", OPEN_DIR, Mode::empty());
    let (mut at, mut left, mut links) = (PathBuf::from("/"), parts(path), 0);
    let mut fd = root().map_err(|errno| guide.error(&at, errno))?;
    let stat = fstat(&fd).map_err(|errno| guide.error(&at, errno))?;
    guide.check(&at, &stat, &stat)?;
    while let Some(part) = left.pop() {
        let name = at.join(&part);
        let error = |errno| guide.error(&name, errno);
        let open = |flags| openat(&fd, &part, flags | OFlags::NOFOLLOW, Mode::empty());
        let next = match left.is_empty() {
            true if make => open_or_make(fd.as_fd(), Path::new(&part), OPEN_DIR | OFlags::NOFOLLOW),
            true => open(OPEN_DIR),
            // In this order: what only passes through a directory does not have it mounted.
            false => match open(OPEN_DIR) {
                Err(Errno::ACCESS | Errno::PERM) => open(PASS_THROUGH),
                opened => opened,
            },
        };
        if part == ".." {
            fd = next.map_err(error)?;
            at.pop();
            continue;
        }
        let parent = fstat(&fd).map_err(error)?;
        match next {
            Ok(next) => {
                guide.check(&name, &parent, &fstat(&next).map_err(error)?)?;
                (fd, at) = (next, name);
            }
            Err(Errno::LOOP | Errno::NOTDIR) if links < MOST_LINKS => {
                let link = statat(&fd, &part, AtFlags::SYMLINK_NOFOLLOW).map_err(error)?;
                guide.check(&name, &parent, &link)?;
                links += 1;
                if platform::is_proc(fd.as_fd()) {
                    // It leads to a place that has no path here, such as another process's root.
                    fd = openat(&fd, &part, OPEN_DIR, Mode::empty()).map_err(error)?;
                    at = name;
                    continue;
                }
                // Whoever may put another one here by now was trusted.
                let target = readlinkat(&fd, &part, Vec::new()).map_err(|errno| match errno {
                    Errno::INVAL => error(Errno::NOTDIR),
                    errno => error(errno),
                })?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                left.extend(parts(&target));
                if target.is_absolute() {
                    (fd, at) = (root().map_err(error)?, PathBuf::from("/"));
                }
            }
            Err(errno) => return Err(error(errno)),
        }
    }
    Ok((at, fd))
}

/// The last first.
fn parts(path: &Path) -> Vec<OsString> {
    let part = |part| match part {
        Component::Normal(part) => Some(part.to_owned()),
        Component::ParentDir => Some(OsStr::from_bytes(b"..").to_owned()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    };
    let mut parts: Vec<OsString> = path.components().filter_map(part).collect();
    parts.reverse();
    parts
}
