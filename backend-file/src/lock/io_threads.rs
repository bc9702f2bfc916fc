//! The threads that wait for the disk.
//!
//! A disk can hang: frozen for a snapshot, or dead. A system call on it then blocks its thread, and
//! neither a signal nor a deadline ends it. A runtime's thread must therefore not make such calls,
//! or the deadlines of all its tasks hang with the disk. Nor may a thread of tokio's blocking pool,
//! since a runtime waits for that pool when it is dropped. The threads here belong to the store,
//! and nothing waits for them: each request has its deadline in the task that made it, and ends
//! with it whatever its thread does.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, PoisonError};
use std::time::{Duration, Instant};

use fencelock_core::Result;
use fencelock_core::sync::Mutex;
use tokio::sync::oneshot;

use crate::error::{no_answer, no_thread};

/// The name of the threads.
pub(crate) const THREAD_NAME: &str = "fencelock-file";
/// The most threads of a store. Each may hang with the disk.
const MAX_THREADS: usize = 16;
/// How long a thread without work is kept.
const IDLE_LIMIT: Duration = Duration::from_secs(1);

/// Work for one of the threads.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Threads that take work from one backlog. They are started when there is work, and end when there
/// is none for a while or when this is dropped.
#[derive(Default)]
pub(crate) struct IoThreads {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    backlog: Mutex<Backlog>,
    /// Signals new work, or the end.
    changed: Condvar,
}

#[derive(Default)]
struct Backlog {
    ready: VecDeque<Job>,
    /// Work that is due at a later time.
    later: BTreeMap<(Instant, u64), Job>,
    last_number: u64,
    threads: usize,
    asleep: usize,
    closed: bool,
}

impl IoThreads {
    /// Runs `work` as soon as a thread is free.
    ///
    /// # Errors
    /// When there is no thread and none can be started; `work` is then dropped.
    pub(crate) fn submit(&self, work: Job) -> Result<()> {
        let mut backlog = self.shared.backlog.lock();
        if backlog.ready.len() >= backlog.asleep && backlog.threads < MAX_THREADS {
            self.start(&mut backlog)?;
        }
        backlog.ready.push_back(work);
        drop(backlog);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Like [`submit`](IoThreads::submit), after `pause`.
    pub(crate) fn submit_in(&self, pause: Duration, work: Job) -> Result<()> {
        let mut backlog = self.shared.backlog.lock();
        // The submitting thread may be the only one that does not wait for the disk, and may have
        // other work.
        if backlog.asleep == 0 && backlog.threads < MAX_THREADS {
            self.start(&mut backlog)?;
        }
        backlog.last_number += 1;
        let at = (Instant::now() + pause, backlog.last_number);
        backlog.later.insert(at, work);
        drop(backlog);
        // A sleeping thread may have to wake earlier than planned.
        self.shared.changed.notify_one();
        Ok(())
    }

    fn start(&self, backlog: &mut Backlog) -> Result<()> {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name(THREAD_NAME.to_owned());
        match thread.spawn(move || shared.work()) {
            Ok(_) => backlog.threads += 1,
            // The existing threads will take the work.
            Err(_) if backlog.threads > 0 => {}
            Err(error) => return Err(no_thread(error)),
        }
        Ok(())
    }
}

impl Drop for IoThreads {
    fn drop(&mut self) {
        self.shared.backlog.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

impl fmt::Debug for IoThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoThreads").finish_non_exhaustive()
    }
}

impl Shared {
    /// The main loop of a thread.
    fn work(&self) {
        while let Some(work) = self.next() {
            work();
        }
    }

    fn next(&self) -> Option<Job> {
        let idle_since = Instant::now();
        let mut backlog = self.backlog.lock();
        loop {
            let now = Instant::now();
            while let Some(due) = backlog.later.first_entry().filter(|due| due.key().0 <= now) {
                let work = due.remove();
                backlog.ready.push_back(work);
            }
            if let Some(work) = backlog.ready.pop_front() {
                return Some(work);
            }
            let due = backlog.later.keys().next().map(|(at, _)| *at);
            let ends = due.unwrap_or(idle_since + IDLE_LIMIT);
            let left = ends.saturating_duration_since(now);
            if backlog.closed || due.is_none() && left.is_zero() {
                backlog.threads -= 1;
                return None;
            }
            backlog.asleep += 1;
            let slept = self.changed.wait_timeout(backlog, left);
            backlog = slept.unwrap_or_else(PoisonError::into_inner).0;
            backlog.asleep -= 1;
        }
    }
}

/// Runs `work` on a thread of its own, for work that is done once.
///
/// # Errors
/// When no thread can be started.
pub(crate) async fn run_detached<A: Send + 'static>(
    work: impl FnOnce() -> A + Send + 'static,
) -> Result<A> {
    let (sender, answer) = oneshot::channel();
    // The caller may have given up.
    let work = move || drop(sender.send(work()));
    let thread = std::thread::Builder::new().name(THREAD_NAME.to_owned());
    thread.spawn(work).map_err(no_thread)?;
    answer.await.map_err(|_| no_answer())
}
