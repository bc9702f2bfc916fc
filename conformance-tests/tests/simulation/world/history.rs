//! What happened in one run, and the checks that need more than one client's view: exclusion by
//! claimed validity, tokens, order, losses reported in time.
//!
//! A claim is `[acquire ok, min(release invoked, lost, last valid_until]`. Every note of an event
//! checks all guards that are alive, so an overlap is seen when it begins.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::sync::Mutex;
use fencelock_core::{Clock, FencingToken, Guard, Mode, Moment, TokioClock};

use crate::world::gate::Gate;

/// A loss may be reported this much after the validity's end: tokio's timers count milliseconds.
const REPORTED_WITHIN: Duration = Duration::from_millis(3);

pub(crate) struct History {
    pub(crate) time: Arc<TokioClock>,
    calm: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    trace: Vec<Event>,
    failure: Option<String>,
    holds: Vec<Held>,
    last_exclusive: BTreeMap<usize, u64>,
    tokens: BTreeSet<(usize, u64)>,
    /// Grants that the store broke its promise for, as it says it may, and by when the holder
    /// must have been reported.
    excused: BTreeMap<(usize, u64), Option<Moment>>,
    /// In which order claims arrived, by the token they were granted.
    arrivals: BTreeMap<(usize, u64), u64>,
    last_arrival: u64,
    granted_up_to: BTreeMap<(usize, u8), u64>,
    freed: BTreeMap<usize, Moment>,
    tally: Tally,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    at: u64,
    process: u32,
    what: &'static str,
    a: u64,
    b: u64,
}

/// How often the interesting things happened: a simulation in which they do not proves nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) granted: u64,
    /// Of those, turns of which a store with a server does not know.
    pub(crate) handed_on: u64,
    pub(crate) lost: u64,
    pub(crate) cancelled: u64,
    pub(crate) unreachable: u64,
    /// Calls in which a backend failed.
    pub(crate) faults: u64,
    /// Holds that a process still had, or had lost, when it was continued.
    pub(crate) outlived: u64,
    pub(crate) outlasted: u64,
    pub(crate) events: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Tally) {
        self.granted += other.granted;
        self.handed_on += other.handed_on;
        self.lost += other.lost;
        self.cancelled += other.cancelled;
        self.unreachable += other.unreachable;
        self.faults += other.faults;
        self.outlived += other.outlived;
        self.outlasted += other.outlasted;
        self.events += other.events;
    }
}

struct Held {
    lock: usize,
    mode: Mode,
    token: u64,
    process: u32,
    gate: Arc<Gate>,
    guard: Weak<Guard>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Believed,
    /// Its holder is about to release it, whose first poll ends the validity.
    Leaves,
    /// The validity was seen to be over: for good.
    Over,
}

/// A grant as its client saw it.
pub(crate) struct Granted<'a> {
    pub(crate) process: u32,
    pub(crate) lock: usize,
    pub(crate) called: Moment,
    pub(crate) gate: &'a Arc<Gate>,
    pub(crate) guard: &'a Arc<Guard>,
    pub(crate) handed_on: bool,
    /// Its place among the arrivals, if the client knows it.
    pub(crate) arrival: Option<u64>,
}

impl History {
    pub(crate) fn new(calm: bool) -> History {
        History { time: Arc::default(), calm, state: Mutex::default() }
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.calm
    }

    pub(crate) fn now(&self) -> Moment {
        self.time.now()
    }

    /// Writes down one event, and checks everything that is held.
    pub(crate) fn note(&self, process: u32, what: &'static str, a: u64, b: u64) {
        let now = self.now();
        let mut state = self.state.lock();
        state.trace.push(Event { at: now.as_nanos(), process, what, a, b });
        state.check(now);
    }

    pub(crate) fn fail(&self, message: String) {
        self.state.lock().fail(message);
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.state.lock().failure.clone()
    }

    pub(crate) fn tally(&self) -> Tally {
        let state = self.state.lock();
        Tally { events: state.trace.len() as u64, ..state.tally }
    }

    pub(crate) fn count(&self, count: impl FnOnce(&mut Tally)) {
        count(&mut self.state.lock().tally);
    }

    /// A claim took its place in a queue.
    pub(crate) fn arrives(&self) -> u64 {
        let mut state = self.state.lock();
        state.last_arrival += 1;
        state.last_arrival
    }

    /// The store granted `token` to the claim that arrived as number `arrival`.
    pub(crate) fn gave(&self, lock: usize, token: u64, arrival: u64) {
        self.state.lock().arrivals.insert((lock, token), arrival);
    }

