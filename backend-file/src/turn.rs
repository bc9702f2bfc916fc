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

use crate::error::{disk_hangs, latch_is_held, latch_is_sought, machine_is_busy};
use crate::io;
use crate::page::QUEUE;
use crate::place::Place;
use crate::platform::waits_for_disk;

/// How many turns a line takes before another lock's line has its own.
const TURNS: usize = 16;
/// How soon a contended latch is tried again, at first and at the latest. It is free within
/// microseconds, unless its holder was interrupted; and where thousands of processes are at it, their
/// tries must not take the processors from the one that is in it.
const SOON: Duration = Duration::from_micros(20);
const AT_LATEST: Duration = Duration::from_millis(160);
/// From which length on a line is searched for requests that were given up.
const LONG: usize = 64;

/// One request.
pub(crate) trait Turn: Send {
    /// Whether its answer is still waited for.
    fn is_wanted(&self) -> bool;

    /// Carries it out on a thread of the store's and tells its caller, or gives it back: another
    /// process has the latch.
    fn take(self: Box<Self>, place: &Place) -> Result<(), Box<dyn Turn>>;
}

/// The requests that wait for their turn at one lock.
#[derive(Default)]
pub(crate) struct Line {
    turns: VecDeque<Box<dyn Turn>>,
    /// A thread goes through them, or is going to.
    under_way: Option<UnderWay>,
    /// The first could not have its turn before.
    given_back: bool,
    long: usize,
}

#[derive(Clone, Copy)]
struct UnderWay {
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

impl UnderWay {
    fn now() -> UnderWay {
        UnderWay { since: Instant::now(), contended: 0, met: None, others_pass: false }
    }
}

impl Line {
    /// Whether no request is in it, nor under way.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.under_way.is_none()
    }

    /// Joins the end. `true` when a thread must be sent.
    fn push(&mut self, turn: Box<dyn Turn>) -> bool {
        self.turns.push_back(turn);
        if self.turns.len() >= self.long.max(LONG) {
            self.turns.retain(|turn| turn.is_wanted());
            self.long = self.turns.len() * 2;
        }
        let at_rest = self.under_way.is_none();
        self.under_way.get_or_insert_with(UnderWay::now);
        at_rest
    }

    /// The next turn; the line is at rest when there is none.
    fn next(&mut self) -> Option<Box<dyn Turn>> {
        let given_up = self.turns.iter().take_while(|turn| !turn.is_wanted()).count();
        drop(self.turns.drain(..given_up));
        let next = self.turns.pop_front();
        let again = std::mem::take(&mut self.given_back) && given_up == 0;
        match (&next, again) {
            (None, _) => self.under_way = None,
            (Some(_), true) => {}
            (Some(_), false) => self.under_way = Some(UnderWay::now()),
        }
        next
    }

    /// Takes back the turn that [`next`](Line::next) gave.
    fn give_back(&mut self, turn: Box<dyn Turn>) {
        self.turns.push_front(turn);
        self.given_back = true;
    }

    /// When to try the latch again, at which another process is. The queue was `changed` then.
    fn pause(&mut self, changed: Option<Changed>) -> Duration {
        let under_way = self.under_way.get_or_insert_with(UnderWay::now);
        under_way.contended += 1;
        under_way.others_pass |= under_way.met.is_some() && under_way.met != changed;
        under_way.met = under_way.met.or(changed);
        SOON.saturating_mul(1 << under_way.contended.min(16)).min(AT_LATEST)
    }

    /// For how long the turn that is under way has been, and why, as far as can be seen.
    pub(crate) fn trouble(&self, place: &Place) -> Option<(Duration, Error)> {
        let under_way = self.under_way?;
        let elapsed = under_way.since.elapsed();
        let error = match under_way.contended {
            0 if waits_for_disk(io::NAME) => disk_hangs(place.path(), elapsed),
            0 => machine_is_busy(place.path(), elapsed),
            _ if under_way.others_pass => latch_is_sought(&place.path().join(QUEUE), elapsed),
            _ => latch_is_held(&place.path().join(QUEUE), elapsed),
        };
        Some((elapsed, error))
    }
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("turns", &self.turns.len()).finish_non_exhaustive()
    }
}

/// Has `turn` its turn at `place`, whose line this is, on a thread of the store's.
pub(crate) fn line_up(
    place: &Arc<Place>,
    mut line: MutexGuard<'_, Line>,
    turn: Box<dyn Turn>,
) -> fencelock_core::Result<()> {
    let send = line.push(turn);
    drop(line);
    match send {
        true => place.ground().threads.submit(place.clone()).inspect_err(|_| give_up(place)),
        false => Ok(()),
    }
}

/// For a thread of the store's: what is in line at `place`.
// What a thread takes from its queue is its own.
#[allow(clippy::needless_pass_by_value)]
pub(crate) fn go_through(place: Arc<Place>) {
    for _ in 0..TURNS {
        let next = place.line().next();
        let Some(turn) = next else { return };
        // A panic ends this turn, whose answer is then missing, and not the line.
        let taken = catch_unwind(AssertUnwindSafe(|| turn.take(&place)));
        if let Ok(Err(turn)) = taken {
            return step_aside(&place, turn);
        }
    }
    if place.ground().threads.submit(place.clone()).is_err() {
        give_up(&place);
    }
}

/// Lets the line go on with `turn` later.
fn step_aside(place: &Arc<Place>, turn: Box<dyn Turn>) {
    let changed = place.changed();
    let pause = {
        let mut line = place.line();
        line.give_back(turn);
        line.pause(changed)
    };
    if place.ground().threads.submit_in(pause, place.clone()).is_err() {
        give_up(place);
    }
}

/// No thread can be had: each request ends without an answer.
fn give_up(place: &Place) {
    let line = std::mem::take(&mut *place.line());
    drop(line);
}
