//! The threads that do a store's file I/O.
//!
//! A disk can hang: frozen for a snapshot, or dead. The system call that meets this blocks its
//! thread, and neither a signal nor a deadline ends it. A thread of a runtime must therefore make
//! none of them, or the deadlines of every task there hang with the disk. Nor may a thread of
//! tokio's blocking pool, since a runtime waits for those when it is dropped. The threads here
//! belong to the store, and nothing waits for them: each request has its deadline in the task that
//! made it, and ends with it whatever its thread does.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fencelock_core::Result;
use tokio::sync::oneshot;

use crate::error::{no_answer, no_thread};

/// For how long a thread without work looks for more before it sleeps, and a caller for its answer
/// before it yields. To wake a thread costs several times as much as the work that it is woken
/// for; in a loop that asks again and again both find what they look for within this time.
const SPIN: Duration = Duration::from_micros(25);
/// How many looks there are between two readings of the clock.
const LOOKS: u32 = 32;
/// How many answers wait for each other at most. To wake a runtime's thread costs about as much as
/// what it is woken for; behind a queue, answers that come together wake it once.
const TOGETHER: usize = 16;
/// After how many opportunities in vain, at most, one spins again: 2 to this power.
const RARELY: u32 = 8;

/// How many threads there are, and how they wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crew {
    pub(crate) name: &'static str,
    pub(crate) most: usize,
    /// Whether one that has no work looks for more before it sleeps.
    pub(crate) spins: bool,
    /// How long one without work stays.
    pub(crate) stays: Duration,
}

/// Threads that take work from one queue; they are started when there is work and end when there
/// is none for long, or when this is dropped.
pub(crate) struct Workers<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    run: fn(T),
    crew: Crew,
    queue: Mutex<Queue<T>>,
    /// Something to do, or the end.
    changed: Condvar,
    /// Answers that were not told yet, while there is more to do.
    untold: Mutex<Vec<Tell>>,
    /// How much is ready: what those look at who do not sleep.
    ready: AtomicUsize,
    /// How many callers wait for an answer.
    waiting: AtomicUsize,
    callers: Spinning,
    threads: Spinning,
}

/// Gives a caller its answer.
type Tell = Box<dyn FnOnce() + Send>;

struct Queue<T> {
    ready: VecDeque<T>,
    /// What is to be done from some time on.
    later: BTreeMap<(Instant, u64), T>,
    last_number: u64,
    threads: usize,
    /// How many threads sleep, and how many look for work.
    asleep: usize,
    looking: usize,
    closed: bool,
}

impl<T: Send + 'static> Workers<T> {
    /// Threads that will `run` what is submitted. None is started yet.
    pub(crate) fn new(crew: Crew, run: fn(T)) -> Workers<T> {
        let queue = Queue {
            ready: VecDeque::new(),
            later: BTreeMap::new(),
            last_number: 0,
            threads: 0,
            asleep: 0,
            looking: 0,
            closed: false,
        };
        let shared = Shared {
            run,
            crew,
            queue: Mutex::new(queue),
            changed: Condvar::new(),
            untold: Mutex::default(),
            ready: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            callers: Spinning::default(),
            threads: Spinning::default(),
        };
        Workers { shared: Arc::new(shared) }
    }

    /// Has `work` done as soon as a thread is free.
    ///
    /// # Errors
    /// When there is no thread and none can be started; then it is not done.
    pub(crate) fn submit(&self, work: T) -> Result<()> {
        let mut queue = self.shared.queue();
        let free = queue.asleep + queue.looking;
        if queue.ready.len() >= free && queue.threads < self.shared.crew.most {
            self.start(&mut queue)?;
        }
        queue.ready.push_back(work);
        self.shared.ready.store(queue.ready.len(), Ordering::Release);
        let wake = queue.looking == 0 && queue.asleep > 0;
        drop(queue);
        if wake {
            self.shared.changed.notify_one();
        }
        Ok(())
    }

    /// As [`submit`](Workers::submit), in `pause`.
    pub(crate) fn submit_in(&self, pause: Duration, work: T) -> Result<()> {
        let mut queue = self.shared.queue();
        if queue.threads == 0 {
            self.start(&mut queue)?;
        }
        queue.last_number += 1;
        let at = (Instant::now() + pause, queue.last_number);
        queue.later.insert(at, work);
        drop(queue);
        // One that sleeps may have to wake earlier than it was going to.
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Tells a caller its answer: soon, but not before others that are about to be ready.
    pub(crate) fn tell(&self, tell: Tell) {
        let untold = {
            let mut untold = self.shared.untold();
            untold.push(tell);
            untold.len()
        };
        if untold >= TOGETHER || self.shared.ready.load(Ordering::Acquire) == 0 {
            self.shared.tell_all();
        }
    }

    /// The answer to what was just submitted; `None` when it was given up.
    ///
    /// A caller that is the only one spins for it first, for as long as most answers take: the
    /// way to another thread and back costs more than what its thread could do meanwhile. Among
    /// others it yields, since its thread has their tasks to go on with.
    pub(crate) async fn answer<A>(&self, mut answer: oneshot::Receiver<A>) -> Option<A> {
        let waiting = Waiting::among(&self.shared.waiting);
        let mut found = None;
        if waiting.alone {
            self.shared.callers.spin(|| {
                found = answer.try_recv().ok();
                found.is_some()
            });
        }
        match found {
            None => answer.await.ok(),
            found => found,
        }
    }

    fn start(&self, queue: &mut Queue<T>) -> Result<()> {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name(self.shared.crew.name.to_owned());
        match thread.spawn(move || shared.work()) {
            Ok(_) => queue.threads += 1,
            // Those that there are will get to it.
            Err(_) if queue.threads > 0 => {}
            Err(error) => return Err(no_thread(error)),
        }
        Ok(())
    }
}