    /// A place in a queue, or a hold, has ended.
    pub(crate) fn freed(&self, lock: usize) {
        let now = self.now();
        self.state.lock().freed.insert(lock, now);
    }

    /// The store took a grant with `tokens` away, by order or by accident; in a calm the holder hears of it
    /// within `reported_within`.
    pub(crate) fn excuse(&self, lock: usize, tokens: Range<u64>, reported_within: Duration) {
        let by = self.calm.then(|| self.now() + reported_within);
        self.state.lock().excused.extend(tokens.map(|token| ((lock, token), by)));
    }

    pub(crate) fn is_excused(&self, lock: usize, token: FencingToken) -> bool {
        self.state.lock().excused.contains_key(&(lock, token.get()))
    }

    pub(crate) fn granted(&self, granted: &Granted<'_>) {
        let (lock, mode) = (granted.lock, granted.guard.mode());
        let token = granted.guard.fencing_token().get();
        let now = self.now();
        {
            let mut state = self.state.lock();
            // A forgotten hold may have ended just now.
            state.check(now);
            state.tally.granted += 1;
            let is_known = state.arrivals.contains_key(&(lock, token));
            state.tally.handed_on += u64::from(granted.handed_on && !is_known);
            let excused = state.excused.contains_key(&(lock, token));
            if !state.tokens.insert((lock, token)) && !excused {
                state.fail(format!("token {token} of lock {lock} was granted twice"));
            }
            if mode == Mode::Exclusive {
                let last = state.last_exclusive.insert(lock, token).unwrap_or(0);
                if token <= last && !excused {
                    state.fail(format!("token {token} of lock {lock} was granted after {last}"));
                }
            }
            if self.calm {
                let turn = state.take_turn(lock, mode, token, granted.arrival);
                // The loss of a hold that is gone already may be reported after the next grant.
                if let Err(failure) = turn
                    && !excused
                {
                    state.fail(failure);
                }
                let since = state.freed.get(&lock).map_or(granted.called, |at| *at);
                let waited = now.duration_since(since.max(granted.called));
                if waited > Duration::from_millis(100) {
                    state
                        .fail(format!("lock {lock} was free for {waited:?} before {token} had it"));
                }
            }
            state.holds.push(Held {
                lock,
                mode,
                token,
                process: granted.process,
                gate: granted.gate.clone(),
                guard: Arc::downgrade(granted.guard),
                stage: Stage::Believed,
            });
        }
        self.note(granted.process, "granted", lock as u64, token);
    }

    /// The holder of `token` gives it up, or knows it lost.
    pub(crate) fn ended(&self, process: u32, what: &'static str, lock: usize, token: FencingToken) {
        let (token, now) = (token.get(), self.now());
        {
            let mut state = self.state.lock();
            state.check(now);
            let held = |held: &&mut Held| held.lock == lock && held.token == token;
            if let Some(held) = state.holds.iter_mut().find(held) {
                held.stage = Stage::Leaves;
            }
        }
        self.freed(lock);
        self.note(process, what, lock as u64, token);
    }

    /// Which tokens of `lock` clients believe to hold now.
    pub(crate) fn believed(&self) -> Vec<(usize, u64)> {
        let now = self.now();
        let state = self.state.lock();
        let believed = state.holds.iter().filter(|held| held.believes(now));
        believed.map(|held| (held.lock, held.token)).collect()
    }

    /// The store's side of `lock`, of which `keeps` is the truth: what a client believes to hold,
    /// the store must not have given away.
    pub(crate) fn compare(&self, lock: usize, keeps: impl Fn(u64) -> bool) {
        let now = self.now();
        let mut state = self.state.lock();
        let believed = |held: &&Held| held.lock == lock && held.believes(now);
        let excused = |held: &Held| state.excused.contains_key(&(held.lock, held.token));
        let mut given_away = state.holds.iter().filter(believed);
        let given_away = given_away.find(|held| !excused(held) && !keeps(held.token));
        if let Some((token, until)) = given_away.map(|held| (held.token, held.until())) {
            let believed = format!("{token} of lock {lock} is believed until {until:?}");
            state.fail(format!("{believed}, the store does not have it"));
        }
    }

    /// `process` has just been continued, and is asked for all that it holds before any of its
    /// timers has fired.
    pub(crate) fn first_check(&self, process: u32) {
        let now = self.now();
        let holds: Vec<Arc<Guard>> = {
            let mut state = self.state.lock();
            state.check(now);
            let own = state.holds.iter().filter(|held| held.process == process);
            own.filter_map(|held| held.guard.upgrade()).collect()
        };
        for guard in holds {
            let (until, held) = (guard.valid_until(), guard.is_held());
            if held != (now < until) {
                let token = guard.fencing_token();
                self.fail(format!("{token} held: {held} at {now:?}, valid until {until:?}"));
            }
            self.count(|tally| if held { tally.outlived += 1 } else { tally.outlasted += 1 });
        }
    }

