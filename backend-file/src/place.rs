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
use crate::door::ClaimKey;
use crate::error::{failed, foreign};
use crate::files::{Files, OpenFilePermit};
use crate::io::IoThreads;
use crate::latch::{PageContent, QueueCache, QueueGuard, StepError, Thread};
use crate::ledger::BootId;
use crate::page::{PipeReader, QUEUE};
use crate::path;
use crate::platform::{identity, since_boot};
use crate::queue::Queue;
use crate::request::{Answer, CloseRequest, LatchedRequest, PeekRequest};
use crate::turn::{Changed, RequestLine, enqueue, serve};

/// For how long a lock's page is taken to be where it was.
const RECHECK_AFTER: Duration = Duration::from_millis(100);
/// How long a request takes at most whose disk answers: a look does not count it as an answer that
/// an older one has had none.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// How often a line is tried that a step on another thread has, before its caller sleeps.
const LINE_TRIES: u32 = 500;
/// How often a file may be replaced while it is opened before that is an error.
const MAX_REPLACEMENTS: usize = 16;

/// What all locks of a connected store have in common.
#[derive(Debug)]
pub(crate) struct StoreContext {
    pub(crate) directory: Directory,
    pub(crate) boot: BootId,
    pub(crate) runtime: Handle,
    pub(crate) threads: IoThreads<Arc<FileLock>>,
    pub(crate) pipe_reader: PipeReader,
    open_files: Arc<AtomicUsize>,
}

impl StoreContext {
    pub(crate) fn new(directory: Directory, boot: BootId, runtime: Handle) -> Result<StoreContext> {
        let pipe_reader =
            PipeReader::new().map_err(|e| failed("read pipes in", directory.path(), e))?;
        let (threads, open_files) = (IoThreads::new(serve), Arc::default());
        Ok(StoreContext { directory, boot, runtime, threads, pipe_reader, open_files })
    }
}

/// One lock.
#[derive(Debug)]
pub(crate) struct FileLock {
    context: Arc<StoreContext>,
    key: Arc<str>,
    hash: u64,
    dir_name: String,
    /// Of its directory.
    path: Arc<Path>,
    /// Of its page, as system calls take it.
    page_path: CString,
    cache: Mutex<QueueCache>,
    line: Mutex<RequestLine>,
    /// A waiter that could hold but does not, and since when that has been seen.
    stalled: Mutex<Option<(u64, Moment)>>,
}

/// What to do when the lock has no directory yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfMissing {
    /// Make it: what comes is an acquisition, and may need tokens too.
    Create,
    Skip,
}

