//! The pipe through which other processes wake the claims of a connected store: one named pipe for
//! each store, in the directory `.doors`.
//!
//! Some events close no pipe and have to be sent: a shared lock was granted and the next reader
//! fits too, the pipe of a releaser lives on in a child, an operator evicted a holder. With one
//! pipe for all claims of a store, claims that need no such wake-up pay nothing for it. Changes of
//! cells are sent through it too. A wake-up
//! is a hint: a redundant one does no harm, and the periodic check makes up for a lost one.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use fencelock_core::backend::{CellWatches, ClaimRegistry};
use fencelock_core::{Label, Result};
use rustix::fs::{Access, AtFlags, OFlags};
use rustix::io::{self, Errno};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use crate::directory::draft::Draft;
use crate::directory::store_dir::Directory;
use crate::error::failed;
use crate::platform::centiseconds;
use crate::queue::entry::NO_WAKE_PIPE;
use crate::queue::record::MAGIC;
use crate::storage::named_pipe;
use crate::storage::regular_file::{self, LABEL_LEN};
use crate::wake::owned_pipe;
use crate::wake::owned_pipe::OwnedPipe;

/// The directory of the wake pipes. It begins with a dot, unlike the directory of a lock.
const WAKE_PIPES: &str = ".doors";
/// The file in it with the label of each store. Earlier releases have one named `labels`, without a mark.
const LABELS: &str = "labels2";

/// Identifies a claim in a wake-up: its lock's hash plus its ticket. The hash alone, as no ticket is
/// zero, identifies the lock's cell.
pub(crate) type ClaimKey = u64;

/// The key of the claim with `ticket` for a lock.
pub(crate) fn claim_key(lock_hash: u64, ticket: u64) -> ClaimKey {
    lock_hash.wrapping_add(ticket)
}

/// This store's wake pipe, and access to those of other stores.
#[derive(Debug)]
pub(crate) struct WakePipe {
    pub(crate) number: u16,
    dir: Arc<OwnedFd>,
    pub(crate) registry: Arc<ClaimRegistry<ClaimKey>>,
    pub(crate) cells: Arc<CellWatches<ClaimKey>>,
    /// When it was taken, like [`Entry::since`](crate::queue::entry::Entry::since).
    taken: u32,
    /// The label recorded for this pipe, once a claim had one.
    label: OnceLock<Option<Label>>,
    dispatcher: tokio::task::AbortHandle,
}

impl WakePipe {
    /// Takes a free wake pipe.
    pub(crate) fn take(directory: &Directory, runtime: &Handle) -> Result<WakePipe> {
        let path = directory.path.join(WAKE_PIPES);
        let failed = |errno| failed("open a named pipe in", &path, errno);
        let dir = Arc::new(open_or_make(directory).map_err(failed)?);
        let pipe = OwnedPipe::take(&dir, &directory.rights).map_err(failed)?;
        let number = pipe.number;
        let _in_runtime = runtime.enter();
        // The safe constructor is deprecated for types that may not own their descriptor; an
        // OwnedPipe does, and the replacement is unsafe code.
        #[allow(deprecated)]
        let pipe = AsyncFd::with_interest(pipe, Interest::READABLE)
            .map_err(|error| crate::error::runtime_ended().caused_by(error))?;
        let registry = Arc::new(ClaimRegistry::default());
        let cells = Arc::<CellWatches<ClaimKey>>::default();
        let dispatcher = runtime.spawn(dispatch(pipe, registry.clone(), cells.clone()));
        let dispatcher = dispatcher.abort_handle();
        let taken = centiseconds();
        Ok(WakePipe { number, dir, registry, cells, taken, label: OnceLock::new(), dispatcher })
    }

    /// Wakes the claim `claim_key`, or notifies the watches on that cell, through wake pipe `number`,
    /// if that process lives.
    pub(crate) fn wake(&self, number: u16, claim_key: ClaimKey) {
        if number == self.number {
            self.registry.wake(&claim_key);
            self.cells.changed(&claim_key);
            return;
        }
        if number == NO_WAKE_PIPE {
            return;
        }
        // Opened for reading too, so that a write can neither fail without a reader nor raise
        // SIGPIPE. A reader of a wake pipe does not count as an owner.
        let sent = named_pipe::open(self.dir.as_fd(), &owned_pipe::name(number), OFlags::RDWR)
            .and_then(|pipe| io::write(&pipe, &claim_key.to_le_bytes()));
        match sent {
            // Full: a reader of that much wakes all its claims.
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(errno) => tracing::debug!(
                target: "fencelock", number, error = %std::io::Error::from(errno),
                "cannot write to a wake pipe; the periodic check will wake the claim"),
        }
    }

