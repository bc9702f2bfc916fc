//! Writes of a cell whose answer is lost: requests are executed late, or twice, and their clients find
//! out what became of them by the stamps that the record remembers.
//!
//! Each client adds one to a counter, once; another may remove it. A record here remembers fewer stamps than
//! in the library, so that few writes are enough to push one out.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::family::{breaks, holds};

const ONCE: &str = "an addition counts once";
const SUM: &str = "the value is the sum of the additions";
const REPORTED: &str = "what is reported has become of the write";
const NOT_LATER: &str = "a write is not made after it was reported as not made";
const FOUND: &str = "a write without an answer is found";
const UNKNOWN: &str = "a write is reported as unknown";
const SETTLED: &str = "no write is reported as unknown";

/// How a client settles a write without an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// By the stamps that the record remembers, as the library does.
    Stamps,
    /// The server adds whatever is there, and the client asks again, as with INCR.
    ServerAdds,
    /// It computes the change anew, whatever has become of the first.
    Anew,
    /// It sends the same change again, with another stamp.
    AnotherStamp,
    /// It takes the refusal of a repeated request for that of the first one.
    BelievesARefusal,
    /// It takes a stamp for remembered during one write more than it is.
    OneTooMany,
    /// It takes a cell that was removed and written again for the same.
    IgnoresRemovals,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    rule: Rule,
    adding: usize,
    /// Another client removes the cell.
    is_removed: bool,
    /// It is there from the beginning.
    exists: bool,
    remembered: usize,
}

/// How many requests get no answer.
const LOSSES: u8 = 2;

impl Cell {
    fn of(rule: Rule, remembered: usize) -> Cell {
        Cell { rule, adding: 3, is_removed: false, exists: true, remembered }
    }
}

/// The client that writes, and how often it has computed a change.
type Stamp = (usize, u8);

const FIRST: Stamp = (usize::MAX, 0);

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Record {
    version: usize,
    born: Stamp,
    recent: Vec<Stamp>,
    value: u8,
}

/// A change that was computed from what a client has read; `to` is none for a removal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Write {
    stamp: Stamp,
    from: Option<Record>,
    to: Option<Record>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Computed(Write),
    /// It waits for the answer to its request of this number.
    Sent(Write, u8),
    /// The number of requests that got no answer.
    Unsure(Write, u8),
    Done,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    phase: Phase,
    computed: u8,
}

/// A request in flight: it can be executed at any time.
type Request = (Write, u8);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    cell: Option<Record>,
    clients: Vec<Client>,
    requests: BTreeSet<Request>,
    /// How many are left.
    losses: u8,
    /// How often each client's addition was made, and how many since the cell was created.
    counted: Vec<u8>,
    sum: u8,
    made: BTreeSet<Stamp>,
    reported_as_not_made: BTreeSet<Stamp>,
    is_misreported: bool,
    is_made_later: bool,
    is_found: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Read(usize),
    Send(usize),
    /// The client gives the answer up; the request may be executed later.
    Lose(usize),
    /// It reads what is there, to find out.
    Settle(usize),
    Execute(Request),
}

#[derive(Clone, Copy)]
enum Fate {
    Made,
    NotMade,
    SendAgain,
    Unknown,
}

fn stamp(cell: Option<&Record>) -> Option<Stamp> {
    cell.and_then(|record| record.recent.first().copied())
}

impl Cell {
    fn removes(&self, client: usize) -> bool {
        client == self.adding
    }

    fn next(&self, from: Option<&Record>, stamp: Stamp) -> Record {
        let older = from.map_or(&[][..], |from| &from.recent);
        Record {
            version: from.map_or(0, |from| from.version) + 1,
            born: from.map_or(stamp, |from| from.born),
            recent: [&[stamp], older].concat().into_iter().take(self.remembered).collect(),
            value: from.map_or(0, |from| from.value) + 1,
        }
    }