/// How far a thread came at a lock.
enum LatchOutcome<'a> {
    Latched(QueueGuard<'a>),
    /// The lock has no directory.
    NoDirectory,
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

impl FileLock {
    pub(crate) fn new(context: Arc<StoreContext>, key: Arc<str>) -> FileLock {
        let dir_name = path::encode(&key);
        let path = context.directory.path().join(&dir_name);
        FileLock {
            hash: path::hash(&key),
            context,
            key,
            dir_name,
            // Only a path with a NUL in it, which leads nowhere, has no such form.
            page_path: CString::new(path.join(QUEUE).as_os_str().as_bytes()).unwrap_or_default(),
            path: path.into(),
            cache: Mutex::default(),
            line: Mutex::default(),
            stalled: Mutex::default(),
        }
    }

    pub(crate) fn context(&self) -> &StoreContext {
        &self.context
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn claim_key(&self, ticket: u64) -> ClaimKey {
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
    pub(crate) async fn with_queue<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Fn(QueueGuard<'_>) -> Result<T, StepError> + Send + 'static,
    ) -> Result<T> {
        match self.request(IfMissing::Create, work).await? {
            Some(done) => Ok(done),
            None => Err(foreign(&self.path, "it vanishes as soon as it is made")),
        }
    }

    /// As [`latched`](Place::latched); `None` when the lock has no directory.
    pub(crate) async fn with_queue_if_present<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Fn(QueueGuard<'_>) -> Result<T, StepError> + Send + 'static,
    ) -> Result<Option<T>> {
        self.request(IfMissing::Skip, work).await
    }

    async fn request<T: Send + 'static>(
        self: &Arc<Self>,
        if_missing: IfMissing,
        work: impl Fn(QueueGuard<'_>) -> Result<T, StepError> + Send + 'static,
    ) -> Result<Option<T>> {
        self.submit(if_missing, work)?.wait().await
    }

    /// Carries a request out, or puts it in line.
    fn submit<T: Send + 'static>(
        self: &Arc<Self>,
        if_missing: IfMissing,
        work: impl Fn(QueueGuard<'_>) -> Result<T, StepError> + Send + 'static,
    ) -> Result<Answer<Option<T>>> {
        // Nothing overtakes it while this has the line.
        let line = self.line();
        if line.is_at_rest() {
            match self.carry_out(if_missing, Thread::Runtime, &work) {
                Ok(Some(done)) => return Ok(Answer::Now(done)),
                Ok(None) | Err(StepError::NeedsDisk) => {}
                Err(StepError::Failed(error)) => return Err(error),
            }
        }
        let (answer, answered) = oneshot::channel();
        enqueue(self, line, Box::new(LatchedRequest { if_missing, work, answer }))?;
        Ok(Answer::Later(answered))
    }

    /// `None` when another process has the latch.
    pub(crate) fn carry_out<T>(
        &self,
        if_missing: IfMissing,
        thread: Thread,
        work: impl Fn(QueueGuard<'_>) -> Result<T, StepError>,
    ) -> Result<Option<Option<T>>, StepError> {
        match self.latch(if_missing, thread)? {
            LatchOutcome::Latched(guard) => work(guard).map(|done| Some(Some(done))),
            LatchOutcome::NoDirectory => Ok(Some(None)),
            LatchOutcome::Contended => Ok(None),
        }
    }

    /// Closes the lock's files: of a lock that nothing is asked of any more. Completes when that is
    /// done.
    pub(crate) fn leave(self: &Arc<Self>) -> oneshot::Receiver<()> {
        let (answer, left) = oneshot::channel();
        // Without a thread the files close with this lock.
        let _ = enqueue(self, self.line(), Box::new(CloseRequest { _answer: answer }));
        left
    }

    /// Closes the lock's files, on a thread that may wait for the disk.
    pub(crate) fn close(&self) {
        let mut cache = self.cache();
        let Some(files) = cache.files.clone() else { return };
        // A process that has the latch has the page open too: this one is not the last.
        if !files.page().try_latch().unwrap_or(false) {
            cache.files = None;
            return;
        }
        let mut guard = QueueGuard::new(cache, self, Thread::Io);
        guard.note_tokens();
        guard.abandon();
    }

    pub(crate) fn line(&self) -> MutexGuard<'_, RequestLine> {
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
        self.cache().files.as_ref()?.page().changed()
    }

    fn cache(&self) -> MutexGuard<'_, QueueCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loaded queue, and the latch.
    fn latch(&self, if_missing: IfMissing, thread: Thread) -> Result<LatchOutcome<'_>, StepError> {
        for _ in 0..MAX_REPLACEMENTS {
            // Only the request whose turn it is locks this.
            let mut cache = self.cache();
            if cache.files.is_none() {
                if thread == Thread::Runtime {
                    return Err(StepError::NeedsDisk);
                }
                self.open(&mut cache)?;
            }
            let Some(files) = cache.files.clone() else {
                if if_missing == IfMissing::Skip {
                    return Ok(LatchOutcome::NoDirectory);
                }
                self.make()?;
                continue;
            };
            if !files.page().try_latch().map_err(|e| failed("lock", &self.path, e))? {
                return Ok(LatchOutcome::Contended);
            }
            let mut guard = QueueGuard::new(cache, self, thread);
            if !self.is_current(guard.cache(), if_missing)? {
                guard.abandon();
                continue;
            }
            guard.load()?;
            if if_missing == IfMissing::Create {
                guard.prepare_tokens()?;
            }
            return Ok(LatchOutcome::Latched(guard));
        }
        Err(foreign(&self.path, "somebody replaces it again and again").into())
    }

    /// Whether the latched files are still this lock's. Those that were removed or replaced by
    /// hand exclude nobody, since whoever comes later goes by the path. Whoever wants to make an
    /// entry sees at once that they were removed; the rest is looked up now and then, which is
    /// enough for a program that slept while somebody moved the directory.
    fn is_current(&self, cache: &mut QueueCache, if_missing: IfMissing) -> Result<bool> {
        let Some(files) = &cache.files else { return Ok(false) };
        let now = since_boot();
        let long_ago = cache.checked.is_none_or(|then| now > then + RECHECK_AFTER);
        let is_linked = || files.page().is_linked().map_err(|e| failed("look at", &self.path, e));
        if (if_missing == IfMissing::Create || long_ago) && !is_linked()? {
            return Ok(false);
        }
        if if_missing == IfMissing::Skip || !long_ago {
            return Ok(true);
        }
        match identity(&self.page_path) {
            Ok(identity) if identity == files.page().identity() => {
                cache.checked = Some(now);
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
            Some((elapsed, trouble)) if elapsed >= ANSWER_LIMIT => return Err(trouble),
            Some(_) => return Ok(Peek::Busy),
            None => {}
        }
        self.submit_peek()?.wait().await
    }

    fn submit_peek(self: &Arc<Self>) -> Result<Answer<Peek>> {
        let line = self.line();
        if line.is_at_rest() {
            match self.peek_on(Thread::Runtime) {
                Ok(seen) => return Ok(Answer::Now(seen)),
                Err(StepError::NeedsDisk) => {}
                Err(StepError::Failed(error)) => return Err(error),
            }
        }
        let (answer, answered) = oneshot::channel();
        enqueue(self, line, Box::new(PeekRequest { answer }))?;
        Ok(Answer::Later(answered))
    }

    pub(crate) fn peek_on(&self, thread: Thread) -> Result<Peek, StepError> {
        let mut cache = self.cache();
        if cache.files.is_none() {
            if thread == Thread::Runtime {
                return Err(StepError::NeedsDisk);
            }
            self.open(&mut cache)?;
        }
        let here = cache.files.as_ref().map(|files| files.page().identity());
        if here.is_none() || identity(&self.page_path).ok() != here {
            return Ok(Peek::Gone);
        }
        let read = cache.read(self, thread);
        cache.let_go();
        match read {
            Ok(PageContent::Queue) => Ok(Peek::Queue(cache.queue.clone())),
            Ok(PageContent::Empty | PageContent::Damaged) => Ok(Peek::Gone),
            Err(StepError::NeedsDisk) => Err(StepError::NeedsDisk),
            Err(StepError::Failed(_)) => Ok(Peek::Busy),
        }
    }

    /// Opens the lock's files, if there are any.
    fn open(&self, cache: &mut QueueCache) -> Result<()> {
        let StoreContext { directory, open_files, .. } = &*self.context;
        let kept = OpenFilePermit::acquire(open_files);
        let (name, path, key) = (&self.dir_name, &self.path, &self.key);
        cache.files = Files::open(directory, name, path, key, kept, &cache.page)?.map(Arc::new);
        if let Some(files) = &cache.files {
            cache.page = Arc::downgrade(files.page());
        }
        Ok(())
    }

    fn make(&self) -> Result<()> {
        let StoreContext { directory, boot, .. } = &*self.context;
        Files::make(directory, &self.dir_name, &self.path, &self.key, *boot)
    }
}
