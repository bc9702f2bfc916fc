//! The files of one lock: its directory with the pipes, its page, and its state.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use fencelock_core::Result;
use rustix::io::{self, Errno};

use crate::directory::{Directory, refuse_network};
use crate::draft::Draft;
use crate::error::{failed, foreign};
use crate::ledger::{BootId, Ledger};
use crate::page::{Page, QUEUE};
use crate::pipe;
use crate::queue::Slot;
use crate::state::State;

/// How many locks' files a store keeps open between uses.
const MAX_OPEN_LOCKS: usize = 128;

/// A lock's open files.
#[derive(Debug)]
pub(crate) struct Files {
    dir: OwnedFd,
    page: Arc<Page>,
    path: Arc<Path>,
    kept: Option<OpenFilePermit>,
}

impl Files {
    /// Opens the files of the lock `key` in directory `dir_name`; `None` when it has none yet. A
    /// page that claims of this lock have `open` is used again.
    pub(crate) fn open(
        directory: &Directory,
        dir_name: &str,
        path: &Arc<Path>,
        key: &str,
        kept: Option<OpenFilePermit>,
        open: &Weak<Page>,
    ) -> Result<Option<Files>> {
        directory.still_there()?;
        let dir = match directory.open_dir(dir_name) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(|errno| failed("open", path, errno))?,
        };
        refuse_network(dir.as_fd(), path)?;
        let state = State::open(dir.as_fd(), path)?;
        state.take_over(dir.as_fd())?;
        state.belongs_to(key)?;
        drop(state);
        let mut page =
            Arc::new(open_page(directory, dir.as_fd()).map_err(|errno| match errno {
                Errno::LOOP | Errno::ISDIR | Errno::NXIO | pipe::NOT_OURS => {
                    foreign(path, &format!("{QUEUE} is not a named pipe of its own"))
                }
                errno => failed("open the named pipe in", path, errno),
            })?);
        if let Some(open) = open.upgrade().filter(|open| open.identity() == page.identity()) {
            page = open;
        }
        Ok(Some(Files { dir, page, path: path.clone(), kept }))
    }

    /// Makes the directory of the lock `key`, complete, unless another process has done so
    /// meanwhile.
    pub(crate) fn make(
        directory: &Directory,
        dir_name: &str,
        path: &Path,
        key: &str,
        boot: BootId,
    ) -> Result<()> {
        State::check_name(key)?;
        let made = directory.make(dir_name, |draft| {
            Page::make(draft)?;
            draft.pipe(pipe::slot_name(0).as_str())?;
            State::make(draft, key, &Ledger::new(boot))
        });
        made.map_err(|errno| failed("make", path, errno))
    }

    /// Whether to keep the files open between uses.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// The directory of the pipes.
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    pub(crate) fn page(&self) -> &Arc<Page> {
        &self.page
    }

    /// Opens the state: for a thread that may wait for the disk.
    pub(crate) fn state(&self) -> Result<State<'_>> {
        State::open(self.dir(), &self.path)
    }

    /// As [`pipe::watch`].
    pub(crate) fn watch(&self, slot: Slot) -> Result<Option<OwnedFd>> {
        pipe::watch(self.dir(), slot).map_err(|errno| match errno {
            Errno::NOENT => foreign(&self.path, &format!("its pipe s{slot} was removed")),
            Errno::LOOP | pipe::NOT_OURS => {
                foreign(&self.path, &format!("s{slot} in it is not a named pipe of its own"))
            }
            errno => failed("watch a pipe in", &self.path, errno),
        })
    }
}

/// Opens the page, which is made anew where it was removed: a page that is not there has lost no
/// more than one that nothing has open.
fn open_page(directory: &Directory, dir: BorrowedFd<'_>) -> io::Result<Page> {
    match Page::open(dir) {
        Err(Errno::NOENT) => {}
        opened => return opened,
    }
    let mut draft = Draft::in_dir(dir, directory.rights())?;
    Page::make(&mut draft)?;
    match draft.move_out_if_free(QUEUE, QUEUE) {
        Ok(()) | Err(Errno::EXIST) => Page::open(dir),
        Err(errno) => Err(errno),
    }
}

/// One of the locks whose files a store keeps open.
#[derive(Debug)]
pub(crate) struct OpenFilePermit(Arc<AtomicUsize>);

impl OpenFilePermit {
    /// One of as many as `count` still allows.
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
