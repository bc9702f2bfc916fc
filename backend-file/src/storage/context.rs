//! What all locks of a connected store share.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use fencelock_core::Result;
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

    /// The full names of the locks in the directory.
    pub(crate) fn locks(&self) -> Result<Vec<String>> {
        let directory = &self.directory;
        directory.still_there()?;
        let names = directory.names();
        let names = names.map_err(|errno| failed("read the directory", &directory.path, errno))?;
        Ok(names.iter().filter_map(|name| self.lock_of(name)).collect())
    }

    /// The full name of the lock whose directory is `name`.
    fn lock_of(&self, name: &str) -> Option<String> {
        if !lock_name::is_truncated(name) {
            return lock_name::decode(name);
        }
        // What is no lock's directory has no such file; what is, and is damaged, has no name.
        let dir = self.directory.open_dir(name).ok()?;
        let path = self.directory.path.join(name);
        let key = State::open(dir.as_fd(), &path).ok()?.name().ok()?;
        String::from_utf8(key).ok().filter(|key| lock_name::encode(key) == name)
    }

    /// Refuses to work in a forked child, which shares its parent's descriptors, and with them the
    /// latch and the pipes that show that a claim's owner lives.
    pub(crate) fn same_process(&self) -> Result<()> {
        match std::process::id() == self.process {
            true => Ok(()),
            false => Err(forked()),
        }
    }
}
