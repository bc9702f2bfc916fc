//! A latch for two participants, and its next round, after it was removed: a participant whose count-down
//! got no answer counts down again, and what it sent before is executed at any time.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::{breaks, holds};

const NOT_EARLY: &str = "it opens when both have counted down";
const OWN_ROUND: &str = "a count-down counts in the round that it was computed in";
const WHO_CAME: &str = "a round counts who has come to it";
const REOPENED: &str = "the next round opens";

/// How a participant counts, and what the store compares.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// By its own id, from the stamp of what it has read; as the library does.
    OwnIds,
    /// A count-down that is asked again has another id.
    NewIds,
    /// The store compares the content.
    ByContent,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Latch {
    rule: Rule,
    /// The latch may be removed while a first count-down, which expects nothing, is under way.
    has_late_first: bool,
}

/// A participant, and which of its ids.
type Id = (usize, u8);

/// What is there: who has counted down, and the stamp of that write.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Content {
    stamp: u8,
    arrived: BTreeSet<Id>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Away,
    /// It is about to read, for the first time or again.
    Comes,
    Sent,
    Counted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Participant {
    phase: Phase,
    /// The last round that it has come to, from 1 on; 0 for none.
    round: u8,
    attempt: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    id: Id,
    attempt: u8,
    /// Ghost: the round in which it was computed.
    round: u8,
    from: Option<Content>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    there: Option<Content>,
    removals: u8,
    participants: [Participant; 2],
    requests: BTreeSet<Request>,
    losses: u8,
    next_stamp: u8,
    is_in_another_round: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Come(usize),
    /// Reads the latch, and sends a count-down unless it has counted.
    Ask(usize),
    Lose(usize),
    Execute(Request),
    Remove,
}

const COUNT: usize = 2;

impl State {
    fn is_open(&self) -> bool {
        self.there.as_ref().is_some_and(|content| content.arrived.len() >= COUNT)
    }

    fn round(&self) -> u8 {
        self.removals + 1
    }
}

impl Model for Latch {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            there: None,
            removals: 0,
            participants: [Participant { phase: Phase::Away, round: 0, attempt: 0 }; 2],
            requests: BTreeSet::new(),
            losses: 2,
            next_stamp: 0,
            is_in_another_round: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (index, now) in state.participants.iter().enumerate() {
            match now.phase {
                Phase::Away | Phase::Counted if now.round < state.round() => {
                    steps.push(Step::Come(index));
                }
                Phase::Comes => steps.push(Step::Ask(index)),
                Phase::Sent if state.losses > 0 => steps.push(Step::Lose(index)),
                Phase::Away | Phase::Counted | Phase::Sent => {}
            }
        }
        steps.extend(state.requests.iter().cloned().map(Step::Execute));
        // When both have seen that they have counted.
        let all_counted = state.participants.iter().all(|now| now.phase == Phase::Counted);
        let first_is_late = state.requests.iter().any(|request| request.from.is_none());
        if state.is_open()
            && all_counted
            && state.removals == 0
            && (self.has_late_first || !first_is_late)
        {
            steps.push(Step::Remove);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = last.clone();
        match step {
            Step::Come(index) => {
                let now = &mut next.participants[index];
                (now.phase, now.round) = (Phase::Comes, last.round());
            }
            Step::Ask(index) => {
                let now = &mut next.participants[index];
                let number = if self.rule == Rule::NewIds { now.attempt } else { 0 };
                let id = (index, number);
                let arrived = last.there.as_ref().map(|content| &content.arrived);
                if last.is_open() || arrived.is_some_and(|arrived| arrived.contains(&id)) {
                    now.phase = Phase::Counted;
                } else {
                    let (attempt, round, from) = (now.attempt, last.round(), last.there.clone());
                    next.requests.insert(Request { id, attempt, round, from });
                    now.phase = Phase::Sent;
                }
            }
            Step::Lose(index) => {
                next.losses -= 1;
                next.participants[index].phase = Phase::Comes;
                next.participants[index].attempt += 1;
            }
            Step::Execute(request) => {
                next.requests.remove(&request);
                let is_expected = match (&last.there, &request.from, self.rule) {
                    (Some(there), Some(from), Rule::ByContent) => there.arrived == from.arrived,
                    (Some(there), Some(from), _) => there.stamp == from.stamp,
                    (there, from, _) => there.is_none() && from.is_none(),
                };
                if is_expected {
                    let before = request.from.iter().flat_map(|from| from.arrived.clone());
                    let arrived = before.chain([request.id]).collect();
                    next.there = Some(Content { stamp: last.next_stamp, arrived });
                    next.next_stamp += 1;
                    next.is_in_another_round |= last.round() != request.round;
                }
                let now = &mut next.participants[request.id.0];
                if (now.phase, now.attempt) == (Phase::Sent, request.attempt) {
                    now.phase = if is_expected { Phase::Counted } else { Phase::Comes };
                    now.attempt += 1;
                }
            }
            Step::Remove => {
                next.there = None;
                next.removals += 1;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Latch>> {
        vec![
            Property::always(NOT_EARLY, |_, state: &State| {
                let round = state.round();
                !state.is_open() || state.participants.iter().all(|now| now.round == round)
            }),
            Property::always(OWN_ROUND, |_, state: &State| !state.is_in_another_round),
            Property::always(WHO_CAME, |_, state: &State| {
                let counted = state.there.iter().flat_map(|content| &content.arrived);
                counted
                    .map(|(index, _)| state.participants[*index].round)
                    .all(|round| round == state.round())
            }),
            Property::sometimes(REOPENED, |_, state: &State| {
                state.removals == 1 && state.is_open()
            }),
        ]
    }
}

#[test]
fn a_participant_counts_once_by_its_id_and_the_stamp() {
    holds(Latch { rule: Rule::OwnIds, has_late_first: false }, 500);
}

/// Known, and why each round should have a name of its own: what a first count-down expects, nothing, comes
/// back with the removal.
#[test]
fn a_late_first_count_down_counts_in_the_next_round() {
    let latch = Latch { rule: Rule::OwnIds, has_late_first: true };
    breaks(latch, OWN_ROUND);
    breaks(latch, WHO_CAME);
}

#[test]
fn a_new_id_for_each_request_opens_it_early() {
    breaks(Latch { rule: Rule::NewIds, has_late_first: false }, NOT_EARLY);
}

#[test]
fn a_content_comes_back_in_the_next_round() {
    let latch = Latch { rule: Rule::ByContent, has_late_first: false };
    breaks(latch, OWN_ROUND);
    breaks(latch, WHO_CAME);
}
