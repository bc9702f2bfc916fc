//! Where the processes of a run find their shared server: a file that is locked while a process
//! looks for the server or starts it, and that names the server's directory.

use std::collections::hash_map::DefaultHasher;
use std::fs::{File, TryLockError};
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Longer than the starts of a server take, one after the other, that does not get ready.
const LOCKED_WITHIN: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(20);

/// The locked file.
#[derive(Debug)]
pub(super) struct Registry(File);

impl Registry {
    /// Waits for the processes that look or start at present, but not for ever: one of them may be
    /// stopped.
    pub(super) async fn lock(package: &str, version: &str) -> io::Result<Registry> {
        let mut hasher = DefaultHasher::new();
        // Two versions of this crate may start their servers differently.
        (env!("CARGO_PKG_VERSION"), version).hash(&mut hasher);
        let name = format!("fencelock-{package}-{:016x}", hasher.finish());
        let path = directory()?.join(name);
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
        let deadline = Instant::now() + LOCKED_WITHIN;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Registry(file)),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => sleep(PAUSE).await,
                Err(TryLockError::WouldBlock) => {
                    return Err(io::Error::other(format!(
                        "another test process has had {} locked for {LOCKED_WITHIN:?}; end it if it \
                         is stopped, such as in a debugger",
                        path.display()
                    )));
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    /// The directory of the server that was started last, if it is there.
    pub(super) fn current(&mut self) -> Option<PathBuf> {
        let mut path = Vec::new();
        self.0.rewind().and_then(|()| self.0.read_to_end(&mut path)).ok()?;
        let path = PathBuf::from(std::ffi::OsString::from_vec(path));
        // After the server's end any user can make a directory of its name, with a link in it that
        // leads to a file of this user, or with a server of theirs.
        (path.is_absolute() && is_own(&path, Users::OnlyThis)).then_some(path)
    }

    pub(super) fn set(&mut self, server: &Path) -> io::Result<()> {
        self.0.set_len(0)?;
        self.0.rewind()?;
        self.0.write_all(server.as_os_str().as_bytes())
    }
}

/// `tmp` in cargo's target directory, where one of a run's test programs is; for others, such as
/// doctests or the programs of another user's target directory, a directory of this user's among the
/// temporary files.
fn directory() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    if let Some(target) = program.ancestors().find(|it| is_target_directory(it)) {
        let directory = target.join("tmp");
        std::fs::create_dir_all(&directory)?;
        return Ok(directory);
    }
    let user = rustix::process::geteuid().as_raw();
    let directory = std::env::temp_dir().join(format!("fencelock-testkit-{user}"));
    match std::fs::DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if !is_own(&directory, Users::OnlyThis) {
        return Err(io::Error::other(format!(
            "{} must be a directory that only this user can use; remove it, or set TMPDIR",
            directory.display()
        )));
    }
    Ok(directory)
}

/// Whether it is a target directory of this user's. Cargo marks it for backup programs; any user can
/// make such a mark in the directory of temporary files.
fn is_target_directory(directory: &Path) -> bool {
    directory.join("CACHEDIR.TAG").is_file() && is_own(directory, Users::ThisAndItsGroup)
}

/// Who may be able to change what is in a directory.
#[derive(Clone, Copy)]
enum Users {
    OnlyThis,
    /// As a umask of 002 allows it, where each user has a group.
    ThisAndItsGroup,
}

/// Whether it is a directory of this user's, and no others can change what is in it.
fn is_own(directory: &Path, users: Users) -> bool {
    let others = match users {
        // A server that refuses to be root runs as another user, who passes through to files of its own.
        Users::OnlyThis => 0o066,
        Users::ThisAndItsGroup => 0o002,
    };
    // Not through a link, which could be led elsewhere.
    std::fs::symlink_metadata(directory).is_ok_and(|found| {
        let user = rustix::process::geteuid().as_raw();
        found.is_dir() && found.uid() == user && found.mode() & others == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    fn directory_of_mode(mode: u32) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
        directory
    }

    #[test]
    fn a_mark_among_the_temporary_files_is_no_target_directory() {
        for (mode, is_one) in [(0o755, true), (0o775, true), (0o1777, false), (0o757, false)] {
            let directory = directory_of_mode(mode);
            assert!(!is_target_directory(directory.path()), "it has no mark");
            std::fs::write(directory.path().join("CACHEDIR.TAG"), "").unwrap();
            assert_eq!(is_target_directory(directory.path()), is_one, "{mode:o}");
        }
    }

    #[test]
    fn a_server_whose_directory_others_can_use_is_not_joined() {
        let mut registry = Registry(tempfile::tempfile().unwrap());
        assert_eq!(registry.current(), None);
        let (own, shared) = (directory_of_mode(0o700), directory_of_mode(0o755));
        for own in [&own, &directory_of_mode(0o711)] {
            registry.set(own.path()).unwrap();
            assert_eq!(registry.current().as_deref(), Some(own.path()));
        }
        registry.set(shared.path()).unwrap();
        assert_eq!(registry.current(), None);
        let link = shared.path().join("link");
        std::os::unix::fs::symlink(own.path(), &link).unwrap();
        registry.set(&link).unwrap();
        assert_eq!(registry.current(), None);
    }
}
