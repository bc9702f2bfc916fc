//! The tokens of a tenure: the store reserves them at the grant. It counts by its last token alone,
//! as memory and files do, and Redis does after its clock was set back.

use stateright::{Model, Property};

use crate::{breaks, holds};

const RISES: &str = "tokens rise";
const HANDED_ON: &str = "a tenure has two turns";

/// The acquisitions for one grant.
const MOST: u8 = 2;

/// When the store learns which tokens are used.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reserves {
    AtTheGrant,
    AtTheRelease,
    Never,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// The store's last token, and which process has the lock.
    last: u8,
    holder: Option<usize>,
    /// The largest that a resource has seen, and whether one came that was not larger.
    seen: u8,
    fell: bool,
    /// By process: the first token of its tenure, how many it has used, and its grants so far.
    first: [u8; 2],
    used: [u8; 2],
    grants: [u8; 2],
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Grant(usize),
    Turn(usize),
    Release(usize),
    /// The process dies or is silent, and its lease ends.
    Expire(usize),
}

impl Model for Reserves {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let none = [0; 2];
        let (last, seen) = (0, 0);
        vec![State { last, holder: None, seen, fell: false, first: none, used: none, grants: none }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        match state.holder {
            None => {
                let may_ask = (0..2).filter(|process| state.grants[*process] < 2);
                steps.extend(may_ask.map(Step::Grant));
            }
            Some(process) => {
                if state.used[process] < MOST {
                    steps.push(Step::Turn(process));
                }
                steps.extend([Step::Release(process), Step::Expire(process)]);
            }
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = last.clone();
        match step {
            Step::Grant(process) => {
                next.holder = Some(process);
                next.grants[process] += 1;
                next.first[process] = next.last + 1;
                next.used[process] = 0;
                next.last += if *self == Reserves::AtTheGrant { MOST } else { 1 };
            }
            Step::Turn(process) => {
                let token = next.first[process] + next.used[process];
                next.used[process] += 1;
                next.fell |= token <= next.seen;
                next.seen = next.seen.max(token);
            }
            Step::Release(process) => {
                next.holder = None;
                if *self == Reserves::AtTheRelease && next.used[process] > 0 {
                    next.last = next.last.max(next.first[process] + next.used[process] - 1);
                }
            }
            Step::Expire(_) => next.holder = None,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Reserves>> {
        vec![
            Property::always(RISES, |_, state: &State| !state.fell),
            Property::sometimes(HANDED_ON, |_, state: &State| state.used.contains(&MOST)),
        ]
    }
}

#[test]
fn tokens_reserved_at_the_grant_rise() {
    holds(Reserves::AtTheGrant, 50);
}

#[test]
fn tokens_reserved_at_the_release_repeat_after_a_crash() {
    breaks(Reserves::AtTheRelease, RISES);
}

#[test]
fn tokens_that_nobody_reserves_repeat() {
    breaks(Reserves::Never, RISES);
}
