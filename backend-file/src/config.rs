//! The builder of a file store: it selects the directory and connects.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fencelock_core::backend::{current_runtime, invalid, start_clock};
use fencelock_core::url::StoreUrl;
use fencelock_core::{Locks, Result, Settings};
use tokio::runtime::Handle;

use crate::claim::store::Store;
use crate::directory::store_dir::Directory;
use crate::error::refused;
use crate::lock::io_threads::run_detached;
use crate::platform;
use crate::platform::BootId;
use crate::storage::context::StoreContext;
use crate::wake::wake_pipe::WakePipe;

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
    /// A store in `directory`, an absolute path on a local file system. Its last component is
    /// created if it is missing. The users who may write to the directory share its locks.
    #[must_use]
    pub fn at(directory: impl AsRef<Path>) -> FileStore {
        FileStore { location: Location::At(directory.as_ref().to_owned()), boot: None }
    }

    /// A store in `.local/state/fencelock` of this user's home directory in `/etc/passwd`: the same
    /// directory for a shell, cron and a service of that user, and a different one for each user.
    /// Refused if a user other than root could rename a component of its path.
    #[must_use]
    pub fn of_user() -> FileStore {
        FileStore { location: Location::OfUser, boot: None }
    }

    /// Pretends that the machine has the boot id `boot`, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn booted_as(mut self, boot: [u8; 16]) -> FileStore {
        self.boot = Some(boot);
        self
    }

    pub(crate) fn from_url(url: &StoreUrl) -> Result<FileStore> {
        if !url.authority().is_empty() || url.user().is_some() || url.password().is_some() {
            return Err(invalid(
                "a file store is on this machine and its URL names no host; an absolute directory \
                 has three slashes, such as file:///var/lib/jobs/locks",
            ));
        }
        match url.path() {
            "" => Ok(FileStore::of_user()),
            path if path.trim_matches('/').is_empty() => Err(invalid(
                "file:/// names the root directory; expected file:///DIR, or file:// for the \
                 default directory",
            )),
            path if path.contains('\0') => Err(invalid("the directory's path contains a NUL")),
            path => Ok(FileStore::at(path)),
        }
    }

    /// Connects, on the current runtime.
    ///
    /// # Errors
    /// [`Refused`](fencelock_core::ErrorKind::Refused) when the directory cannot carry locks: it is
    /// on a network file system, its owner or its permissions are wrong, or it cannot be created.
    /// [`InvalidArgument`](fencelock_core::ErrorKind::InvalidArgument) outside a tokio runtime.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn locks(self, settings: Settings) -> Result<Locks> {
        let runtime = current_runtime()?;
        let clock = start_clock()?;
        let (context, wake_pipe) = run_detached(move || self.open(&runtime)).await??;
        let path = context.directory.path.display();
        if ["/tmp", "/var/tmp"].iter().any(|tmp| context.directory.path.starts_with(tmp)) {
            tracing::warn!(
                "{path}: what is there is removed with age or at a reboot, and a service with PrivateTmp= has \
                 another one; keep locks in a directory such as /var/lib/jobs/locks"
            );
        }
        let shown = format!("file://{path}");
        Locks::new(Arc::new(Store::new(context, wake_pipe, clock)), &shown, settings)
    }

    fn open(self, runtime: &Handle) -> Result<(StoreContext, WakePipe)> {
        let boot = match self.boot {
            Some(boot) => boot,
            None => platform::boot_id().map_err(|error| {
                refused("the machine's boot id cannot be read; is /proc mounted?").caused_by(error)
            })?,
        };
        let (directory, wake_pipe) = Directory::open_for(
            || self.location.open(),
            |directory| WakePipe::take(directory, runtime),
        )?;
        Ok((StoreContext::new(directory, boot, runtime.clone())?, wake_pipe))
    }
}

impl Location {
    fn open(&self) -> Result<Directory> {
        match self {
            Location::OfUser => Directory::of_user(),
            Location::At(path) if path.is_absolute() => Directory::at(path),
            Location::At(path) => {
                let path = path.display();
                Err(refused(format!("{path} is not an absolute path; expected file:///DIR")))
            }
        }
    }
}
