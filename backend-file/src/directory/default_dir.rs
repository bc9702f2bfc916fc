//! The default directory: `.local/state/fencelock` in this user's home directory, the same for a
//! shell, cron and a service of that user.
//!
//! A user who could rename a component of its path could lead two processes into two directories,
//! and both would hold a lock. So every component must belong to this user or to root, and no
//! other user may write to it. A sticky directory is accepted, because the next component in it is
//! checked as well. A symbolic link of this user or of root is followed, and its target is checked
//! from the root directory on, links on the way included. If a check fails there is no default directory, and the error says
//! what to type.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fencelock_core::{Error, Result};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, openat};
use rustix::io::Errno;

use crate::directory::account::{Account, own_directory_advice};
use crate::directory::open::{OPEN_DIR, open_or_make};
use crate::directory::walk::{Guide, walk};
use crate::error::{failed, refused};

const PARTS: [&str; 3] = [".local", "state", "fencelock"];

/// Opens the default directory, and creates its missing components for this user alone. The
/// returned path has no symbolic links below the home directory.
pub(crate) fn open(account: &Account) -> Result<(PathBuf, OwnedFd)> {
    let mut path = account.home.clone();
    let opened = openat(CWD, &path, OPEN_DIR, Mode::empty());
    let mut fd = opened.map_err(|errno| account.error(&path, errno))?;
    let mut stat = check(&path, &fd, account)?;
    for part in PARTS {
        let flags = OPEN_DIR | OFlags::NOFOLLOW;
        let next = match open_or_make(fd.as_fd(), Path::new(part), flags) {
            Err(Errno::LOOP | Errno::NOTDIR) => {
                let (target, next) = follow(&path, fd.as_fd(), part, account)?;
                path = target;
                Ok(next)
            }
            opened => {
                path.push(part);
                opened
            }
        };
        fd = next.map_err(|errno| account.error(&path, errno))?;
        stat = check(&path, &fd, account)?;
    }
    let shown = path.display();
    if stat.st_uid != account.uid {
        let why = format!("belongs to user {}", stat.st_uid);
        return Err(no_default(&path, &why, &format!("chown {} {shown}", account.uid)));
    }
    if Mode::from_raw_mode(stat.st_mode).intersects(Mode::RWXG | Mode::RWXO) {
        return Err(no_default(&path, "is open to other users", &format!("chmod 700 {shown}")));
    }
    Ok((path, fd))
}

/// Opens the target of the link `name` in `dir`, if every component of its path is safe.
fn follow(
    path: &Path,
    dir: BorrowedFd<'_>,
    name: &str,
    account: &Account,
) -> Result<(PathBuf, OwnedFd)> {
    let link = path.join(name);
    let trouble = |errno| account.error(&link, errno);
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(trouble)?;
    if !FileType::from_raw_mode(stat.st_mode).is_symlink() {
        return Err(no_default(&link, "is not a directory", &format!("rm {}", link.display())));
    }
    if ![0, account.uid].contains(&stat.st_uid) {
        let why = format!("is a symbolic link of user {}", stat.st_uid);
        return Err(no_default(&link, &why, &format!("rm {}", link.display())));
    }
    let target = rustix::fs::readlinkat(dir, name, Vec::new()).map_err(trouble)?;
    walk(&path.join(OsStr::from_bytes(target.as_bytes())), false, account)
}

impl Guide for Account {
    /// Refuses a directory whose contents a user other than root and this one could rename, and a link of another.
    fn check(&self, path: &Path, _: &Stat, own: &Stat) -> Result<()> {
        let (mode, shown) = (Mode::from_raw_mode(own.st_mode), path.display());
        if ![0, self.uid].contains(&own.st_uid) {
            return Err(refused(format!(
                "the default directory cannot be used: {shown} belongs to user {}; {}",
                own.st_uid,
                own_directory_advice(self.uid)
            )));
        }
        if mode.contains(Mode::SVTX) || FileType::from_raw_mode(own.st_mode).is_symlink() {
            return Ok(());
        }
        if mode.contains(Mode::WOTH) {
            return Err(no_default(
                path,
                "is writable by all users",
                &format!("chmod o-w {shown}"),
            ));
        }
        if mode.contains(Mode::WGRP) && Some(own.st_gid) != self.private_group {
            let why = format!("is writable by group {}", own.st_gid);
            return Err(no_default(path, &why, &format!("chmod g-w {shown}")));
        }
        Ok(())
    }

