//! What all locks of a connected store share.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use fencelock_core::{ErrorKind, Result};
use rustix::io::Errno;
use tokio::runtime::Handle;

use crate::directory::lock_name;
use crate::directory::store_dir::Directory;
use crate::error::{failed, forked};
use crate::platform::BootId;
use crate::storage::page::PipeReader;
use crate::storage::state::State;

/// The context of every lock of a connected store.
#[derive(Debug)]
pub(crate) struct StoreContext {
    pub(crate) directory: Directory,
    pub(crate) boot: BootId,
    pub(crate) runtime: Handle,
    pub(crate) pipe_reader: PipeReader,
    /// The number of locks whose files stay open between uses.
    pub(crate) open_locks: Arc<AtomicUsize>,
    process: u32,
}

impl StoreContext {
    pub(crate) fn new(directory: Directory, boot: BootId, runtime: Handle) -> Result<StoreContext> {
        let pipe_reader =
            PipeReader::new().map_err(|e| failed("create pipes for", &directory.path, e))?;
        let (open_locks, process) = (Arc::default(), std::process::id());
        Ok(StoreContext { directory, boot, runtime, pipe_reader, open_locks, process })
    }

    /// The full names of the locks in the directory that may have a cell, and begin with `prefix`.
    pub(crate) fn cells(&self, prefix: &str) -> Result<Vec<String>> {
        let directory = &self.directory;
        directory.still_there()?;
        let names = directory.names();
        let names = names.map_err(|errno| failed("read the directory", &directory.path, errno))?;
        names.iter().filter_map(|name| self.cell_of(name, prefix).transpose()).collect()
    }

    /// The full name of the lock whose directory is `name`, if it is one of those: a lock of format 1 has
    /// no cell, and would be migrated when it is read.
    fn cell_of(&self, name: &str, prefix: &str) -> Result<Option<String>> {
        let whole = lock_name::decode(name);
        let is_wanted = match &whole {
            Some(key) => key.starts_with(prefix),
            None => lock_name::is_truncated(name),
        };
        if !is_wanted {
            return Ok(None);
        }
        let path = self.directory.path.join(name);
        let found = match self.directory.open_dir(name) {
            // It is not a directory, or was removed.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(errno) => Err(failed("open", &path, errno)),
            Ok(dir) => State::open(dir.as_fd(), &path).and_then(|state| {
                let is_of_version_1 = state.is_of_version_1()?;
                (!is_of_version_1).then(|| state.name()).transpose()
            }),
        };
        match (found, whole) {
            (Ok(None), _) => Ok(None),
            // If it cannot be opened, the error is that of reading its cell.
            (_, Some(key)) => Ok(Some(key)),
            (Ok(Some(key)), None) => {
                let key = String::from_utf8(key).ok();
                Ok(key.filter(|key| lock_name::encode(key) == name && key.starts_with(prefix)))
            }
            // What is not a lock's directory has no such file; what is, and is damaged, has no name.
            (Err(error), None) if error.kind() == ErrorKind::Foreign => Ok(None),
            (Err(error), None) => Err(error),
        }
    }

    /// Refuses to work in a forked child, which shares its parent's descriptors, and with them the
    /// latch and the pipes that show that a claim's owner lives.
    pub(crate) fn same_process(&self) -> Result<()> {
        if std::process::id() == self.process { Ok(()) } else { Err(forked()) }
    }
}
