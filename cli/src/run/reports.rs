//! What a run writes for people and for monitoring, by a thread of its own for each place.
//!
//! A full pipe, a terminal after Ctrl-S or a frozen disk stops whoever writes there. The only thread of
//! the wrapper renews the lock, listens to signals and ends the command in time: it writes nothing
//! itself from its first request to the store on.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_cli::say;

/// How many reports wait for a place that takes none. Older ones are left out.
const MOST: usize = 10_000;

type Report = Box<dyn FnOnce() + Send>;

/// Reports to one place, written one after the other.
#[derive(Clone, Default)]
pub(crate) struct Reports(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Report>,
    has_thread: bool,
    is_writing: bool,
    left_out: usize,
}

impl Reports {
    /// Has one line written to standard error.
    pub(crate) fn say(&self, message: impl Into<String>) {
        let message = message.into();
        self.put(move || say(&message));
    }

    /// Has `report` carried out after the earlier ones. Never waits.
    pub(crate) fn put(&self, report: impl FnOnce() + Send + 'static) {
        let mut queue = self.0.queue();
        if queue.waiting.len() == MOST {
            queue.waiting.pop_front();
            queue.left_out += 1;
        }
        queue.waiting.push_back(Box::new(report));
        if !queue.has_thread {
            let shared = self.0.clone();
            let thread = std::thread::Builder::new().spawn(move || shared.write());
            queue.has_thread = thread.is_ok();
        }
        if !queue.has_thread {
            // No thread is left for this user. The signals and the exit code remain.
            queue.waiting.clear();
        }
        self.0.changed.notify_all();
    }

    /// Waits until all is written, but no longer than `limit`.
    pub(crate) fn flush_within(&self, limit: Duration) {
        let is_busy =
            |queue: &mut Queue| queue.has_thread && (queue.is_writing || !queue.waiting.is_empty());
        let queue = self.0.queue();
        drop(self.0.changed.wait_timeout_while(queue, limit, is_busy));
    }
}

/// To standard error, for the log: an event is one write.
impl Write for Reports {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let copy = event.to_vec();
        self.put(move || drop(io::stderr().write_all(&copy)));
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread's whole life, which is the process's.
    fn write(&self) {
        let mut queue = self.queue();
        loop {
            let Some(report) = queue.waiting.pop_front() else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left_out = std::mem::take(&mut queue.left_out);
            queue.is_writing = true;
            drop(queue);
            if left_out > 0 {
                say(&format!("{left_out} earlier messages were left out"));
            }
            report();
            queue = self.queue();
            queue.is_writing = false;
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_report_that_is_stuck_keeps_nobody_and_the_latest_are_written() {
        let (reports, (stuck, release)) = (Reports::default(), mpsc::channel::<()>());
        let (written, seen) = mpsc::channel();
        reports.put(move || release.recv().unwrap_or_default());
        for number in 0..2 * MOST {
            let written = written.clone();
            reports.put(move || written.send(number).unwrap());
        }
        reports.flush_within(Duration::from_millis(1));
        drop(stuck);
        reports.flush_within(Duration::from_secs(60));
        let seen: Vec<_> = seen.try_iter().collect();
        // The first one may have been taken before the rest came, or be one of those left out.
        assert!(seen.len() >= MOST - 1 && seen.ends_with(&[2 * MOST - 2, 2 * MOST - 1]));
    }
}
