//! The files of one lock: where they are, and the open ones: its directory with the slot pipes, its
//! page, and its state file.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use fencelock_core::Result;
use rustix::io::{self, Errno};

use crate::directory::draft::Draft;
use crate::directory::lock_name;
use crate::directory::open::refuse_network;
use crate::error::{NOT_OURS, failed, foreign};
use crate::platform::{Identity, identity};
use crate::queue::entry::Slot;
use crate::queue::ledger::Ledger;
use crate::storage::cell::Cell;
use crate::storage::context::StoreContext;
use crate::storage::page::{Page, QUEUE};
use crate::storage::slot_pipe;
use crate::storage::state::State;

/// The number of locks whose files a store keeps open between uses.
const MAX_OPEN_LOCKS: usize = 128;

/// The directory of one lock, which need not exist.
#[derive(Debug)]
pub(crate) struct LockDir {
    pub(crate) context: Arc<StoreContext>,
    key: Arc<str>,
    /// A number derived from the lock's name, the same in every process.
    pub(crate) hash: u64,
    name: String,
    pub(crate) path: Arc<Path>,
    /// The path of its page, as system calls take it.
    page_path: CString,
}

impl LockDir {
    pub(crate) fn new(context: Arc<StoreContext>, key: Arc<str>) -> LockDir {
        let name = lock_name::encode(&key);
        let path = context.directory.path.join(&name);
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

    /// The file that the path of the page leads to now.
    pub(crate) fn page_identity(&self) -> io::Result<Identity> {
        identity(&self.page_path)
    }

    /// Opens the lock's files; `None` when it has none yet. A page that claims still have `open` is
    /// reused.
    pub(crate) fn open(&self, open: &Weak<Page>) -> Result<Option<LockFiles>> {
        let permit = OpenFilePermit::acquire(&self.context.open_locks);
        let Some((dir, _)) = self.open_dir()? else { return Ok(None) };
        let path = &self.path;
        let page = self.open_page(dir.as_fd()).map_err(|errno| match errno {
            Errno::LOOP | Errno::ISDIR | Errno::NXIO | NOT_OURS => {
                foreign(path, &format!("{QUEUE} is not a named pipe of this library"))
            }
            errno => failed("open the named pipe in", path, errno),
        })?;
        let open = open.upgrade().filter(|open| open.identity == page.identity);
        let page = open.unwrap_or_else(|| Arc::new(page));
        Ok(Some(LockFiles { dir, page, path: path.clone(), permit }))
    }

    /// Opens the cell of the lock's name; `None` when the lock has no files yet.
    pub(crate) fn open_cell(&self) -> Result<Option<Cell<'_>>> {
        let (root, boot) = (self.context.directory.fd(), self.context.boot);
        Ok(self.open_dir()?.map(|(dir, state)| Cell { dir, state, root, boot }))
    }

    /// Opens the directory with its state file, if it is this lock's.
    fn open_dir(&self) -> Result<Option<(OwnedFd, State<'_>)>> {
        let (directory, path) = (&self.context.directory, &self.path);
        directory.still_there()?;
        let dir = match directory.open_dir(&self.name) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(|errno| failed("open", path, errno))?,
        };
        refuse_network(dir.as_fd(), path)?;
        let state = State::open(dir.as_fd(), path)?;
        state.migrate(dir.as_fd())?;
        state.check_owner(&self.key)?;
        Ok(Some((dir, state)))
    }

    /// Opens the page, which is recreated if it was removed: its content is lost, like that of a
    /// page that no process has open.
    fn open_page(&self, dir: BorrowedFd<'_>) -> io::Result<Page> {
        match Page::open(dir) {
            Err(Errno::NOENT) => {}
            opened => return opened,
        }
        let mut draft = Draft::in_dir(dir, &self.context.directory.rights)?;
        Page::create(&mut draft)?;
        match draft.move_out_if_free(QUEUE, QUEUE) {
            Ok(()) | Err(Errno::EXIST) => Page::open(dir),
            Err(errno) => Err(errno),
        }
    }

    /// Creates the directory with its files, unless another process has done so meanwhile.
    pub(crate) fn create(&self) -> Result<()> {
        let StoreContext { directory, boot, .. } = &*self.context;
        State::check_name(&self.key)?;
        let created = directory.create(&self.name, |draft| {
            Page::create(draft)?;
            draft.pipe(slot_pipe::slot_name(0).as_str())?;
            State::create(draft, &self.key, &Ledger::new(*boot))
        });
        created.map_err(|errno| failed("create", &self.path, errno))
    }
}

/// A lock's open files.
#[derive(Debug)]
pub(crate) struct LockFiles {
    dir: OwnedFd,
    pub(crate) page: Arc<Page>,
    path: Arc<Path>,
    permit: Option<OpenFilePermit>,
}

impl LockFiles {
    /// Whether the files stay open between uses.
    pub(crate) fn stays_open(&self) -> bool {
        self.permit.is_some()
    }

    /// The lock's directory, with the slot pipes.
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Opens the state file, on a thread that may wait for the disk.
    pub(crate) fn state(&self) -> Result<State<'_>> {
        State::open(self.dir(), &self.path)
    }

    /// Like [`slot_pipe::watch`].
    pub(crate) fn watch(&self, slot: Slot) -> Result<Option<OwnedFd>> {
        slot_pipe::watch(self.dir(), slot).map_err(|errno| match errno {
            Errno::NOENT => foreign(&self.path, &format!("the named pipe s{slot} was removed")),
            Errno::LOOP | NOT_OURS => {
                foreign(&self.path, &format!("s{slot} is not a named pipe of this library"))
            }
            errno => failed("watch a named pipe in", &self.path, errno),
        })
    }
}

/// The permission to keep the files of one lock open between uses.
#[derive(Debug)]
struct OpenFilePermit(Arc<AtomicUsize>);

impl OpenFilePermit {
    /// A permit, unless `count` has reached the limit.
    fn acquire(count: &Arc<AtomicUsize>) -> Option<OpenFilePermit> {
        let more = |count| (count < MAX_OPEN_LOCKS).then_some(count + 1);
        let kept = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        kept.is_ok().then(|| OpenFilePermit(count.clone()))
    }
}

impl Drop for OpenFilePermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