    /// A number that two runs share only if the same happened at the same times.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |value: u64| {
            hash = (hash ^ value).wrapping_mul(0x0000_0100_0000_01b3);
            hash ^= hash >> 29;
        };
        for event in &self.state.lock().trace {
            add(event.at);
            add(u64::from(event.process));
            event.what.bytes().for_each(|byte| add(u64::from(byte)));
            add(event.a);
            add(event.b);
        }
        hash
    }

    /// The last `n` events, for people.
    pub(crate) fn tail(&self, n: usize) -> String {
        let state = self.state.lock();
        let origin = state.trace.first().map_or(0, |event| event.at);
        let from = state.trace.len().saturating_sub(n);
        let line = |event: &Event| {
            let Event { at, process, what, a, b } = event;
            format!("{:>7} ms  p{process} {what} {a} {b}\n", (at - origin) / 1_000_000)
        };
        state.trace[from..].iter().map(line).collect()
    }
}

impl Held {
    fn until(&self) -> Moment {
        self.guard.upgrade().map_or(Moment::from_nanos(0), |guard| guard.valid_until())
    }

    fn believes(&self, now: Moment) -> bool {
        self.stage == Stage::Believed && self.until() > now
    }
}

impl State {
    fn fail(&mut self, message: String) {
        // What comes after the first failure is its consequence.
        self.failure.get_or_insert(message);
    }

    fn check(&mut self, now: Moment) {
        let mut believed: Vec<(usize, Mode, u64)> = Vec::new();
        // Each was granted together with those with smaller tokens: a later one may have another limit.
        self.holds.sort_unstable_by_key(|held| held.token);
        let mut failure = None;
        for held in &mut self.holds {
            let until = held.until();
            // A writer may have become a reader.
            held.mode = held.guard.upgrade().map_or(held.mode, |guard| guard.mode());
            let key = (held.lock, held.token);
            let excused = self.excused.get(&key);
            if until <= now {
                if held.stage == Stage::Believed {
                    self.freed.insert(held.lock, now);
                }
                held.stage = Stage::Over;
                let due = (until + REPORTED_WITHIN).max(held.gate.opened_at() + REPORTED_WITHIN);
                if until.as_nanos() > 0 && due < now && !held.gate.is_shut() {
                    failure =
                        Some(format!("{key:?} ended at {until:?}, the loss was not reported"));
                }
            } else if held.stage == Stage::Leaves {
                // Nothing to be said until then.
            } else if held.stage == Stage::Over {
                failure = Some(format!("{key:?} was revived until {until:?}"));
            } else if let Some(reported_by) = excused {
                if reported_by.is_some_and(|reported_by| now > reported_by) {
                    failure = Some(format!("{key:?} was taken away, its holder is not notified"));
                }
            } else {
                let together = believed.iter().filter(|(lock, ..)| *lock == held.lock);
                if !held.mode.is_compatible_with(together.map(|(_, mode, _)| *mode)) {
                    let others: Vec<_> =
                        believed.iter().map(|(l, m, t)| (l, m.as_str(), t)).collect();
                    failure = Some(format!(
                        "{key:?} in {} mode of process {} is held together with {others:?}",
                        held.mode, held.process
                    ));
                }
                believed.push((held.lock, held.mode, held.token));
            }
        }
        self.holds.retain(|held| held.guard.strong_count() > 0);
        if let Some(failure) = failure {
            self.fail(failure);
        }
    }

    /// First come, first served, among those that conflict.
    fn take_turn(
        &mut self,
        lock: usize,
        mode: Mode,
        token: u64,
        arrival: Option<u64>,
    ) -> Result<(), String> {
        let Some(arrival) = arrival.or_else(|| self.arrivals.get(&(lock, token)).copied()) else {
            return Ok(());
        };
        let class = |mode| match mode {
            Mode::Exclusive => 0,
            Mode::Shared => 1,
            Mode::Permits(_) => 2,
        };
        let own = class(mode);
        let conflicting = (0..3u8).filter(|other| own == 0 || *other != own);
        let before = conflicting.filter_map(|other| self.granted_up_to.get(&(lock, other)));
        let last = before.copied().max().unwrap_or(0);
        let served = self.granted_up_to.entry((lock, own)).or_default();
        *served = arrival.max(*served);
        if last > arrival {
            return Err(format!("lock {lock}: arrival {arrival} had it after arrival {last}"));
        }
        Ok(())
    }
}
