//! Where the files of one lock are.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Weak};

use fencelock_core::Result;
use rustix::io;

use crate::directory::lock_name;
use crate::lock::context::StoreContext;
use crate::platform::{Identity, identity};
use crate::storage::lock_files::{LockFiles, OpenFilePermit};
use crate::storage::page::{Page, QUEUE};

/// The directory of one lock, which need not exist.
#[derive(Debug)]
pub(crate) struct LockDir {
    context: Arc<StoreContext>,
    key: Arc<str>,
    hash: u64,
    name: String,
    path: Arc<Path>,
    /// The path of its page, as system calls take it.
    page_path: CString,
}

impl LockDir {
    pub(crate) fn new(context: Arc<StoreContext>, key: Arc<str>) -> LockDir {
        let name = lock_name::encode(&key);
        let path = context.directory.path().join(&name);
        LockDir {
            hash: lock_name::hash(&key),
            context,
            key,
            name,
            // Only a path with a NUL in it, which leads nowhere, has no such form.
            page_path: CString::new(path.join(QUEUE).as_os_str().as_bytes()).unwrap_or_default(),
            path: path.into(),
        }
    }

    pub(crate) fn context(&self) -> &StoreContext {
        &self.context
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A number derived from the lock's name, the same in every process.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// The file that the path of the page leads to now.
    pub(crate) fn page_identity(&self) -> io::Result<Identity> {
        identity(&self.page_path)
    }

    /// Opens the lock's files; `None` when it has none. A page that claims still have `open` is
    /// reused.
    pub(crate) fn open(&self, open: &Weak<Page>) -> Result<Option<LockFiles>> {
        let StoreContext { directory, open_locks, .. } = &*self.context;
        let permit = OpenFilePermit::acquire(open_locks);
        LockFiles::open(directory, &self.name, &self.path, &self.key, permit, open)
    }

    /// Creates the directory with its files, unless another process has done so.
    pub(crate) fn create(&self) -> Result<()> {
        let StoreContext { directory, boot, .. } = &*self.context;
        LockFiles::create(directory, &self.name, &self.path, &self.key, *boot)
    }
}