    fn fate(&self, write: &Write, now: Option<&Record>) -> Fate {
        let from = write.from.as_ref();
        match self.rule {
            Rule::ServerAdds => return Fate::SendAgain,
            Rule::Anew => return Fate::NotMade,
            _ => {}
        }
        if stamp(now) == stamp(from) {
            return Fate::SendAgain;
        }
        if write.to.is_none() {
            return match (now, from) {
                (Some(now), Some(from)) if now.born == from.born => Fate::NotMade,
                _ => Fate::Made,
            };
        }
        let Some(now) = now else { return Fate::Unknown };
        if now.recent.contains(&write.stamp) {
            return Fate::Made;
        }
        let is_same = from.is_none_or(|from| from.born == now.born);
        let writes = now.version.saturating_sub(from.map_or(0, |from| from.version));
        let most = self.remembered + usize::from(self.rule == Rule::OneTooMany);
        match (is_same || self.rule == Rule::IgnoresRemovals) && writes <= most {
            true => Fate::NotMade,
            false => Fate::Unknown,
        }
    }
}

impl State {
    fn has_unknown(&self) -> bool {
        self.clients.iter().any(|client| client.phase == Phase::Unknown)
    }

    /// What the server answers.
    fn execute(&mut self, cell: &Cell, write: &Write) -> bool {
        let adds = cell.rule == Rule::ServerAdds;
        if !adds && stamp(self.cell.as_ref()) != stamp(write.from.as_ref()) {
            return write.to.is_some() && stamp(self.cell.as_ref()) == Some(write.stamp);
        }
        self.is_made_later |= self.reported_as_not_made.contains(&write.stamp);
        self.made.insert(write.stamp);
        if write.to.is_none() {
            (self.cell, self.sum) = (None, 0);
            return true;
        }
        self.sum += 1;
        self.counted[write.stamp.0] += 1;
        self.cell = match adds {
            true => Some(cell.next(self.cell.as_ref(), write.stamp)),
            false => write.to.clone(),
        };
        true
    }

    fn settle(&mut self, client: usize, write: Write, repeats: u8, fate: Fate) {
        let was_made = match (&write.to, &write.from) {
            (Some(_), _) => self.made.contains(&write.stamp),
            // By another client as well.
            (None, from) => {
                let born = |record: Option<&Record>| record.map(|record| record.born);
                born(self.cell.as_ref()) != born(from.as_ref())
            }
        };
        self.clients[client].phase = match fate {
            Fate::Made => {
                self.is_misreported |= !was_made;
                self.is_found |= repeats > 0;
                Phase::Done
            }
            Fate::NotMade => {
                self.is_misreported |= was_made;
                self.reported_as_not_made.insert(write.stamp);
                Phase::Idle
            }
            Fate::SendAgain => {
                self.requests.insert((write.clone(), repeats));
                Phase::Sent(write, repeats)
            }
            Fate::Unknown => Phase::Unknown,
        };
    }
}

