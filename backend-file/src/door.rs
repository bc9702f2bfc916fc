//! Where a connected store can be rung: one named pipe for each, in the directory `.doors`.
//!
//! What closing pipes does not tell, somebody has to say: that a shared lock was granted and the
//! next reader fits too, that a releaser's pipe lives on in a child, that a person broke a lock.
//! One pipe for all claims of a store makes that free for those that nobody has to ring. A ring
//! is a hint: one too many does no harm, and one that is lost is made up for by the safety look.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use fencelock_core::{Claim, Label, Result};
use rustix::fs::{FileType, Mode, OFlags, openat};
use rustix::io::{self, Errno};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use crate::directory::Directory;
use crate::error::failed;
use crate::labels::{read_label, write_label};
use crate::mailbox::{self, OwnedPipe};
use crate::pipe;
use crate::platform::centiseconds;
use crate::queue::NO_WAKE_PIPE;
use crate::state::LABEL_LEN;

/// Begins with a dot, which no lock's directory does.
const WAKE_PIPES: &str = ".doors";
/// The label of each door's process.
const LABELS: &str = "labels";

/// A claim of this store as others know it: the lock's hash plus the ticket.
pub(crate) type ClaimKey = u64;

/// This store's door, and the way to the others.
#[derive(Debug)]
pub(crate) struct WakePipe {
    number: u16,
    dir: Arc<OwnedFd>,
    registry: Arc<ClaimRegistry>,
    /// When it was taken, as [`queue::Entry::since`](crate::queue::Entry::since).
    taken: u32,
    /// The label that stands at this door, once a claim had one.
    label: OnceLock<Option<Label>>,
    dispatcher: tokio::task::AbortHandle,
}

