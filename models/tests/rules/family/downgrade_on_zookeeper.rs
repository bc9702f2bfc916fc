//! The downgrade in a ZooKeeper queue, with a writer, a reader and a writer that wait. Each request is
//! one step; all interleave.
//!
//! A waiter that found only one node in its way takes the deletion of that node for its turn, without
//! another list. This is right only if no node is ever made whose number is already queued.

use stateright::{Model, Property};

use crate::family::{breaks, holds};

const ALONE: &str = "a writer has no company";
const GRANTED: &str = "every waiter is granted the lock";
const JOINED: &str = "a reader joins the downgraded holder";

/// How the writer becomes a reader.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// Its node's data says so, as in the store.
    Mark,
    /// A reader's node of the same number replaces the writer's in one transaction.
    SameNumber,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Queue {
    way: Way,
    /// Whether the deletion of the only node in the way is the turn.
    trusts_deletions: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Kind {
    Writer,
    Reader,
}

/// The holder, or a waiter's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Owner {
    Holder,
    Waiter(usize),
}

/// A node's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Name {
    number: u8,
    kind: Kind,
    owner: Owner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    name: Name,
    is_marked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Writes,
    Reads,
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Waiter {
    New,
    Listing,
    /// It has the list, and is about to watch the node in its way.
    Listed(Vec<Node>),
    Waiting {
        watched: Name,
        is_alone: bool,
        event: Option<Event>,
    },
    Holds,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    Deleted,
    Changed,
}

const KINDS: [Kind; 3] = [Kind::Writer, Kind::Reader, Kind::Writer];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    nodes: Vec<Node>,
    next_number: u8,
    holder: Phase,
    waiters: [Waiter; 3],
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Downgrade,
    ReleaseHolder,
    /// The next request of a waiter.
    Go(usize),
}

impl State {
    fn delete(&mut self, name: Name) {
        self.nodes.retain(|node| node.name != name);
        self.notify(name, Event::Deleted);
    }

    fn notify(&mut self, name: Name, what: Event) {
        for waiter in &mut self.waiters {
            if let Waiter::Waiting { watched, event: event @ None, .. } = waiter
                && *watched == name
            {
                *event = Some(what);
            }
        }
    }

    fn of_holder(&self) -> Option<Name> {
        self.nodes.iter().map(|node| node.name).find(|name| name.owner == Owner::Holder)
    }

    /// What a waiter does that has a list.
    fn look(&self, index: usize, listed: &[Node]) -> Waiter {
        let owner = Owner::Waiter(index);
        let own = listed.iter().map(|node| node.name).find(|name| name.owner == owner).unwrap();
        let is_reader = own.kind == Kind::Reader;
        let mut marked = Vec::new();
        loop {
            let in_way: Vec<Name> = listed
                .iter()
                .map(|node| node.name)
                .filter(|name| name.number < own.number)
                .filter(|name| !is_reader || (name.kind == Kind::Writer && !marked.contains(name)))
                .collect();
            let Some(nearest) = in_way.iter().max() else { return Waiter::Holds };
            let Some(node) = self.nodes.iter().find(|node| node.name == *nearest) else {
                return Waiter::Listing;
            };
            // It reads the data with the watch.
            if is_reader && node.is_marked {
                marked.push(*nearest);
                continue;
            }
            let is_alone = in_way.len() == 1;
            return Waiter::Waiting { watched: *nearest, is_alone, event: None };
        }
    }

    fn is_alone(&self) -> bool {
        let holder = match self.holder {
            Phase::Writes => Some(Kind::Writer),
            Phase::Reads => Some(Kind::Reader),
            Phase::Gone => None,
        };
        let waiters = self.waiters.iter().zip(KINDS);
        let granted = waiters.filter(|(waiter, _)| **waiter == Waiter::Holds).map(|(_, kind)| kind);
        let all: Vec<Kind> = holder.into_iter().chain(granted).collect();
        all.len() <= 1 || !all.contains(&Kind::Writer)
    }
}

impl Model for Queue {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let name = Name { number: 0, kind: Kind::Writer, owner: Owner::Holder };
        let waiters = [Waiter::New, Waiter::New, Waiter::New];
        let nodes = vec![Node { name, is_marked: false }];
        vec![State { nodes, next_number: 1, holder: Phase::Writes, waiters }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        match state.holder {
            Phase::Writes => steps.push(Step::Downgrade),
            Phase::Reads => steps.push(Step::ReleaseHolder),
            Phase::Gone => {}
        }
        for (index, waiter) in state.waiters.iter().enumerate() {
            match waiter {
                Waiter::Waiting { event: None, .. } | Waiter::Done => {}
                _ => steps.push(Step::Go(index)),
            }
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = last.clone();
        match step {
            Step::Downgrade => {
                let writer = last.of_holder()?;
                match self.way {
                    Way::Mark => {
                        let mut nodes = next.nodes.iter_mut();
                        nodes.find(|node| node.name == writer)?.is_marked = true;
                        next.notify(writer, Event::Changed);
                    }
                    Way::SameNumber => {
                        next.delete(writer);
                        let name = Name { kind: Kind::Reader, ..writer };
                        next.nodes.push(Node { name, is_marked: false });
                    }
                }
                next.holder = Phase::Reads;
            }
            Step::ReleaseHolder => {
                next.delete(last.of_holder()?);
                next.holder = Phase::Gone;
            }
            Step::Go(index) => {
                let owner = Owner::Waiter(index);
                next.waiters[index] = match &last.waiters[index] {
                    Waiter::New => {
                        let name = Name { number: next.next_number, kind: KINDS[index], owner };
                        next.next_number += 1;
                        next.nodes.push(Node { name, is_marked: false });
                        Waiter::Listing
                    }
                    Waiter::Listing => Waiter::Listed(last.nodes.clone()),
                    Waiter::Listed(listed) => last.look(index, listed),
                    Waiter::Waiting { event: Some(Event::Deleted), is_alone: true, .. }
                        if self.trusts_deletions =>
                    {
                        Waiter::Holds
                    }
                    Waiter::Waiting { .. } => Waiter::Listing,
                    Waiter::Holds => {
                        let node = last.nodes.iter().find(|node| node.name.owner == owner)?;
                        next.delete(node.name);
                        Waiter::Done
                    }
                    Waiter::Done => return None,
                };
            }
        }
        next.nodes.sort_by_key(|node| node.name);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Queue>> {
        vec![
            Property::always(ALONE, |_, state: &State| state.is_alone()),
            // Every run ends, since each step is one of a few.
            Property::always(GRANTED, |queue: &Queue, state: &State| {
                let mut steps = Vec::new();
                queue.actions(state, &mut steps);
                !steps.is_empty() || state.waiters.iter().all(|waiter| *waiter == Waiter::Done)
            }),
            Property::sometimes(JOINED, |_, state: &State| {
                state.holder == Phase::Reads && state.waiters[1] == Waiter::Holds
            }),
        ]
    }
}

#[test]
fn a_mark_at_the_node_lets_readers_join() {
    for trusts_deletions in [true, false] {
        holds(Queue { way: Way::Mark, trusts_deletions }, 2_000);
    }
}

#[test]
fn a_number_that_is_queued_already_must_not_be_used_again() {
    breaks(Queue { way: Way::SameNumber, trusts_deletions: true }, ALONE);
}

#[test]
fn the_same_number_needs_a_list_after_each_deletion() {
    holds(Queue { way: Way::SameNumber, trusts_deletions: false }, 2_000);
}
