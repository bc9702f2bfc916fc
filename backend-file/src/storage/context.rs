//! What all locks of a connected store share.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use fencelock_core::Result;
use tokio::runtime::Handle;

use crate::directory::store_dir::Directory;
use crate::error::{failed, forked};
use crate::platform::BootId;
use crate::storage::page::PipeReader;

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

    /// Refuses to work in a forked child, which shares its parent's descriptors, and with them the
    /// latch and the pipes that show that a claim's owner lives.
    pub(crate) fn same_process(&self) -> Result<()> {
        match std::process::id() == self.process {
            true => Ok(()),
            false => Err(forked()),
        }
    }
}
