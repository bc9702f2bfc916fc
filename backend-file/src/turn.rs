//! The requests of this process for one lock take turns at its files, in the order in which they
//! were made.
//!
//! An flock does not exclude those who share a descriptor, and a release must not overtake the
//! attempt that it undoes: one that was given up while the disk hung may still be carried out.
//! So each lock has a line of requests. While none is in it, a request is carried out at once, on
//! its caller's thread ([`place`](crate::place)). One that needs the disk or meets another process
//! in the latch joins the line, and so do those that come after it; one thread of the store's at a
//! time goes through them. A line that meets another process in the latch steps aside and tries
//! again later, since that process may be stopped: it keeps no thread from the other locks.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use fencelock_core::Error;

use crate::error::{disk_hangs, latch_is_contended, latch_is_held, machine_is_busy};
use crate::io;
use crate::page::QUEUE;
use crate::place::FileLock;
use crate::platform::waits_for_disk;

/// How many turns a line takes before another lock's line has its own.
const REQUESTS_PER_RUN: usize = 16;
/// How soon a contended latch is tried again, at first and at the latest. It is free within
/// microseconds, unless its holder was interrupted; and where thousands of processes are at it, their
/// tries must not take the processors from the one that is in it.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(160);
/// From which length on a line is searched for requests that were given up.
const PURGE_AT: usize = 64;

/// One request.
pub(crate) trait Request: Send {
    /// Whether its answer is still waited for.
    fn is_awaited(&self) -> bool;

    /// Carries it out on a thread of the store's and tells its caller, or gives it back: another
    /// process has the latch.
    fn take(self: Box<Self>, lock: &FileLock) -> Result<(), Box<dyn Request>>;
}

/// The requests that wait for their turn at one lock.
#[derive(Default)]
pub(crate) struct RequestLine {
    requests: VecDeque<Box<dyn Request>>,
    /// A thread goes through them, or is going to.
    in_progress: Option<InProgress>,
    /// The first could not have its turn before.
    was_put_back: bool,
    purge_at: usize,
}

#[derive(Clone, Copy)]
struct InProgress {
    /// When the turn that is under way, or the next, could begin.
    since: Instant,
    /// How often it met another process in the latch.
    contended: u32,
    /// When the queue had changed last as it first met one.
    met: Option<Changed>,
    /// The queue has changed since then: those in the latch come and go.
    others_pass: bool,
}

/// When the queue changed last, in s and ns.
pub(crate) type Changed = (i64, i64);

impl InProgress {
    fn now() -> InProgress {
        InProgress { since: Instant::now(), contended: 0, met: None, others_pass: false }
    }
}

impl RequestLine {
    /// Whether no request is in it, nor under way.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.in_progress.is_none()
    }

    /// Joins the end. `true` when a thread must be sent.
    fn push(&mut self, request: Box<dyn Request>) -> bool {
        self.requests.push_back(request);
        if self.requests.len() >= self.purge_at.max(PURGE_AT) {
            self.requests.retain(|request| request.is_awaited());
            self.purge_at = self.requests.len() * 2;
        }
        let at_rest = self.in_progress.is_none();
        self.in_progress.get_or_insert_with(InProgress::now);
        at_rest
    }

    /// The next turn; the line is at rest when there is none.
    fn next(&mut self) -> Option<Box<dyn Request>> {
        let given_up = self.requests.iter().take_while(|request| !request.is_awaited()).count();
        drop(self.requests.drain(..given_up));
        let next = self.requests.pop_front();
        let again = std::mem::take(&mut self.was_put_back) && given_up == 0;
        match (&next, again) {
            (None, _) => self.in_progress = None,
            (Some(_), true) => {}
            (Some(_), false) => self.in_progress = Some(InProgress::now()),
        }
        next
    }

    /// Takes back the turn that [`next`](Line::next) gave.
    fn put_back(&mut self, request: Box<dyn Request>) {
        self.requests.push_front(request);
        self.was_put_back = true;
    }

    /// When to try the latch again, at which another process is. The queue was `changed` then.
    fn pause(&mut self, changed: Option<Changed>) -> Duration {
        let in_progress = self.in_progress.get_or_insert_with(InProgress::now);
        in_progress.contended += 1;
        in_progress.others_pass |= in_progress.met.is_some() && in_progress.met != changed;
        in_progress.met = in_progress.met.or(changed);
        FIRST_PAUSE.saturating_mul(1 << in_progress.contended.min(16)).min(LONGEST_PAUSE)
    }

    /// For how long the turn that is under way has been, and why, as far as can be seen.
    pub(crate) fn trouble(&self, lock: &FileLock) -> Option<(Duration, Error)> {
        let in_progress = self.in_progress?;
        let elapsed = in_progress.since.elapsed();
        let error = match in_progress.contended {
            0 if waits_for_disk(io::THREAD_NAME) => disk_hangs(lock.path(), elapsed),
            0 => machine_is_busy(lock.path(), elapsed),
            _ if in_progress.others_pass => latch_is_contended(&lock.path().join(QUEUE), elapsed),
            _ => latch_is_held(&lock.path().join(QUEUE), elapsed),
        };
        Some((elapsed, error))
    }
}

impl std::fmt::Debug for RequestLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("turns", &self.requests.len()).finish_non_exhaustive()
    }
}

/// Has `turn` its turn at `place`, whose line this is, on a thread of the store's.
pub(crate) fn enqueue(
    lock: &Arc<FileLock>,
    mut line: MutexGuard<'_, RequestLine>,
    request: Box<dyn Request>,
) -> fencelock_core::Result<()> {
    let send = line.push(request);
    drop(line);
    match send {
        true => lock.context().threads.submit(lock.clone()).inspect_err(|_| fail_all(lock)),
        false => Ok(()),
    }
}

/// For a thread of the store's: what is in line at `place`.
// What a thread takes from its queue is its own.
#[allow(clippy::needless_pass_by_value)]
pub(crate) fn serve(lock: Arc<FileLock>) {
    for _ in 0..REQUESTS_PER_RUN {
        let next = lock.line().next();
        let Some(request) = next else { return };
        // A panic ends this turn, whose answer is then missing, and not the line.
        let taken = catch_unwind(AssertUnwindSafe(|| request.take(&lock)));
        if let Ok(Err(request)) = taken {
            return retry_later(&lock, request);
        }
    }
    if lock.context().threads.submit(lock.clone()).is_err() {
        fail_all(&lock);
    }
}

/// Lets the line go on with `turn` later.
fn retry_later(lock: &Arc<FileLock>, request: Box<dyn Request>) {
    let changed = lock.changed();
    let pause = {
        let mut line = lock.line();
        line.put_back(request);
        line.pause(changed)
    };
    if lock.context().threads.submit_in(pause, lock.clone()).is_err() {
        fail_all(lock);
    }
}

/// No thread can be had: each request ends without an answer.
fn fail_all(lock: &FileLock) {
    let line = std::mem::take(&mut *lock.line());
    drop(line);
}