impl WakePipe {
    /// Takes a free door.
    pub(crate) fn take(directory: &Directory, runtime: &Handle) -> Result<WakePipe> {
        let path = directory.path().join(WAKE_PIPES);
        let failed = |errno| failed("open a named pipe in", &path, errno);
        let dir = Arc::new(open_or_make(directory).map_err(failed)?);
        let mailbox = OwnedPipe::take(&dir, directory.rights()).map_err(failed)?;
        let number = mailbox.number();
        let _in_runtime = runtime.enter();
        // The safe constructor is deprecated for types that may not own their descriptor; a
        // Mailbox does, and the replacement is unsafe code.
        #[allow(deprecated)]
        let mailbox = AsyncFd::with_interest(mailbox, Interest::READABLE)
            .map_err(|error| crate::error::runtime_ended().caused_by(error))?;
        let registry = Arc::new(ClaimRegistry::default());
        let dispatcher = runtime.spawn(dispatch(mailbox, registry.clone())).abort_handle();
        let taken = centiseconds();
        Ok(WakePipe { number, dir, registry, taken, label: OnceLock::new(), dispatcher })
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Rings `caller` at door `number`, if that process lives.
    pub(crate) fn ring(&self, number: u16, claim_key: ClaimKey) {
        if number == self.number {
            self.registry.ring(claim_key);
            return;
        }
        if number == NO_WAKE_PIPE {
            return;
        }
        // Opened for reading too: a write can then neither fail for want of a reader nor raise
        // SIGPIPE, and nobody takes a reader here for an owner.
        let rung = pipe::open(self.dir.as_fd(), &mailbox::name(number), OFlags::RDWR)
            .and_then(|pipe| io::write(&pipe, &claim_key.to_le_bytes()));
        match rung {
            // Full: whoever reads that much rings everybody.
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(errno) => tracing::debug!(
                target: "fencelock", number, error = %std::io::Error::from(errno),
                "could not ring; the safety look will"),
        }
    }

    pub(crate) fn registry(&self) -> &ClaimRegistry {
        &self.registry
    }

    /// Whether `label` stands at this door; `None` when none was put there yet.
    pub(crate) fn has_label(&self, label: &Label) -> Option<bool> {
        self.label.get().map(|own| own.as_ref() == Some(label))
    }

    /// Puts `label` at this door if it is the first one. Whether it stands there: for a thread that
    /// may wait for the disk.
    pub(crate) fn put_label(&self, label: &Label) -> bool {
        let own = self.label.get_or_init(|| {
            let file = open_labels(self.dir.as_fd()).ok()?;
            let at = record_at(self.number);
            let taken = io::pwrite(&file, &self.taken.to_le_bytes(), at);
            write_label(file.as_fd(), at + TAKEN, label).ok()?;
            (taken == Ok(size_of::<u32>())).then(|| label.clone())
        });
        own.as_ref() == Some(label)
    }

    /// What stands at door `number`, if it was taken before `since`: an entry may outlive its
    /// process, in a child that inherited its pipe, and the door is another's then.
    pub(crate) fn label_at(&self, number: u16, since: u32) -> Option<Label> {
        let file = open_labels(self.dir.as_fd()).ok()?;
        let mut taken = [0; size_of::<u32>()];
        io::pread(&file, &mut taken, record_at(number)).ok()?;
        let ago = since.wrapping_sub(u32::from_le_bytes(taken));
        (ago < u32::MAX / 2).then(|| read_label(file.as_fd(), record_at(number) + TAKEN))?
    }

    /// Takes no more rings.
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
    match directory.open_dir(WAKE_PIPES) {
        Err(Errno::NOENT) => {
            directory.make(WAKE_PIPES, |draft| draft.file(LABELS).map(drop))?;
            directory.open_dir(WAKE_PIPES)
        }
        opened => opened,
    }
}

fn open_labels(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = openat(dir, LABELS, flags | OFlags::NOCTTY, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    // Where another user may have put something else, a label must not be written into that.
    match FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_nlink == 1 {
        true => Ok(file),
        false => Err(Errno::PERM),
    }
}

/// Where the record of door `number` begins: when it was taken, and the label.
fn record_at(number: u16) -> u64 {
    u64::from(number) * (TAKEN + LABEL_LEN as u64)
}

const TAKEN: u64 = size_of::<u32>() as u64;

/// Who can be rung here.
#[derive(Debug, Default)]
pub(crate) struct ClaimRegistry {
    claims: Mutex<HashMap<ClaimKey, Weak<Claim>>>,
}

impl ClaimRegistry {
    fn claims(&self) -> MutexGuard<'_, HashMap<ClaimKey, Weak<Claim>>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, claim_key: ClaimKey, claim: &Arc<Claim>) {
        self.claims().insert(claim_key, Arc::downgrade(claim));
    }

    pub(crate) fn remove(&self, claim_key: ClaimKey) {
        self.claims().remove(&claim_key);
    }

    pub(crate) fn contains(&self, claim_key: ClaimKey) -> bool {
        self.claims().contains_key(&claim_key)
    }

    fn ring(&self, claim_key: ClaimKey) {
        // Not under the mutex: a ring enters core.
        let claim = self.claims().get(&claim_key).and_then(Weak::upgrade);
        if let Some(claim) = claim {
            claim.wake();
        }
    }

    pub(crate) fn ring_all(&self) {
        let claims: Vec<_> = self.claims().values().filter_map(Weak::upgrade).collect();
        for claim in claims {
            claim.wake();
        }
    }
}

/// Passes on every ring, as long as the runtime lives.
async fn dispatch(pipe: AsyncFd<OwnedPipe>, registry: Arc<ClaimRegistry>) {
    let mut rings = [0; 4096];
    while let Ok(mut ready) = pipe.readable().await {
        match io::read(pipe.get_ref(), &mut rings) {
            // Even the smallest pipe holds twice as much, so one may have been full.
            Ok(read) if read == rings.len() => registry.ring_all(),
            Ok(read) => {
                for ring in rings[..read].chunks_exact(size_of::<ClaimKey>()) {
                    let ring = std::array::from_fn(|at| ring[at]);
                    registry.ring(ClaimKey::from_le_bytes(ring));
                }
            }
            Err(Errno::INTR) => {}
            Err(_) => ready.clear_ready(),
        }
    }
}
