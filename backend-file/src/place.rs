//! One lock, and the latch under which its queue is read and changed.
//!
//! The latch is an flock on the lock's page, held for microseconds, and free as soon as its holder
//! dies. A request that finds everything ready is carried out at once, on its caller's thread: its
//! system calls wait for nothing. One that does not, since files have to be opened, tokens have to
//! be promised to the disk, or another process is in the latch, waits in line
//! ([`turn`](crate::turn)) for a thread of the store's: a disk may hang, and the process that has
//! the latch may be stopped.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::{Error, Moment, Result};
use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::directory::Directory;
use crate::door::Caller;
use crate::error::{failed, foreign};
use crate::files::{Files, Kept};
use crate::io::Workers;
use crate::latch::{Desk, Found, Latched, Stop, Thread};
use crate::ledger::BootId;
use crate::page::{QUEUE, Scratch};
use crate::path;
use crate::platform::{identity, since_boot};
use crate::queue::Queue;
use crate::request::{Answer, Asked, Leaves, Peeked};
use crate::turn::{Changed, Line, go_through, line_up};

/// For how long a lock's page is taken to be where it was.
const STAYS: Duration = Duration::from_millis(100);
/// How long a request takes at most whose disk answers: a look does not count it as an answer that
/// an older one has had none.
const PROMPT: Duration = Duration::from_secs(1);
/// How often a line is tried that a step on another thread has, before its caller sleeps.
const LINE_TRIES: u32 = 500;
/// How often a file may be replaced while it is opened before that is an error.
const REPLACED_AT_MOST: usize = 16;

/// What all locks of a connected store have in common.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) directory: Directory,
    pub(crate) boot: BootId,
    pub(crate) runtime: Handle,
    pub(crate) threads: Workers<Arc<Place>>,
    pub(crate) scratch: Scratch,
    kept_open: Arc<AtomicUsize>,
}

impl Ground {
    pub(crate) fn new(directory: Directory, boot: BootId, runtime: Handle) -> Result<Ground> {
        let scratch = Scratch::new().map_err(|e| failed("read pipes in", directory.path(), e))?;
        let (threads, kept_open) = (Workers::new(go_through), Arc::default());
        Ok(Ground { directory, boot, runtime, threads, scratch, kept_open })
    }
}

/// One lock.
#[derive(Debug)]
pub(crate) struct Place {
    ground: Arc<Ground>,
    key: Arc<str>,
    hash: u64,
    dir_name: String,
    /// Of its directory.
    path: Arc<Path>,
    /// Of its page, as system calls take it.
    page_path: CString,
    desk: Mutex<Desk>,
    line: Mutex<Line>,
    /// A waiter that could hold but does not, and since when that has been seen.
    stalled: Mutex<Option<(u64, Moment)>>,
}

/// What to do when the lock has no directory yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Make it: what comes is an acquisition, and may need tokens too.
    Make,
    Leave,
}

