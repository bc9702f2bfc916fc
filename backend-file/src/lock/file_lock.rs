//! One lock, whose requests from this process run one at a time, in the order in which they were
//! made.
//!
//! A request that finds everything ready runs at once, on its caller's thread: its system calls
//! wait for nothing. A request that has to open files, reserve tokens on the disk or wait for
//! another process that has the latch joins the lock's line
//! ([`request_line`](crate::lock::request_line)), and so do all requests after it. One I/O thread
//! of the store at a time runs them: the disk may hang, and the process that has the latch may be
//! stopped. A line that meets another process in the latch is retried later, so that it keeps no
//! thread from other locks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::{Error, Moment, Result};
use tokio::sync::oneshot;

use crate::error::no_answer;
use crate::lock::io_threads::{IoThreads, Job};
use crate::lock::queue_cache::{StepError, Thread};
use crate::lock::queue_guard::QueueGuard;
use crate::lock::request_line::{Request, RequestLine};
use crate::lock::requests::{CloseRequest, WorkRequest};
use crate::lock::shared_queue::{IfMissing, Peek, SharedQueue};
use crate::storage::lock_files::LockDir;

/// A request that has waited for longer counts as one that the disk does not answer, so that a
/// waiter check does not take it for a busy lock.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// How often a line that a step on another thread has is tried before the caller sleeps.
const LINE_TRIES: u32 = 500;
/// How many requests of one line run before the line of another lock has its turn.
const REQUESTS_PER_RUN: usize = 16;

/// One lock.
#[derive(Debug)]
pub(crate) struct FileLock {
    queue: SharedQueue,
    line: Mutex<RequestLine>,
    threads: Arc<IoThreads>,
    /// The ticket of a waiter that may hold but does not, and when that was first seen.
    stalled: fencelock_core::sync::Mutex<Option<(u64, Moment)>>,
}

impl FileLock {
    pub(crate) fn new(dir: LockDir, threads: Arc<IoThreads>) -> FileLock {
        let (queue, line, stalled) = (SharedQueue::new(dir), Mutex::default(), Default::default());
        FileLock { queue, line, threads, stalled }
    }

    pub(crate) fn dir(&self) -> &LockDir {
        &self.queue.dir
    }

    /// Runs `work` with exclusive access to the queue, until `work` drops its guard. Creates the
    /// lock's directory. Work that stops because it needs the disk runs again from its beginning.
    ///
    /// Dropped at any await, `work` may still run, once, before any later request for this lock.
    pub(crate) async fn with_queue<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Fn(QueueGuard<'_>) -> Result<T, StepError> + Send + 'static,
    ) -> Result<T> {
        self.run(move |queue, thread| {
            // There is one: this creates the directory.
            let guard = queue.latch(IfMissing::Create, thread)?.ok_or_else(no_answer)?;
            work(guard)
        })
        .await
    }

    /// Like [`with_queue`](FileLock::with_queue); `None` when the lock has no directory.
    pub(crate) async fn with_queue_if_present<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Fn(QueueGuard<'_>) -> Result<T, StepError> + Send + 'static,
    ) -> Result<Option<T>> {
        self.run(move |queue, thread| queue.latch(IfMissing::Skip, thread)?.map(&work).transpose())
            .await
    }

    /// Reads the queue without the latch, for a waiter check.
    pub(crate) async fn peek(self: &Arc<Self>) -> Result<Peek> {
        self.dir().context.same_process()?;
        let in_progress = self.line().in_progress;
        match in_progress {
            // That another request has no answer says nothing about the disk at first.
            Some(request) if request.since.elapsed() < ANSWER_LIMIT => return Ok(Peek::Busy),
            Some(request) => return Err(request.unanswered(&self.dir().path)),
            None => {}
        }
        self.run(SharedQueue::peek).await
    }

