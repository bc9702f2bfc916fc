//! One lock, and the latch under which its queue is read and changed.
//!
//! The latch is an flock on the lock's state, held for microseconds, and free as soon as its
//! holder dies. Inside a process an asynchronous mutex stands before it, since an flock does not
//! exclude those who share a descriptor. Only a latch that is not free at once, which means that
//! another process was interrupted while it held it, occupies a thread; one per lock at most.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use fencelock_core::{Moment, Result};
use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use crate::directory::Directory;
use crate::door::Caller;
use crate::error::{failed, foreign, runtime_ended};
use crate::files::{Files, Kept, STATE};
use crate::latch::{Desk, Latched};
use crate::path;
use crate::platform::{identity, since_boot};
use crate::queue::{BootId, Queue};

/// For how long a lock's file is taken to be where it was.
const STAYS: Duration = Duration::from_millis(100);
/// How often a file may be replaced while it is opened before that is an error.
const REPLACED_AT_MOST: usize = 16;

/// What all locks of a connected store have in common.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) directory: Directory,
    pub(crate) boot: BootId,
    pub(crate) runtime: Handle,
    kept_open: Arc<AtomicUsize>,
}

impl Ground {
    pub(crate) fn new(directory: Directory, boot: BootId, runtime: Handle) -> Ground {
        Ground { directory, boot, runtime, kept_open: Arc::default() }
    }

    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let done = self.runtime.spawn_blocking(work).await;
        done.map_err(|error| runtime_ended().caused_by(error))
    }
}

/// One lock.
#[derive(Debug)]
pub(crate) struct Place {
    ground: Arc<Ground>,
    key: Arc<str>,
    hash: u64,
    dir_name: String,
    path: Arc<Path>,
    /// The same, as system calls take it.
    c_path: CString,
    desk: Arc<Mutex<Desk>>,
    /// A waiter that could hold but does not, and since when that has been seen.
    stalled: std::sync::Mutex<Option<(u64, Moment)>>,
}

/// What to do when the lock has no directory yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Make,
    Leave,
}

/// What a look without the latch found.
pub(crate) enum Peek {
    Queue(Queue),
    /// Somebody of this process works on it, or it is being written at this moment.
    Busy,
    /// The file is not there any more, or another one is.
    Gone,
}

impl Place {
    pub(crate) fn new(ground: Arc<Ground>, key: Arc<str>) -> Place {
        let dir_name = path::encode(&key);
        let path = ground.directory.path().join(&dir_name).join(STATE);
        Place {
            hash: path::hash(&key),
            ground,
            key,
            dir_name,
            // Only a path with a NUL in it, which leads nowhere, has no such form.
            c_path: CString::new(path.as_os_str().as_bytes()).unwrap_or_default(),
            path: path.into(),
            desk: Arc::default(),
            stalled: std::sync::Mutex::default(),
        }
    }

    pub(crate) fn ground(&self) -> &Ground {
        &self.ground
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn caller(&self, ticket: u64) -> Caller {
        self.hash.wrapping_add(ticket)
    }

    /// Takes note that `ticket` could hold but does not; gives it back once that has been so for
    /// `patience`.
    pub(crate) fn stalled_for(
        &self,
        ticket: Option<u64>,
        now: Moment,
        patience: Duration,
    ) -> Option<u64> {
        let mut stalled = self.stalled.lock().unwrap_or_else(PoisonError::into_inner);
        match (*stalled, ticket) {
            (Some((known, since)), Some(ticket)) if known == ticket => {
                (now.since(since) >= patience).then_some(ticket)
            }
            _ => {
                *stalled = ticket.map(|ticket| (ticket, now));
                None
            }
        }
    }

    /// The queue, for nobody else until what this returns is dropped. Makes the lock's directory.
    ///
    /// May be dropped at any await; then nothing stays latched.
    pub(crate) async fn latch(self: &Arc<Self>) -> Result<Latched> {
        match self.latch_or(Missing::Make).await? {
            Some(latched) => Ok(latched),
            None => Err(foreign(&self.path, "it vanishes as soon as it is made")),
        }
    }

    /// As [`latch`](Place::latch); `None` when the lock has no directory.
    pub(crate) async fn latch_if_there(self: &Arc<Self>) -> Result<Option<Latched>> {
        self.latch_or(Missing::Leave).await
    }

    async fn latch_or(self: &Arc<Self>, missing: Missing) -> Result<Option<Latched>> {
        for _ in 0..REPLACED_AT_MOST {
            let mut desk = match self.desk.clone().try_lock_owned() {
                Ok(desk) => desk,
                Err(_) => self.desk.clone().lock_owned().await,
            };
            let files = match &desk.files {
                Some(files) => files.clone(),
                None => match self.open()? {
                    Some(files) => desk.files.insert(files).clone(),
                    None if missing == Missing::Leave => return Ok(None),
                    None => {
                        let place = self.clone();
                        self.ground.blocking(move || place.make()).await??;
                        continue;
                    }
                },
            };
            let mut latched = if files.try_latch()? {
                Latched::new(desk, self.clone())
            } else {
                let place = self.clone();
                // The closure owns the latch: when nobody waits for it any more, it is unlatched
                // as soon as it was latched.
                let wait = move || files.wait_for_latch().map(|()| Latched::new(desk, place));
                self.ground.blocking(wait).await??
            };
            if self.is_current(latched.desk(), missing)? {
                return Ok(Some(latched));
            }
            latched.abandon();
        }
        Err(foreign(&self.path, "somebody replaces it again and again"))
    }

    /// Whether the latched files are still this lock's. Those that were removed or replaced by
    /// hand exclude nobody, since whoever comes later goes by the path. Whoever wants to make an
    /// entry sees at once that they were removed; the rest is looked up now and then, which is
    /// enough for a program that slept while somebody moved the directory.
    fn is_current(&self, desk: &mut Desk, missing: Missing) -> Result<bool> {
        let Some(files) = &desk.files else { return Ok(false) };
        let now = since_boot();
        let long_ago = desk.checked.is_none_or(|then| now > then + STAYS);
        if (missing == Missing::Make || long_ago) && !files.is_linked()? {
            return Ok(false);
        }
        if missing == Missing::Leave || !long_ago {
            return Ok(true);
        }
        match identity(&self.c_path) {
            Ok(identity) if identity == files.identity() => {
                desk.checked = Some(now);
                Ok(true)
            }
            Ok(_) | Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed("find", &self.path, errno)),
        }
    }

    /// The queue as it may be, without the latch: for a look.
    pub(crate) fn peek(&self) -> Result<Peek> {
        let Ok(mut desk) = self.desk.try_lock() else { return Ok(Peek::Busy) };
        if desk.files.is_none() {
            desk.files = self.open()?;
        }
        let here = desk.files.as_ref().map(|files| files.identity());
        if here.is_none() || identity(&self.c_path).ok() != here {
            return Ok(Peek::Gone);
        }
        let read = desk.read(&self.ground);
        desk.let_go();
        Ok(match read {
            Ok(()) => Peek::Queue(desk.queue.clone()),
            Err(_) => Peek::Busy,
        })
    }

    fn open(&self) -> Result<Option<Arc<Files>>> {
        let kept = Kept::one_of(&self.ground.kept_open);
        let directory = &self.ground.directory;
        let files = Files::open(directory, &self.dir_name, &self.path, &self.key, kept)?;
        Ok(files.map(Arc::new))
    }

    fn make(&self) -> Result<()> {
        let Ground { directory, boot, .. } = &*self.ground;
        Files::make(directory, &self.dir_name, &self.path, &self.key, *boot)
    }
}
