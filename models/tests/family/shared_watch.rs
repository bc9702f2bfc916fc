//! The watch that all waiters of a client have in common: a task reads the cell and publishes what it has
//! read; a waiter that joins gets what was read after it has joined, and then each change.

use stateright::{Model, Property};

use crate::{breaks, holds};

const FRESH: &str = "a waiter gets nothing older than its own request";
const LAST: &str = "all waiters get the last state";
const TOGETHER: &str = "a reading serves both waiters";

/// When the store begins to watch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Watch {
    /// With the reading, in one step; as in memory, Redis and ZooKeeper.
    WithTheReading,
    /// Before it, as with files.
    Before,
    After,
}

/// Which answers a waiter takes that has joined.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Takes {
    /// The task counts the requests before it reads.
    CountedBefore,
    CountedAfter,
    /// Also one that was published before.
    Any,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Rules {
    watch: Watch,
    takes: Takes,
    /// A notification is kept for a task that is not waiting for one.
    keeps_notifications: bool,
}

const CORE: Rules =
    Rules { watch: Watch::WithTheReading, takes: Takes::CountedBefore, keeps_notifications: true };

/// The task that reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Task {
    Counts,
    /// It is about to do the first of its requests, having counted so many.
    Reads(u8),
    /// The second one, where there are two.
    Half(u8, u8),
    Publishes(u8, u8),
    /// It waits for a notification.
    Waits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Waiter {
    New,
    /// It has joined as this request, when the cell was in this state.
    Joined {
        since: u8,
        at: u8,
        seen: Option<u8>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// How often the cell was written.
    cell: u8,
    is_watched: bool,
    is_notified: bool,
    task: Task,
    requests: u8,
    /// After how many requests what was read, and that.
    latest: (u8, u8),
    waiters: [Waiter; 2],
    is_stale: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Write,
    Task,
    Join(usize),
    Take(usize),
}

const WRITES: u8 = 3;

impl State {
    fn notify(&mut self, rules: &Rules) {
        self.is_notified |= rules.keeps_notifications || self.task == Task::Waits;
    }

    fn have_seen(&self, wanted: u8) -> bool {
        let mut waiters = self.waiters.iter();
        waiters.all(|waiter| matches!(waiter, Waiter::Joined { seen, .. } if *seen == Some(wanted)))
    }

    /// The answer that a waiter has yet to take.
    fn new_for(&self, waiter: Waiter, rules: &Rules) -> Option<u8> {
        let (as_of, read) = self.latest;
        match waiter {
            Waiter::Joined { since, seen, .. } => {
                let counts = as_of >= since || (rules.takes == Takes::Any && as_of > 0);
                (counts && seen != Some(read)).then_some(read)
            }
            Waiter::New => None,
        }
    }
}

impl Model for Rules {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        // The first waiter has begun the watch.
        let first = Waiter::Joined { since: 1, at: 0, seen: None };
        vec![State {
            cell: 0,
            is_watched: false,
            is_notified: false,
            task: Task::Counts,
            requests: 1,
            latest: (0, 0),
            waiters: [first, Waiter::New],
            is_stale: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.cell < WRITES {
            steps.push(Step::Write);
        }
        if state.task != Task::Waits || state.is_notified {
            steps.push(Step::Task);
        }
        for (index, waiter) in state.waiters.iter().enumerate() {
            if *waiter == Waiter::New {
                steps.push(Step::Join(index));
            }
            if state.new_for(*waiter, self).is_some() {
                steps.push(Step::Take(index));
            }
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = last.clone();
        match step {
            Step::Write => {
                next.cell += 1;
                if std::mem::take(&mut next.is_watched) {
                    next.notify(self);
                }
            }
            Step::Task => {
                next.task = match (last.task, self.watch) {
                    (Task::Counts, _) => Task::Reads(last.requests),
                    (Task::Reads(counted), Watch::WithTheReading) => {
                        next.is_watched = true;
                        Task::Publishes(counted, last.cell)
                    }
                    (Task::Reads(counted), Watch::Before) => {
                        next.is_watched = true;
                        Task::Half(counted, 0)
                    }
                    (Task::Reads(counted), Watch::After) => Task::Half(counted, last.cell),
                    (Task::Half(counted, _), Watch::Before) => Task::Publishes(counted, last.cell),
                    (Task::Half(counted, read), _) => {
                        next.is_watched = true;
                        Task::Publishes(counted, read)
                    }
                    (Task::Publishes(counted, read), _) => {
                        let is_late = self.takes == Takes::CountedAfter;
                        next.latest = (if is_late { last.requests } else { counted }, read);
                        Task::Waits
                    }
                    (Task::Waits, _) => {
                        next.is_notified = false;
                        Task::Counts
                    }
                };
            }
            Step::Join(index) => {
                next.requests += 1;
                let since = next.requests;
                next.waiters[index] = Waiter::Joined { since, at: last.cell, seen: None };
                next.notify(self);
            }
            Step::Take(index) => {
                let read = last.new_for(last.waiters[index], self)?;
                let Waiter::Joined { at, seen, .. } = &mut next.waiters[index] else { return None };
                next.is_stale |= read < *at;
                *seen = Some(read);
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Rules>> {
        vec![
            Property::always(FRESH, |_, state: &State| !state.is_stale),
            // Every run ends, since each step is one of a few.
            Property::always(LAST, |rules: &Rules, state: &State| {
                let mut steps = Vec::new();
                rules.actions(state, &mut steps);
                !steps.is_empty() || state.have_seen(state.cell)
            }),
            Property::sometimes(TOGETHER, |_, state: &State| state.cell == 1 && state.have_seen(1)),
        ]
    }
}

#[test]
fn no_change_is_missed_by_a_watch_that_begins_with_the_reading_or_before() {
    holds(CORE, 200);
    holds(Rules { watch: Watch::Before, ..CORE }, 200);
}

#[test]
fn a_watch_that_begins_after_the_reading_misses_a_change() {
    breaks(Rules { watch: Watch::After, ..CORE }, LAST);
}

#[test]
fn a_waiter_that_joins_must_not_take_an_older_answer() {
    breaks(Rules { takes: Takes::Any, ..CORE }, FRESH);
    breaks(Rules { takes: Takes::CountedAfter, ..CORE }, FRESH);
}

#[test]
fn a_notification_is_kept_for_a_task_that_reads() {
    breaks(Rules { keeps_notifications: false, ..CORE }, LAST);
}
