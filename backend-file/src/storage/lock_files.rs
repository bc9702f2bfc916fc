//! The open files of one lock: its directory with the slot pipes, its page, and its state file.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use fencelock_core::Result;
use rustix::io::{self, Errno};

use crate::directory::draft::Draft;
use crate::directory::open::refuse_network;
use crate::directory::store_dir::Directory;
use crate::error::{NOT_OURS, failed, foreign};
use crate::platform::BootId;
use crate::queue::entry::Slot;
use crate::queue::ledger::Ledger;
use crate::storage::page::{Page, QUEUE};
use crate::storage::slot_pipe;
use crate::storage::state::State;

/// The number of locks whose files a store keeps open between uses.
const MAX_OPEN_LOCKS: usize = 128;

/// A lock's open files.
#[derive(Debug)]
pub(crate) struct LockFiles {
    dir: OwnedFd,
    page: Arc<Page>,
    path: Arc<Path>,
    permit: Option<OpenFilePermit>,
}

impl LockFiles {
    /// Opens the files of the lock `key` in directory `dir_name`; `None` when it has none yet. A
    /// page that claims of this lock have `open` is reused.
    pub(crate) fn open(
        directory: &Directory,
        dir_name: &str,
        path: &Arc<Path>,
        key: &str,
        permit: Option<OpenFilePermit>,
        open: &Weak<Page>,
    ) -> Result<Option<LockFiles>> {
        directory.still_there()?;
        let dir = match directory.open_dir(dir_name) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(|errno| failed("open", path, errno))?,
        };
        refuse_network(dir.as_fd(), path)?;
        let state = State::open(dir.as_fd(), path)?;
        state.migrate(dir.as_fd())?;
        state.check_owner(key)?;
        drop(state);
        let mut page =
            Arc::new(open_page(directory, dir.as_fd()).map_err(|errno| match errno {
                Errno::LOOP | Errno::ISDIR | Errno::NXIO | NOT_OURS => {
                    foreign(path, &format!("{QUEUE} is not a named pipe of this library"))
                }
                errno => failed("open the named pipe in", path, errno),
            })?);
        if let Some(open) = open.upgrade().filter(|open| open.identity() == page.identity()) {
            page = open;
        }
        Ok(Some(LockFiles { dir, page, path: path.clone(), permit }))
    }

    /// Creates the directory of the lock `key` with its files, unless another process has done so
    /// meanwhile.
    pub(crate) fn create(
        directory: &Directory,
        dir_name: &str,
        path: &Path,
        key: &str,
        boot: BootId,
    ) -> Result<()> {
        State::check_name(key)?;
        let created = directory.create(dir_name, |draft| {
            Page::create(draft)?;
            draft.pipe(slot_pipe::slot_name(0).as_str())?;
            State::create(draft, key, &Ledger::new(boot))
        });
        created.map_err(|errno| failed("create", path, errno))
    }

    /// Whether the files stay open between uses.
    pub(crate) fn stays_open(&self) -> bool {
        self.permit.is_some()
    }

    /// The lock's directory, with the slot pipes.
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    pub(crate) fn page(&self) -> &Arc<Page> {
        &self.page
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

/// Opens the page, which is recreated if it was removed: its content is lost, like that of a page
/// that no process has open.
fn open_page(directory: &Directory, dir: BorrowedFd<'_>) -> io::Result<Page> {
    match Page::open(dir) {
        Err(Errno::NOENT) => {}
        opened => return opened,
    }
    let mut draft = Draft::in_dir(dir, directory.rights())?;
    Page::create(&mut draft)?;
    match draft.move_out_if_free(QUEUE, QUEUE) {
        Ok(()) | Err(Errno::EXIST) => Page::open(dir),
        Err(errno) => Err(errno),
    }
}

/// The permission to keep the files of one lock open between uses.
#[derive(Debug)]
pub(crate) struct OpenFilePermit(Arc<AtomicUsize>);

impl OpenFilePermit {
    /// A permit, unless `count` has reached the limit.
    pub(crate) fn acquire(count: &Arc<AtomicUsize>) -> Option<OpenFilePermit> {
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