    /// Why the current request has had no answer, probably.
    pub(crate) fn unanswered(&self) -> Option<Error> {
        let in_progress = self.line().in_progress;
        in_progress.map(|request| request.unanswered(&self.dir().path))
    }

    /// Records that the waiter `ticket` may hold but does not; returns it once that has been so
    /// for `limit`.
    pub(crate) fn stalled_for(
        &self,
        ticket: Option<u64>,
        now: Moment,
        limit: Duration,
    ) -> Option<u64> {
        let mut stalled = self.stalled.lock();
        match (*stalled, ticket) {
            (Some((known, since)), Some(ticket)) if known == ticket => {
                (now.duration_since(since) >= limit).then_some(ticket)
            }
            _ => {
                *stalled = ticket.map(|ticket| (ticket, now));
                None
            }
        }
    }

    /// Closes the files of a lock that gets no more requests. Completes when they are closed.
    pub(crate) fn request_close(self: &Arc<Self>) -> oneshot::Receiver<()> {
        let (answer, closed) = oneshot::channel();
        // Without a thread, the files close when this lock is dropped.
        let _ = self.enqueue(self.line(), Box::new(CloseRequest { _answer: answer }));
        closed
    }

    /// Runs `work` at once, or adds it to the line.
    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Fn(&SharedQueue, Thread) -> Result<T, StepError> + Send + 'static,
    ) -> Result<T> {
        self.dir().context.same_process()?;
        let answered = {
            // No other request can overtake this one while it has the line's mutex.
            let line = self.line();
            if line.is_idle() {
                match work(&self.queue, Thread::Runtime) {
                    Err(StepError::NeedsDisk | StepError::Contended) => {}
                    done => return done.map_err(StepError::into_error),
                }
            }
            let (answer, answered) = oneshot::channel();
            self.enqueue(line, Box::new(WorkRequest { work, answer }))?;
            answered
        };
        answered.await.unwrap_or_else(|_| Err(no_answer()))
    }

    fn line(&self) -> MutexGuard<'_, RequestLine> {
        // A step on another thread of this process ends within microseconds. To sleep and be
        // woken takes longer, for both threads.
        for _ in 0..LINE_TRIES {
            if let Ok(line) = self.line.try_lock() {
                return line;
            }
            std::hint::spin_loop();
        }
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds `request` to the line, for an I/O thread.
    fn enqueue(
        self: &Arc<Self>,
        mut line: MutexGuard<'_, RequestLine>,
        request: Box<dyn Request>,
    ) -> Result<()> {
        let needs_thread = line.push(request);
        drop(line);
        match needs_thread {
            true => self.threads.submit(self.job()).inspect_err(|_| self.drop_requests()),
            false => Ok(()),
        }
    }

    /// Has the first request of the line run again later.
    fn retry_later(self: &Arc<Self>, request: Box<dyn Request>) {
        let changed = self.queue.changed();
        let pause = {
            let mut line = self.line();
            line.put_back(request);
            line.pause(changed)
        };
        if self.threads.submit_in(pause, self.job()).is_err() {
            self.drop_requests();
        }
    }

    /// Ends each request without an answer, because no thread can be started.
    fn drop_requests(&self) {
        let line = std::mem::take(&mut *self.line());
        drop(line);
    }

    fn job(self: &Arc<Self>) -> Job {
        let lock = self.clone();
        Box::new(move || lock.run_line())
    }

    /// Runs the requests in the line, on an I/O thread.
    fn run_line(self: Arc<Self>) {
        for _ in 0..REQUESTS_PER_RUN {
            let next = self.line().next();
            let Some(request) = next else { return };
            // A panic ends this request, which then has no answer, and not the line.
            let ran = catch_unwind(AssertUnwindSafe(|| request.run(&self.queue)));
            if let Ok(Err(request)) = ran {
                return self.retry_later(request);
            }
        }
        if self.threads.submit(self.job()).is_err() {
            self.drop_requests();
        }
    }
}