    /// The error for a home directory that is missing, or in which this user may not create anything.
    fn error(&self, path: &Path, errno: Errno) -> Error {
        let (path, error) = (path.display(), std::io::Error::from(errno));
        refused(format!(
            "the default directory cannot be used: {path}: {error}; {}",
            own_directory_advice(self.uid)
        ))
    }
}

fn check(path: &Path, fd: &OwnedFd, account: &Account) -> Result<Stat> {
    let stat = rustix::fs::fstat(fd).map_err(|errno| failed("stat", path, errno))?;
    account.check(path, &stat, &stat)?;
    Ok(stat)
}

fn no_default(path: &Path, why: &str, fix: &str) -> Error {
    let path = path.display();
    refused(format!(
        "the default directory cannot be used: {path} {why}; run {fix}, or use another directory, \
         file:///DIR"
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    use super::*;

    struct Home {
        base: tempfile::TempDir,
        account: Account,
    }

    impl Home {
        fn new() -> Home {
            let base = tempfile::tempdir().unwrap();
            let uid = rustix::process::geteuid().as_raw();
            let home = fs::canonicalize(base.path()).unwrap();
            let account = Account { uid, home, private_group: None };
            Home { base, account }
        }

        fn make(&self, path: &str, mode: u32) -> PathBuf {
            let path = self.account.home.join(path);
            fs::create_dir_all(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        }

        fn opened(&self) -> PathBuf {
            let (path, fd) = open(&self.account).unwrap();
            let stat = rustix::fs::fstat(fd).unwrap();
            let there = fs::metadata(&path).unwrap();
            assert_eq!((there.ino(), there.mode() & 0o777), (stat.st_ino, 0o700));
            path
        }

        fn refused(&self, why: &str) -> String {
            let error = open(&self.account).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("file:///"), "{error}");
            error
        }
    }

    #[test]
    fn the_directory_is_created_for_this_user_alone() {
        let home = Home::new();
        assert_eq!(home.opened(), home.account.home.join(".local/state/fencelock"));
        assert_eq!(fs::metadata(home.base.path().join(".local")).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_group_may_write_to_the_path_only_if_it_is_private() {
        let mut home = Home::new();
        let local = home.make(".local", 0o775);
        let said = home.refused("is writable by group");
        assert!(said.contains(&format!("chmod g-w {}", local.display())), "{said}");
        home.account.private_group = Some(fs::metadata(&local).unwrap().gid());
        home.opened();
        home.make(".local", 0o777);
        home.refused("chmod o-w");
        // In a sticky directory, a user can rename only files of their own.
        home.make(".local", 0o1777);
        home.opened();
        home.make(".local", 0o700);
        home.make(".local/state/fencelock", 0o750);
        home.refused("chmod 700");
    }

    #[test]
    fn a_symbolic_link_is_checked_like_its_target() {
        let home = Home::new();
        let target = home.make("data/local", 0o755);
        symlink("data/local", home.account.home.join(".local")).unwrap();
        assert_eq!(home.opened(), target.join("state/fencelock"));
        home.make("data", 0o777);
        let said = home.refused("chmod o-w");
        assert!(said.contains(&format!("{}/data ", home.account.home.display())), "{said}");
        home.make("data", 0o755);
        fs::remove_dir_all(&target).unwrap();
        home.refused("No such file");
        fs::write(&target, "").unwrap();
        home.refused("");
    }

    #[test]
    fn parts_of_another_user_are_refused_and_parts_of_root_are_not() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        const OTHER: u32 = 54_321;
        let home = Home::new();
        let local = home.make(".local", 0o755);
        chown(&local, Some(OTHER), None).unwrap();
        home.refused(&format!("belongs to user {OTHER}"));
        fs::remove_dir(&local).unwrap();
        symlink("/tmp", &local).unwrap();
        std::os::unix::fs::lchown(&local, Some(OTHER), None).unwrap();
        home.refused("symbolic link of user");
        fs::remove_file(&local).unwrap();
        // A service whose home belongs to root: root creates the directory and changes its owner.
        let mut home = Home::new();
        home.account.uid = OTHER;
        let dir = home.make(".local/state/fencelock", 0o700);
        let said = home.refused("belongs to user 0");
        assert!(said.contains(&format!("chown {OTHER} {}", dir.display())), "{said}");
        chown(&dir, Some(OTHER), None).unwrap();
        assert_eq!(home.opened(), dir);
        home.account.home = "/nonexistent".into();
        home.refused("install -d -m 0700 -o 54321 /var/lib/fencelock-54321");
    }
}
