//! Which directory, and how a store in it is connected.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fencelock_core::url::StoreUrl;
use fencelock_core::{BootClock, Error, ErrorKind, Locks, Result, Settings};
use tokio::runtime::Handle;

use crate::backend::{FileBackend, Store};
use crate::directory::{Directory, MAX_RETRIES};
use crate::door::WakePipe;
use crate::error::refused;
use crate::io;
use crate::ledger::BootId;
use crate::place::StoreContext;
use crate::platform;

/// A file store that is not yet connected.
///
/// ```no_run
/// # async fn f() -> fencelock_core::Result<()> {
/// use fencelock_core::Settings;
/// use fencelock_file::FileStore;
/// let locks = FileStore::at("/var/lib/jobs/locks").locks(Settings::default()).await?;
/// let guard = locks.lock("report").acquire().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct FileStore {
    location: Location,
    boot: Option<BootId>,
}

#[derive(Clone, Debug)]
enum Location {
    OfUser,
    At(PathBuf),
}

impl FileStore {
    /// In `directory`, an absolute path on a local file system. Its last part is made if it is not
    /// there. The users who may write to it share its locks.
    #[must_use]
    pub fn at(directory: impl AsRef<Path>) -> FileStore {
        FileStore { location: Location::At(directory.as_ref().to_owned()), boot: None }
    }

    /// In `.local/state/fencelock` of this user's home directory in `/etc/passwd`: the same for a
    /// shell, cron and a service of that user, and another one for each user. Refused where another
    /// user than root could rename a part of its path.
    #[must_use]
    pub fn of_user() -> FileStore {
        FileStore { location: Location::OfUser, boot: None }
    }

    /// As if the machine had booted under another id: for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn booted_as(mut self, boot: [u8; 16]) -> FileStore {
        self.boot = Some(boot);
        self
    }

    pub(crate) fn from_url(url: &StoreUrl) -> Result<FileStore> {
        let invalid = |message: &str| Error::new(ErrorKind::InvalidArgument, message);
        if !url.authority().is_empty() || url.user().is_some() || url.password().is_some() {
            return Err(invalid(
                "a file store is on this machine and names no host; an absolute directory has \
                 three slashes, as file:///var/lib/jobs/locks",
            ));
        }
        match url.path() {
            "" => Ok(FileStore::of_user()),
            path if path.trim_matches('/').is_empty() => Err(invalid(
                "file:/// names the root directory; expected file:///DIR, or file:// for the \
                 default directory",
            )),
            path if path.contains('\0') => Err(invalid("the directory has a NUL in its path")),
            path => Ok(FileStore::at(path)),
        }
    }

    /// Connects, on the current runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] when the directory cannot carry locks: it is on a network file
    /// system, its owner or its rights are wrong, it cannot be made.
    /// [`ErrorKind::InvalidArgument`] outside a tokio runtime.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn locks(self, settings: Settings) -> Result<Locks> {
        let runtime = Handle::try_current().map_err(|cause| {
            let message = "a store is connected inside a tokio runtime; there is none here";
            Error::new(ErrorKind::InvalidArgument, message).caused_by(cause)
        })?;
        let clock = BootClock::start().map_err(|error| {
            let message = "no file descriptor is free for the store's timer";
            Error::new(ErrorKind::Unreachable, message).caused_by(error)
        })?;
        let (context, wake_pipe) = io::detached(move || self.open(&runtime)).await??;
        let shown = format!("file://{}", context.directory.path().display());
        let store = Arc::new(Store::new(context, wake_pipe, clock));
        Locks::new(Arc::new(FileBackend { store }), &shown, settings)
    }

    fn open(self, runtime: &Handle) -> Result<(StoreContext, WakePipe)> {
        let boot = match self.boot {
            Some(boot) => boot,
            None => platform::boot_id().map_err(|error| {
                refused("the machine's boot id cannot be read; is /proc mounted?").caused_by(error)
            })?,
        };
        let mut tries = 0..MAX_RETRIES;
        loop {
            let directory = self.location.open()?;
            match WakePipe::take(&directory, runtime) {
                Ok(wake_pipe) => {
                    return Ok((StoreContext::new(directory, boot, runtime.clone())?, wake_pipe));
                }
                // Another process removes it, or has begun to, while this one makes it.
                Err(error)
                    if (is_gone(&error) || directory.still_there().is_err())
                        && tries.next().is_some() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Location {
    fn open(&self) -> Result<Directory> {
        match self {
            Location::OfUser => Directory::of_user(),
            Location::At(path) if path.is_absolute() => Directory::at(path),
            Location::At(path) => {
                let path = path.display();
                Err(refused(format!("{path} is no absolute path; expected file:///DIR")))
            }
        }
    }
}

/// Whether something was not there that was made just before.
fn is_gone(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|source| source.kind() == std::io::ErrorKind::NotFound)
}