impl Model for Cell {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let clients = self.adding + usize::from(self.is_removed);
        let there = Record { version: 1, born: FIRST, recent: vec![FIRST], value: 0 };
        vec![State {
            cell: self.exists.then_some(there),
            clients: vec![Client { phase: Phase::Idle, computed: 0 }; clients],
            requests: BTreeSet::new(),
            losses: LOSSES,
            counted: vec![0; clients],
            sum: 0,
            made: BTreeSet::new(),
            reported_as_not_made: BTreeSet::new(),
            is_misreported: false,
            is_made_later: false,
            is_found: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (client, now) in state.clients.iter().enumerate() {
            match &now.phase {
                Phase::Idle => steps.push(Step::Read(client)),
                Phase::Computed(_) => steps.push(Step::Send(client)),
                Phase::Sent(..) if state.losses > 0 => steps.push(Step::Lose(client)),
                Phase::Unsure(..) => steps.push(Step::Settle(client)),
                Phase::Sent(..) | Phase::Done | Phase::Unknown => {}
            }
        }
        steps.extend(state.requests.iter().cloned().map(Step::Execute));
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = last.clone();
        match step {
            Step::Read(client) => {
                let now = &mut next.clients[client];
                let (from, stamp) = (last.cell.clone(), (client, now.computed));
                now.computed += 1;
                now.phase = match (self.removes(client), &from) {
                    (true, None) => Phase::Done,
                    (true, _) => Phase::Computed(Write { stamp, from, to: None }),
                    (false, _) => {
                        let to = Some(self.next(from.as_ref(), stamp));
                        Phase::Computed(Write { stamp, from, to })
                    }
                };
            }
            Step::Send(client) => {
                let Phase::Computed(write) = last.clients[client].phase.clone() else {
                    return None;
                };
                next.requests.insert((write.clone(), 0));
                next.clients[client].phase = Phase::Sent(write, 0);
            }
            Step::Lose(client) => {
                let Phase::Sent(write, repeats) = last.clients[client].phase.clone() else {
                    return None;
                };
                next.losses -= 1;
                next.clients[client].phase = Phase::Unsure(write, repeats + 1);
            }
            Step::Settle(client) => {
                let Phase::Unsure(mut write, repeats) = last.clients[client].phase.clone() else {
                    return None;
                };
                let fate = self.fate(&write, last.cell.as_ref());
                if let (Rule::AnotherStamp, Fate::SendAgain) = (self.rule, fate) {
                    let now = &mut next.clients[client];
                    write.stamp.1 = now.computed;
                    now.computed += 1;
                    write.to = write.to.map(|_| self.next(write.from.as_ref(), write.stamp));
                }
                next.settle(client, write, repeats, fate);
            }
            Step::Execute(request) => {
                next.requests.remove(&request);
                let is_made = next.execute(self, &request.0);
                let (write, repeats) = request;
                let client = write.stamp.0;
                let waits = Phase::Sent(write.clone(), repeats);
                if last.clients[client].phase == waits {
                    let believes = repeats == 0 || self.rule == Rule::BelievesARefusal;
                    match (is_made, believes) {
                        (true, _) => next.settle(client, write, repeats, Fate::Made),
                        (false, true) => next.settle(client, write, repeats, Fate::NotMade),
                        (false, false) => {
                            next.clients[client].phase = Phase::Unsure(write, repeats + 1);
                        }
                    }
                }
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Cell>> {
        vec![
            Property::always(ONCE, |cell: &Cell, state: &State| {
                let adding = state.clients.iter().zip(&state.counted).take(cell.adding);
                adding.clone().all(|(client, counted)| match client.phase {
                    Phase::Done => *counted == 1,
                    _ => *counted <= 1,
                })
            }),
            Property::always(SUM, |_, state: &State| {
                state.cell.as_ref().map_or(0, |record| record.value) == state.sum
            }),
            Property::always(REPORTED, |_, state: &State| !state.is_misreported),
            Property::always(NOT_LATER, |_, state: &State| !state.is_made_later),
            Property::sometimes(FOUND, |_, state: &State| state.is_found),
            match self.remembered < self.adding || self.is_removed {
                true => Property::sometimes(UNKNOWN, |_, state: &State| state.has_unknown()),
                false => Property::always(SETTLED, |_, state: &State| !state.has_unknown()),
            },
        ]
    }
}

#[test]
fn a_write_is_settled_by_the_stamps_that_are_remembered() {
    for remembered in [1, 2, 4] {
        holds(Cell::of(Rule::Stamps, remembered), 2_000);
    }
}

#[test]
fn a_removal_and_a_new_cell_confuse_no_write() {
    let cell = Cell { adding: 2, is_removed: true, ..Cell::of(Rule::Stamps, 2) };
    holds(cell, 2_000);
    breaks(Cell { rule: Rule::IgnoresRemovals, ..cell }, REPORTED);
}

/// Known: the stamp that a first write expects, none, comes back with a removal.
#[test]
fn a_late_first_write_is_made_after_a_removal() {
    let cell = Cell { adding: 2, is_removed: true, exists: false, ..Cell::of(Rule::Stamps, 2) };
    breaks(cell, NOT_LATER);
    breaks(cell, REPORTED);
    holds(Cell { is_removed: false, ..cell }, 500);
}

#[test]
fn other_rules_count_a_change_twice_or_report_what_is_not_so() {
    for (rule, remembered, broken) in [
        (Rule::ServerAdds, 4, ONCE),
        (Rule::Anew, 4, ONCE),
        (Rule::AnotherStamp, 4, ONCE),
        // The refusal of a repeated request says nothing of the first.
        (Rule::BelievesARefusal, 4, REPORTED),
        // After more writes than are remembered it is unknown.
        (Rule::OneTooMany, 1, ONCE),
    ] {
        breaks(Cell::of(rule, remembered), broken);
    }
}