impl<T> Drop for Workers<T> {
    fn drop(&mut self) {
        self.shared.queue().closed = true;
        self.shared.changed.notify_all();
    }
}

impl<T> fmt::Debug for Workers<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("crew", &self.shared.crew).finish_non_exhaustive()
    }
}

impl<T> Shared<T> {
    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn untold(&self) -> MutexGuard<'_, Vec<Tell>> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_all(&self) {
        let all = std::mem::take(&mut *self.untold());
        all.into_iter().for_each(|tell| tell());
    }

    /// The whole life of a thread.
    fn work(&self) {
        while let Some(work) = self.next() {
            (self.run)(work);
        }
    }

    fn next(&self) -> Option<T> {
        if self.ready.load(Ordering::Acquire) == 0 {
            // What came last may have had no answer.
            self.tell_all();
        }
        let mut queue = self.queue();
        if let Some(work) = self.take(&mut queue) {
            return Some(work);
        }
        let spins = self.crew.spins && queue.later.is_empty() && !queue.closed;
        if spins {
            queue.looking += 1;
            drop(queue);
            self.threads.spin(|| self.ready.load(Ordering::Acquire) > 0);
            queue = self.queue();
            queue.looking -= 1;
        }
        let idle_since = Instant::now();
        loop {
            if let Some(work) = self.take(&mut queue) {
                return Some(work);
            }
            let due = queue.later.keys().next().map(|(at, _)| *at);
            let ends = due.unwrap_or(idle_since + self.crew.stays);
            let left = ends.saturating_duration_since(Instant::now());
            if queue.closed || due.is_none() && left.is_zero() {
                queue.threads -= 1;
                return None;
            }
            queue.asleep += 1;
            let slept = self.changed.wait_timeout(queue, left);
            queue = slept.unwrap_or_else(PoisonError::into_inner).0;
            queue.asleep -= 1;
        }
    }

    fn take(&self, queue: &mut Queue<T>) -> Option<T> {
        while let Some(due) = queue.later.first_entry() {
            if due.key().0 > Instant::now() {
                break;
            }
            queue.ready.push_back(due.remove());
        }
        let work = queue.ready.pop_front();
        self.ready.store(queue.ready.len(), Ordering::Release);
        work
    }
}

/// One of the callers that wait for an answer.
struct Waiting<'a> {
    count: &'a AtomicUsize,
    alone: bool,
}

impl Waiting<'_> {
    fn among(count: &AtomicUsize) -> Waiting<'_> {
        let alone = count.fetch_add(1, Ordering::AcqRel) == 0;
        Waiting { count, alone }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
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
    let thread = std::thread::Builder::new().name("fencelock-file".to_owned());
    thread.spawn(work).map_err(no_thread)?;
    answer.await.map_err(|_| no_answer())
}

/// How often spinning has been in vain. On processors that others keep busy it is, since the thread
/// that is waited for does not run meanwhile: there spinning only costs, and becomes rare.
#[derive(Debug, Default)]
struct Spinning {
    /// In a row, without a find.
    misses: AtomicU32,
    /// How many opportunities are left out.
    skip: AtomicU32,
}

impl Spinning {
    /// Calls `found` again and again until it is, for a short time at most.
    // Two threads that count at the same time may lose a count, which does not matter.
    fn spin(&self, mut found: impl FnMut() -> bool) {
        if found() {
            return;
        }
        // On the processor where this thread runs, the other one may be next.
        std::thread::yield_now();
        if found() || !*SEVERAL_PROCESSORS {
            return;
        }
        let skip = self.skip.load(Ordering::Relaxed);
        if skip > 0 {
            return self.skip.store(skip - 1, Ordering::Relaxed);
        }
        let start = Instant::now();
        while start.elapsed() < SPIN {
            for _ in 0..LOOKS {
                if found() {
                    return self.misses.store(0, Ordering::Relaxed);
                }
                std::hint::spin_loop();
            }
        }
        let misses = self.misses.load(Ordering::Relaxed);
        self.skip.store(1 << misses, Ordering::Relaxed);
        self.misses.store(RARELY.min(misses + 1), Ordering::Relaxed);
    }
}

/// With one processor, whoever spins keeps what it waits for from running.
static SEVERAL_PROCESSORS: LazyLock<bool> =
    LazyLock::new(|| std::thread::available_parallelism().is_ok_and(|count| count.get() > 1));
