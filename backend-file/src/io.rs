//! The threads that wait for the disk.
//!
//! A disk can hang: frozen for a snapshot, or dead. The system call that meets this blocks its
//! thread, and neither a signal nor a deadline ends it. A thread of a runtime must therefore make
//! none of them, or the deadlines of every task there hang with the disk. Nor may a thread of
//! tokio's blocking pool, since a runtime waits for those when it is dropped. The threads here
//! belong to the store, and nothing waits for them: each request has its deadline in the task that
//! made it, and ends with it whatever its thread does.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fencelock_core::Result;
use tokio::sync::oneshot;

use crate::error::{no_answer, no_thread};

/// Of the threads.
pub(crate) const THREAD_NAME: &str = "fencelock-file";
/// How many threads a store has at most. Each may hang with the disk.
const MAX_THREADS: usize = 16;
/// How long a thread without work stays.
const IDLE_LIMIT: Duration = Duration::from_secs(1);

/// Threads that take work from one queue; they are started when there is work and end when there
/// is none for long, or when this is dropped.
pub(crate) struct IoThreads<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    run: fn(T),
    backlog: Mutex<Backlog<T>>,
    /// Something to do, or the end.
    changed: Condvar,
}

struct Backlog<T> {
    ready: VecDeque<T>,
    /// What is to be done from some time on.
    later: BTreeMap<(Instant, u64), T>,
    last_number: u64,
    threads: usize,
    asleep: usize,
    closed: bool,
}

impl<T: Send + 'static> IoThreads<T> {
    /// Threads that will `run` what is submitted. None is started yet.
    pub(crate) fn new(run: fn(T)) -> IoThreads<T> {
        let backlog = Backlog {
            ready: VecDeque::new(),
            later: BTreeMap::new(),
            last_number: 0,
            threads: 0,
            asleep: 0,
            closed: false,
        };
        let shared = Shared { run, backlog: Mutex::new(backlog), changed: Condvar::new() };
        IoThreads { shared: Arc::new(shared) }
    }

    /// Has `work` done as soon as a thread is free.
    ///
    /// # Errors
    /// When there is no thread and none can be started; then it is not done.
    pub(crate) fn submit(&self, work: T) -> Result<()> {
        let mut backlog = self.shared.backlog();
        if backlog.ready.len() >= backlog.asleep && backlog.threads < MAX_THREADS {
            self.start(&mut backlog)?;
        }
        backlog.ready.push_back(work);
        drop(backlog);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// As [`submit`](Workers::submit), in `pause`.
    pub(crate) fn submit_in(&self, pause: Duration, work: T) -> Result<()> {
        let mut backlog = self.shared.backlog();
        // The one that submits this may be the only one that does not wait for the disk, and have
        // work of its own.
        if backlog.asleep == 0 && backlog.threads < MAX_THREADS {
            self.start(&mut backlog)?;
        }
        backlog.last_number += 1;
        let at = (Instant::now() + pause, backlog.last_number);
        backlog.later.insert(at, work);
        drop(backlog);
        // One that sleeps may have to wake earlier than it was going to.
        self.shared.changed.notify_one();
        Ok(())
    }

    fn start(&self, backlog: &mut Backlog<T>) -> Result<()> {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name(THREAD_NAME.to_owned());
        match thread.spawn(move || shared.work()) {
            Ok(_) => backlog.threads += 1,
            // Those that there are will get to it.
            Err(_) if backlog.threads > 0 => {}
            Err(error) => return Err(no_thread(error)),
        }
        Ok(())
    }
}

impl<T> Drop for IoThreads<T> {
    fn drop(&mut self) {
        self.shared.backlog().closed = true;
        self.shared.changed.notify_all();
    }
}

impl<T> fmt::Debug for IoThreads<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").finish_non_exhaustive()
    }
}

impl<T> Shared<T> {
    fn backlog(&self) -> MutexGuard<'_, Backlog<T>> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The whole life of a thread.
    fn work(&self) {
        while let Some(work) = self.next() {
            (self.run)(work);
        }
    }

    fn next(&self) -> Option<T> {
        let idle_since = Instant::now();
        let mut backlog = self.backlog();
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

/// Does `work` on a thread of its own, for what is done once.
///
/// # Errors
/// When no thread can be started.
pub(crate) async fn detached<A: Send + 'static>(
    work: impl FnOnce() -> A + Send + 'static,
) -> Result<A> {
    let (tell, answer) = oneshot::channel();
    // Whoever asked may not want the answer any more.
    let work = move || drop(tell.send(work()));
    let thread = std::thread::Builder::new().name(THREAD_NAME.to_owned());
    thread.spawn(work).map_err(no_thread)?;
    answer.await.map_err(|_| no_answer())
}