/// How far a thread came at a lock.
enum Reached<'a> {
    Latched(Latched<'a>),
    /// The lock has no directory.
    Missing,
    /// Another process has the latch.
    Contended,
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
        let path = ground.directory.path().join(&dir_name);
        Place {
            hash: path::hash(&key),
            ground,
            key,
            dir_name,
            // Only a path with a NUL in it, which leads nowhere, has no such form.
            page_path: CString::new(path.join(QUEUE).as_os_str().as_bytes()).unwrap_or_default(),
            path: path.into(),
            desk: Mutex::default(),
            line: Mutex::default(),
            stalled: Mutex::default(),
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
                (now.duration_since(since) >= patience).then_some(ticket)
            }
            _ => {
                *stalled = ticket.map(|ticket| (ticket, now));
                None
            }
        }
    }

    /// Does `work` with the queue, which is nobody else's until what `work` is given is dropped.
    /// Makes the lock's directory. Work that stops since it needs the disk is done again.
    ///
    /// Dropped at any await, `work` may still be done, once, before anything that is asked of this
    /// lock afterwards.
    pub(crate) async fn latched<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Fn(Latched<'_>) -> Result<T, Stop> + Send + 'static,
    ) -> Result<T> {
        match self.asked(Missing::Make, work).await? {
            Some(done) => Ok(done),
            None => Err(foreign(&self.path, "it vanishes as soon as it is made")),
        }
    }

    /// As [`latched`](Place::latched); `None` when the lock has no directory.
    pub(crate) async fn latched_if_there<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Fn(Latched<'_>) -> Result<T, Stop> + Send + 'static,
    ) -> Result<Option<T>> {
        self.asked(Missing::Leave, work).await
    }

    async fn asked<T: Send + 'static>(
        self: &Arc<Self>,
        missing: Missing,
        work: impl Fn(Latched<'_>) -> Result<T, Stop> + Send + 'static,
    ) -> Result<Option<T>> {
        self.asked_at_once(missing, work)?.wait().await
    }

    /// Carries a request out, or puts it in line.
    fn asked_at_once<T: Send + 'static>(
        self: &Arc<Self>,
        missing: Missing,
        work: impl Fn(Latched<'_>) -> Result<T, Stop> + Send + 'static,
    ) -> Result<Answer<Option<T>>> {
        // Nothing overtakes it while this has the line.
        let line = self.line();
        if line.is_at_rest() {
            match self.carry_out(missing, Thread::Caller, &work) {
                Ok(Some(done)) => return Ok(Answer::Now(done)),
                Ok(None) | Err(Stop::NeedsDisk) => {}
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
        let (answer, answered) = oneshot::channel();
        line_up(self, line, Box::new(Asked { missing, work, answer }))?;
        Ok(Answer::Later(answered))
    }

    /// `None` when another process has the latch.
    pub(crate) fn carry_out<T>(
        &self,
        missing: Missing,
        thread: Thread,
        work: impl Fn(Latched<'_>) -> Result<T, Stop>,
    ) -> Result<Option<Option<T>>, Stop> {
        match self.reach(missing, thread)? {
            Reached::Latched(latched) => work(latched).map(|done| Some(Some(done))),
            Reached::Missing => Ok(Some(None)),
            Reached::Contended => Ok(None),
        }
    }

    /// Closes the lock's files: of a lock that nothing is asked of any more. Completes when that is
    /// done.
    pub(crate) fn leave(self: &Arc<Self>) -> oneshot::Receiver<()> {
        let (answer, left) = oneshot::channel();
        // Without a thread the files close with this lock.
        let _ = line_up(self, self.line(), Box::new(Leaves { _answer: answer }));
        left
    }

    /// Closes the lock's files, on a thread that may wait for the disk.
    pub(crate) fn close(&self) {
        let mut desk = self.desk();
        let Some(files) = desk.files.clone() else { return };
        // A process that has the latch has the page open too: this one is not the last.
        if !files.page().try_latch().unwrap_or(false) {
            desk.files = None;
            return;
        }
        let mut latched = Latched::new(desk, self, Thread::Own);
        latched.note_tokens();
        latched.abandon();
    }

    pub(crate) fn line(&self) -> MutexGuard<'_, Line> {
        // A step on another thread of this process is done within microseconds. To sleep and be
        // woken takes longer, for both.
        for _ in 0..LINE_TRIES {
            if let Ok(line) = self.line.try_lock() {
                return line;
            }
            std::hint::spin_loop();
        }
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long what was asked of this lock has not been answered, and what may be the cause.
    pub(crate) fn trouble(&self) -> Option<(Duration, Error)> {
        self.line().trouble(self)
    }

    /// When the queue changed last, if it is open. For a thread that may wait for the disk.
    pub(crate) fn changed(&self) -> Option<Changed> {
        self.desk().files.as_ref()?.page().changed()
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loaded queue, and the latch.
    fn reach(&self, missing: Missing, thread: Thread) -> Result<Reached<'_>, Stop> {
        for _ in 0..REPLACED_AT_MOST {
            // Only the request whose turn it is locks this.
            let mut desk = self.desk();
            if desk.files.is_none() {
                if thread == Thread::Caller {
                    return Err(Stop::NeedsDisk);
                }
                self.open(&mut desk)?;
            }
            let Some(files) = desk.files.clone() else {
                if missing == Missing::Leave {
                    return Ok(Reached::Missing);
                }
                self.make()?;
                continue;
            };
            if !files.page().try_latch().map_err(|e| failed("lock", &self.path, e))? {
                return Ok(Reached::Contended);
            }
            let mut latched = Latched::new(desk, self, thread);
            if !self.is_current(latched.desk(), missing)? {
                latched.abandon();
                continue;
            }
            latched.load()?;
            if missing == Missing::Make {
                latched.prepare_tokens()?;
            }
            return Ok(Reached::Latched(latched));
        }
        Err(foreign(&self.path, "somebody replaces it again and again").into())
    }

    /// Whether the latched files are still this lock's. Those that were removed or replaced by
    /// hand exclude nobody, since whoever comes later goes by the path. Whoever wants to make an
    /// entry sees at once that they were removed; the rest is looked up now and then, which is
    /// enough for a program that slept while somebody moved the directory.
    fn is_current(&self, desk: &mut Desk, missing: Missing) -> Result<bool> {
        let Some(files) = &desk.files else { return Ok(false) };
        let now = since_boot();
        let long_ago = desk.checked.is_none_or(|then| now > then + STAYS);
        let is_linked = || files.page().is_linked().map_err(|e| failed("look at", &self.path, e));
        if (missing == Missing::Make || long_ago) && !is_linked()? {
            return Ok(false);
        }
        if missing == Missing::Leave || !long_ago {
            return Ok(true);
        }
        match identity(&self.page_path) {
            Ok(identity) if identity == files.page().identity() => {
                desk.checked = Some(now);
                Ok(true)
            }
            Ok(_) | Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed("find", &self.path, errno)),
        }
    }

    /// The queue as it may be, without the latch: for a look.
    pub(crate) async fn peek(self: &Arc<Self>) -> Result<Peek> {
        match self.trouble() {
            // It is no answer of the disk's that another request has had none.
            Some((elapsed, trouble)) if elapsed >= PROMPT => return Err(trouble),
            Some(_) => return Ok(Peek::Busy),
            None => {}
        }
        self.peek_at_once()?.wait().await
    }

    fn peek_at_once(self: &Arc<Self>) -> Result<Answer<Peek>> {
        let line = self.line();
        if line.is_at_rest() {
            match self.peek_on(Thread::Caller) {
                Ok(seen) => return Ok(Answer::Now(seen)),
                Err(Stop::NeedsDisk) => {}
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
        let (answer, answered) = oneshot::channel();
        line_up(self, line, Box::new(Peeked { answer }))?;
        Ok(Answer::Later(answered))
    }

    pub(crate) fn peek_on(&self, thread: Thread) -> Result<Peek, Stop> {
        let mut desk = self.desk();
        if desk.files.is_none() {
            if thread == Thread::Caller {
                return Err(Stop::NeedsDisk);
            }
            self.open(&mut desk)?;
        }
        let here = desk.files.as_ref().map(|files| files.page().identity());
        if here.is_none() || identity(&self.page_path).ok() != here {
            return Ok(Peek::Gone);
        }
        let read = desk.read(self, thread);
        desk.let_go();
        match read {
            Ok(Found::Queue) => Ok(Peek::Queue(desk.queue.clone())),
            Ok(Found::Nothing | Found::Damage) => Ok(Peek::Gone),
            Err(Stop::NeedsDisk) => Err(Stop::NeedsDisk),
            Err(Stop::Failed(_)) => Ok(Peek::Busy),
        }
    }

    /// Opens the lock's files, if there are any.
    fn open(&self, desk: &mut Desk) -> Result<()> {
        let Ground { directory, kept_open, .. } = &*self.ground;
        let kept = Kept::one_of(kept_open);
        let (name, path, key) = (&self.dir_name, &self.path, &self.key);
        desk.files = Files::open(directory, name, path, key, kept, &desk.page)?.map(Arc::new);
        if let Some(files) = &desk.files {
            desk.page = Arc::downgrade(files.page());
        }
        Ok(())
    }

    fn make(&self) -> Result<()> {
        let Ground { directory, boot, .. } = &*self.ground;
        Files::make(directory, &self.dir_name, &self.path, &self.key, *boot)
    }
}
