//! The line of requests of this process for one lock.
//!
//! An flock does not exclude threads that share a descriptor, and a release must not overtake the
//! attempt that it undoes: an attempt that was given up while the disk hung may still run. So the
//! requests for a lock run in the order in which they were made.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use fencelock_core::Error;

use crate::error::{disk_hangs, latch_is_contended, latch_is_held, machine_is_busy};
use crate::lock::io_threads::THREAD_NAME;
use crate::lock::shared_queue::SharedQueue;
use crate::platform::{stopped_holder, waits_for_disk};
use crate::storage::page::{Changed, QUEUE};

/// The first and the longest pause before a contended latch is tried again. It is free within
/// microseconds, unless its holder was preempted; and where thousands of processes want it, their
/// tries must not take the processors from the one that has it.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(160);
/// The length from which on a line is searched for requests whose callers have given up.
const PURGE_AT: usize = 64;

/// One request for a lock.
pub(crate) trait Request: Send {
    /// Whether a caller still waits for the answer.
    fn is_awaited(&self) -> bool;

    /// Runs on an I/O thread and sends the answer; returns itself when another process has the
    /// latch.
    fn run(self: Box<Self>, queue: &SharedQueue) -> Result<(), Box<dyn Request>>;
}

/// The requests that wait for an I/O thread, oldest first.
#[derive(Default)]
pub(crate) struct RequestLine {
    requests: VecDeque<Box<dyn Request>>,
    /// Set while a thread runs the requests or is going to.
    pub(crate) in_progress: Option<InProgress>,
    /// The first request found the latch taken.
    was_put_back: bool,
    purge_at: usize,
}

/// How a line's first request goes: copied out of its line, to be explained without keeping the others from it.
#[derive(Clone, Copy)]
pub(crate) struct InProgress {
    /// When the request that runs, or the next one, could begin.
    pub(crate) since: Instant,
    /// How often it found the latch taken.
    contended: u32,
    /// The queue's last change when it first found the latch taken.
    first_seen: Option<Changed>,
    /// Whether the queue has changed since then: other processes get the latch and release it.
    others_pass: bool,
}

impl InProgress {
    fn now() -> InProgress {
        InProgress { since: Instant::now(), contended: 0, first_seen: None, others_pass: false }
    }

    /// Why the request has had no answer, probably. The lock's directory is at `path`.
    pub(crate) fn unanswered(self, path: &Path) -> Error {
        let elapsed = self.since.elapsed();
        match self.contended {
            0 if waits_for_disk(THREAD_NAME) => disk_hangs(path, elapsed),
            0 => machine_is_busy(path, elapsed),
            _ if self.others_pass => latch_is_contended(&path.join(QUEUE), elapsed),
            _ => {
                let page = path.join(QUEUE);
                latch_is_held(&page, elapsed, stopped_holder(&page))
            }
        }
    }
}

impl RequestLine {
    /// Whether no request waits or runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_progress.is_none()
    }

    /// Adds a request at the end. Returns whether a thread must be sent.
    pub(crate) fn push(&mut self, request: Box<dyn Request>) -> bool {
        self.requests.push_back(request);
        if self.requests.len() >= self.purge_at.max(PURGE_AT) {
            self.requests.retain(|request| request.is_awaited());
            self.purge_at = self.requests.len() * 2;
        }
        let was_idle = self.in_progress.is_none();
        self.in_progress.get_or_insert_with(InProgress::now);
        was_idle
    }

    /// Takes the next request; without one, the line is idle.
    pub(crate) fn next(&mut self) -> Option<Box<dyn Request>> {
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

    /// Puts back a request that [`next`](RequestLine::next) returned.
    pub(crate) fn put_back(&mut self, request: Box<dyn Request>) {
        self.requests.push_front(request);
        self.was_put_back = true;
    }

    /// The pause before the next try of a latch that another process has. `changed` is the queue's
    /// last change.
    pub(crate) fn pause(&mut self, changed: Option<Changed>) -> Duration {
        let in_progress = self.in_progress.get_or_insert_with(InProgress::now);
        in_progress.contended += 1;
        in_progress.others_pass |=
            in_progress.first_seen.is_some() && in_progress.first_seen != changed;
        in_progress.first_seen = in_progress.first_seen.or(changed);
        pause_after(in_progress.contended)
    }
}

/// The pause after a latch was found taken for the `contended`th time.
pub(crate) fn pause_after(contended: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << contended.min(16)).min(LONGEST_PAUSE)
}

impl std::fmt::Debug for RequestLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let requests = self.requests.len();
        f.debug_struct("RequestLine").field("requests", &requests).finish_non_exhaustive()
    }
}
