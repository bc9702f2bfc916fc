//! One lock, and the latch under which its queue is read and changed.
//!
//! The latch is an flock on the lock's state, held for microseconds, and free as soon as its
//! holder dies. Whoever asks for it here waits in line at the lock ([`turn`](crate::turn)), and is
//! served by a thread of the store's: a disk may hang, and the process that has the latch may be
//! stopped.

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
use crate::error::{failed, foreign, no_answer};
use crate::files::{Files, Kept, STATE};
use crate::io::{Crew, Workers};
use crate::latch::{Desk, Latched};
use crate::path;
use crate::platform::{identity, since_boot};
use crate::queue::{BootId, Queue};
use crate::turn::{Changed, Line, Taken, Thread, Turn, go_slowly, go_through, line_up};

/// For how long a lock's file is taken to be where it was.
const STAYS: Duration = Duration::from_millis(100);
/// How long a request takes at most whose disk answers: a look does not count it as an answer that
/// an older one has had none.
const PROMPT: Duration = Duration::from_secs(1);
/// How often a file may be replaced while it is opened before that is an error.
const REPLACED_AT_MOST: usize = 16;

/// The threads for what takes microseconds. More than one would only be another that hangs with
/// the disk; and what they do, they do mostly in the kernel, under locks that are its own.
const QUICK: Crew =
    Crew { name: "fencelock-file", most: 1, spins: true, stays: Duration::from_secs(10) };
/// Those for what waits for the disk: making a lock's files, and promising tokens.
const SLOW: Crew =
    Crew { name: "fencelock-sync", most: 16, spins: false, stays: Duration::from_secs(1) };

/// What all locks of a connected store have in common.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) directory: Directory,
    pub(crate) boot: BootId,
    pub(crate) runtime: Handle,
    pub(crate) quick: Workers<Arc<Place>>,
    pub(crate) slow: Workers<Arc<Place>>,
    kept_open: Arc<AtomicUsize>,
}

impl Ground {
    pub(crate) fn new(directory: Directory, boot: BootId, runtime: Handle) -> Ground {
        let (quick, slow) = (Workers::new(QUICK, go_through), Workers::new(SLOW, go_slowly));
        Ground { directory, boot, runtime, quick, slow, kept_open: Arc::default() }
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
    desk: Mutex<Desk>,
    line: Mutex<Line>,
    /// A waiter that could hold but does not, and since when that has been seen.
    stalled: Mutex<Option<(u64, Moment)>>,
}

/// What to do when the lock has no directory yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
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
    /// Only a slow thread may go on.
    IsSlow,
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
                (now.since(since) >= patience).then_some(ticket)
            }
            _ => {
                *stalled = ticket.map(|ticket| (ticket, now));
                None
            }
        }
    }

    /// Does `work` with the queue, which is nobody else's until what `work` is given is dropped.
    /// Makes the lock's directory.
    ///
    /// Dropped at any await, `work` may still be done, once, before anything that is asked of this
    /// lock afterwards.
    pub(crate) async fn latched<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(Latched<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match self.asked(Missing::Make, work).await? {
            Some(done) => Ok(done),
            None => Err(foreign(&self.path, "it vanishes as soon as it is made")),
        }
    }

    /// As [`latched`](Place::latched); `None` when the lock has no directory.
    pub(crate) async fn latched_if_there<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(Latched<'_>) -> Result<T> + Send + 'static,
    ) -> Result<Option<T>> {
        self.asked(Missing::Leave, work).await
    }

    async fn asked<T: Send + 'static>(
        self: &Arc<Self>,
        missing: Missing,
        work: impl FnOnce(Latched<'_>) -> Result<T> + Send + 'static,
    ) -> Result<Option<T>> {
        let (answer, answered) = oneshot::channel();
        line_up(self, Box::new(Asked { missing, work, answer }))?;
        let answer = self.ground.quick.answer(answered).await;
        answer.unwrap_or_else(|| Err(no_answer()))
    }

    pub(crate) fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long what was asked of this lock has not been answered, and what may be the cause.
    pub(crate) fn trouble(&self) -> Option<(Duration, Error)> {
        self.line().trouble(self)
    }

    /// When the queue's file changed last, if it is open. For a thread that may wait for the disk.
    pub(crate) fn changed(&self) -> Option<Changed> {
        self.desk().files.as_ref()?.changed()
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loaded queue, and the latch.
    fn reach(&self, missing: Missing, thread: Thread) -> Result<Reached<'_>> {
        for _ in 0..REPLACED_AT_MOST {
            let mut desk = self.desk();
            let files = match &desk.files {
                Some(files) => files.clone(),
                None => match self.open()? {
                    Some(files) => desk.files.insert(files).clone(),
                    None if missing == Missing::Leave => return Ok(Reached::Missing),
                    None if thread == Thread::Quick => return Ok(Reached::IsSlow),
                    None => {
                        self.make()?;
                        continue;
                    }
                },
            };
            if !files.try_latch()? {
                return Ok(Reached::Contended);
            }
            let mut latched = Latched::new(desk, self);
            if !self.is_current(latched.desk(), missing)? {
                latched.abandon();
                continue;
            }
            latched.load()?;
            if missing == Missing::Make && latched.queue().needs_tokens() {
                if thread == Thread::Quick {
                    return Ok(Reached::IsSlow);
                }
                latched.promise_tokens()?;
            }
            return Ok(Reached::Latched(latched));
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
    pub(crate) async fn peek(self: &Arc<Self>) -> Result<Peek> {
        match self.trouble() {
            // It is no answer of the disk's that another request has had none.
            Some((elapsed, trouble)) if elapsed >= PROMPT => return Err(trouble),
            Some(_) => return Ok(Peek::Busy),
            None => {}
        }
        let (answer, answered) = oneshot::channel();
        line_up(self, Box::new(Peeked { answer }))?;
        answered.await.unwrap_or_else(|_| Err(no_answer()))
    }

    fn peek_now(&self) -> Result<Peek> {
        let mut desk = self.desk();
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

/// A request that needs the latch.
struct Asked<T, W> {
    missing: Missing,
    work: W,
    answer: oneshot::Sender<Result<Option<T>>>,
}

impl<T: Send + 'static, W: FnOnce(Latched<'_>) -> Result<T> + Send + 'static> Turn for Asked<T, W> {
    fn is_wanted(&self) -> bool {
        !self.answer.is_closed()
    }

    fn take(self: Box<Self>, place: &Place, thread: Thread) -> Taken {
        let done = match place.reach(self.missing, thread) {
            Ok(Reached::Contended) => return Taken::Contended(self),
            Ok(Reached::IsSlow) => return Taken::IsSlow(self),
            Ok(Reached::Latched(latched)) => (self.work)(latched).map(Some),
            Ok(Reached::Missing) => Ok(None),
            Err(error) => Err(error),
        };
        let answer = self.answer;
        // Given up meanwhile: what it did is undone by the release that follows.
        Taken::Done(Box::new(move || drop(answer.send(done))))
    }
}

/// A look.
struct Peeked {
    answer: oneshot::Sender<Result<Peek>>,
}

impl Turn for Peeked {
    fn is_wanted(&self) -> bool {
        !self.answer.is_closed()
    }

    fn take(self: Box<Self>, place: &Place, _: Thread) -> Taken {
        let seen = place.peek_now();
        Taken::Done(Box::new(move || drop(self.answer.send(seen))))
    }
}