    /// Whether `label` is recorded for this pipe.
    pub(crate) fn has_label(&self, label: &Label) -> bool {
        self.label.get().is_some_and(|own| own.as_ref() == Some(label))
    }

    /// Records `label` for this pipe if it is the first one, on a thread that may wait for the
    /// disk. Returns whether it is recorded.
    pub(crate) fn put_label(&self, label: &Label) -> bool {
        let own = self.label.get_or_init(|| {
            let file = self.labels()?;
            let at = record_at(self.number);
            regular_file::write(&file, &self.taken.to_le_bytes(), at).ok()?;
            regular_file::write_label(&file, at + TAKEN, label).ok()?;
            Some(label.clone())
        });
        own.as_ref() == Some(label)
    }

    /// The label of wake pipe `number`, if it was taken before `since`: an entry may outlive its
    /// process, in a child that inherited its pipe, and another store may have the wake pipe then.
    pub(crate) fn label_at(&self, number: u16, since: u32) -> Option<Label> {
        let file = self.labels()?;
        let mut taken = [0; size_of::<u32>()];
        regular_file::read(&file, &mut taken, record_at(number)).ok()?;
        let ago = since.wrapping_sub(u32::from_le_bytes(taken));
        let label = || regular_file::read_label(&file, record_at(number) + TAKEN);
        (ago < u32::MAX / 2).then(label)?
    }

    /// The file of the labels, if it is one: another user of the directory may have renamed a file over it that only
    /// this user may write.
    fn labels(&self) -> Option<File> {
        let file = regular_file::open(self.dir.as_fd(), LABELS).ok()?;
        let mut mark = [0; MAGIC.len()];
        regular_file::read(&file, &mut mark, 0).ok()?;
        (mark == MAGIC).then_some(file)
    }

    /// Ends the delivery of wake-ups.
    pub(crate) fn close(&self) {
        self.dispatcher.abort();
    }
}

impl Drop for WakePipe {
    fn drop(&mut self) {
        self.close();
    }
}

fn open_or_make(directory: &Directory) -> io::Result<OwnedFd> {
    let dir = match directory.open_dir(WAKE_PIPES) {
        Err(Errno::NOENT) => {
            directory.create(WAKE_PIPES, make_labels)?;
            directory.open_dir(WAKE_PIPES)?
        }
        opened => opened?,
    };
    // An earlier release has made the directory. Without the file, labels are in the locks' own files.
    if rustix::fs::accessat(&dir, LABELS, Access::EXISTS, AtFlags::empty()) == Err(Errno::NOENT)
        && let Ok(mut draft) = Draft::in_dir(dir.as_fd(), &directory.rights)
        && make_labels(&mut draft).is_ok()
    {
        let _ = draft.move_out_if_free(LABELS, LABELS);
    }
    Ok(dir)
}

fn make_labels(draft: &mut Draft<'_>) -> io::Result<()> {
    regular_file::write(&File::from(draft.file(LABELS)?), &MAGIC, 0)
}

/// The offset of the record of wake pipe `number`, behind the mark: when it was taken, and the label.
fn record_at(number: u16) -> u64 {
    MAGIC.len() as u64 + u64::from(number) * (TAKEN + LABEL_LEN as u64)
}

const TAKEN: u64 = size_of::<u32>() as u64;

/// Delivers every wake-up, as long as the runtime lives.
async fn dispatch(
    pipe: AsyncFd<OwnedPipe>,
    registry: Arc<ClaimRegistry<ClaimKey>>,
    cells: Arc<CellWatches<ClaimKey>>,
) {
    let mut keys = [0; 4096];
    while let Ok(mut ready) = pipe.readable().await {
        match io::read(pipe.get_ref(), &mut keys) {
            // Even the smallest pipe holds twice as much, so a wake-up may have found it full.
            Ok(read) if read == keys.len() => {
                registry.wake_all();
                cells.all_may_have_changed();
            }
            Ok(read) => {
                for key in keys[..read].chunks_exact(size_of::<ClaimKey>()) {
                    let key = ClaimKey::from_le_bytes(std::array::from_fn(|at| key[at]));
                    registry.wake(&key);
                    cells.changed(&key);
                }
            }
            Err(Errno::INTR) => {}
            Err(_) => ready.clear_ready(),
        }
    }
}
