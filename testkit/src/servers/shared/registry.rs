//! Where the processes of a run find their shared server: a file that is locked while a process
//! looks for the server or starts it, and that names the server's directory.

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::SharedKind;

/// The locked file.
#[derive(Debug)]
pub(super) struct Registry(File);

impl Registry {
    /// Waits for the processes that look or start at present.
    pub(super) fn lock(kind: SharedKind) -> io::Result<Registry> {
        let mut hasher = DefaultHasher::new();
        // Two versions of this crate may start their servers differently.
        (env!("CARGO_PKG_VERSION"), kind.version()).hash(&mut hasher);
        let name = format!("fencelock-{}-{:016x}", kind.package(), hasher.finish());
        let file = directory()?.join(name);
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(file)?;
        file.lock()?;
        Ok(Registry(file))
    }

    /// The directory of the server that was started last.
    pub(super) fn current(&mut self) -> Option<PathBuf> {
        let mut path = Vec::new();
        self.0.rewind().and_then(|()| self.0.read_to_end(&mut path)).ok()?;
        let path = PathBuf::from(std::ffi::OsString::from_vec(path));
        path.is_absolute().then_some(path)
    }

    pub(super) fn set(&mut self, server: &Path) -> io::Result<()> {
        self.0.set_len(0)?;
        self.0.rewind()?;
        self.0.write_all(server.as_os_str().as_bytes())
    }
}

/// `tmp` in cargo's target directory, where one of a run's test programs is; for others, such as
/// doctests, a directory of this user's among the temporary files.
fn directory() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    // Cargo marks its target directory for backup programs.
    if let Some(target) = program.ancestors().find(|it| it.join("CACHEDIR.TAG").is_file()) {
        let directory = target.join("tmp");
        std::fs::create_dir_all(&directory)?;
        return Ok(directory);
    }
    let user = rustix::process::getuid().as_raw();
    let directory = std::env::temp_dir().join(format!("fencelock-testkit-{user}"));
    match std::fs::DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Any user can make a name among the temporary files.
    let found = std::fs::symlink_metadata(&directory)?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        return Err(io::Error::other(format!(
            "{} must be a directory that only this user can use; remove it",
            directory.display()
        )));
    }
    Ok(directory)
}
