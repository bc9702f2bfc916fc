//! A cell in ZooKeeper: which nodes make a write that is executed late find what it was computed from, or
//! nothing. Each transaction is one step; all interleave.
//!
//! A stamp that is gone never comes back; the versions of nodes do.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::family::{breaks, holds};

const FROM: &str = "a write replaces what it was computed from";
const ONE: &str = "a cell has one content";
const EXPLAINED: &str = "a refused write finds another content";
const LATE: &str = "a write is refused since its cell was removed and written again";

/// Where a cell is, and what a write compares.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    /// A node with the content, and one below it that is named by the stamp, which each write replaces in the
    /// same transaction; as in the store.
    NodeOfTheStamp,
    /// A node with the content; a write expects its version.
    Version,
}

/// The client that writes, and which of its writes it is.
type Stamp = (usize, u8);

/// How many changes a client makes.
const MOST: u8 = 2;
const CLIENTS: usize = 3;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Nodes {
    /// The upper node: its data and its version.
    upper: Option<(Stamp, u8)>,
    lower: BTreeSet<Stamp>,
}

/// What was read, and what is to be there in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Write {
    from: Option<Stamp>,
    version: Option<u8>,
    to: Option<Stamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Sent(Write),
    Refused(Write),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    nodes: Nodes,
    clients: [(Phase, u8); CLIENTS],
    is_from_another: bool,
    is_unexplained: bool,
    /// The stamps of the contents that were there when the cell was removed.
    removed: BTreeSet<Stamp>,
    is_late: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// Reads the cell, and sends a write or a removal.
    Write(usize),
    Remove(usize),
    /// The server executes the request, however late.
    Execute(usize),
    Explain(usize),
}

impl Nodes {
    fn content(&self) -> Option<Stamp> {
        self.upper.map(|(content, _)| content)
    }

    fn version(&self) -> Option<u8> {
        self.upper.map(|(_, version)| version)
    }

    fn set_data(&mut self, to: Stamp) {
        let version = self.version().map_or(0, |version| version + 1);
        self.upper = Some((to, version));
    }

    /// One transaction, as a whole or not at all.
    fn execute(&mut self, layout: Layout, write: Write) -> bool {
        let mut next = self.clone();
        let is_possible = match layout {
            Layout::NodeOfTheStamp => next.replace(write) && next.put(write),
            Layout::Version => self.version() == write.version && next.put(write),
        };
        if is_possible {
            *self = next;
        }
        is_possible
    }

    fn put(&mut self, write: Write) -> bool {
        match write.to {
            Some(to) if write.from.is_some() || self.upper.is_none() => self.set_data(to),
            Some(_) => return false,
            None => self.upper = None,
        }
        true
    }

    /// Replaces the lower node.
    fn replace(&mut self, write: Write) -> bool {
        let is_there = write.from.is_none_or(|from| self.lower.remove(&from));
        self.lower.extend(write.to);
        is_there
    }
}

impl Model for Layout {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            nodes: Nodes::default(),
            clients: [(Phase::Idle, 0); CLIENTS],
            is_from_another: false,
            is_unexplained: false,
            removed: BTreeSet::new(),
            is_late: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (client, (phase, count)) in state.clients.iter().enumerate() {
            match phase {
                Phase::Idle if *count < MOST => {
                    steps.push(Step::Write(client));
                    if state.nodes.content().is_some() {
                        steps.push(Step::Remove(client));
                    }
                }
                Phase::Idle => {}
                Phase::Sent(_) => steps.push(Step::Execute(client)),
                Phase::Refused(_) => steps.push(Step::Explain(client)),
            }
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = last.clone();
        match step {
            Step::Write(client) | Step::Remove(client) => {
                let (phase, count) = &mut next.clients[client];
                let to = matches!(step, Step::Write(_)).then_some((client, *count));
                let (from, version) = (last.nodes.content(), last.nodes.version());
                *phase = Phase::Sent(Write { from, version, to });
                *count += 1;
            }
            Step::Execute(client) => {
                let Phase::Sent(write) = last.clients[client].0 else { return None };
                let there = last.nodes.content();
                next.clients[client].0 = if next.nodes.execute(*self, write) {
                    next.is_from_another |= there != write.from;
                    next.removed.extend(write.from.filter(|_| write.to.is_none()));
                    Phase::Idle
                } else {
                    let removed = write.from.is_some_and(|it| last.removed.contains(&it));
                    next.is_late |= removed && there.is_some();
                    Phase::Refused(write)
                };
            }
            Step::Explain(client) => {
                let Phase::Refused(write) = last.clients[client].0 else { return None };
                let there = last.nodes.content();
                next.is_unexplained |= there.is_some() && there == write.from;
                next.clients[client].0 = Phase::Idle;
            }
        }
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Layout>> {
        vec![
            Property::always(FROM, |_, state: &State| !state.is_from_another),
            Property::always(ONE, |layout: &Layout, state: &State| {
                let content = state.nodes.content();
                *layout != Layout::NodeOfTheStamp || state.nodes.lower.iter().copied().eq(content)
            }),
            Property::always(EXPLAINED, |_, state: &State| !state.is_unexplained),
            Property::sometimes(LATE, |_, state: &State| state.is_late),
        ]
    }
}

#[test]
fn a_node_of_the_stamp_refuses_what_is_late() {
    holds(Layout::NodeOfTheStamp, 5_000);
}

#[test]
fn a_version_lets_a_late_write_in() {
    // It comes back after a removal.
    breaks(Layout::Version, FROM);
}
