//! The downgrade on one Redis server: requests are lost before or after they are executed, repeated,
//! and executed late.
//!
//! From the first request until an answer the client does not know which form its hold has. It is
//! released in one step whichever form is there, and renewed by the downgrade itself.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::{breaks, holds};

const ALONE: &str = "a writer has no company";
const NOTHING_LEFT: &str = "a release leaves nothing";
const NO_FALSE_LOSS: &str = "a renewal finds what is held";
const JOINED: &str = "another reader joins";

/// What a client does while it does not know the form.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// As the store does.
    Either,
    /// It sends a release for each form.
    TwoReleases,
    ReleasesTheWriterOnly,
    /// The script makes a reader of a free lock, too.
    TakesAFreeLock,
    RenewsTheWriterOnly,
    RenewsTheReaderOnly,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Who {
    Client,
    Other,
}

/// The lock's key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Free,
    Writer(Who),
    Readers(BTreeSet<Who>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Request {
    Downgrade,
    ReleaseWriter,
    ReleaseReader,
    ReleaseEither,
}

/// What the client knows of its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Writer,
    Unsure,
    Reader,
    Released,
}

/// Another client, which asks once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Other {
    Idle,
    Holds,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    key: Key,
    phase: Phase,
    /// In flight, in any order. The number tells copies apart.
    requests: BTreeSet<(Request, u8)>,
    repeats: u8,
    writer: Other,
    reader: Other,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Ask,
    AskAgain,
    Release,
    /// The server executes it, and the reply is lost.
    Execute((Request, u8)),
    /// The same, and the client reads the reply.
    Answer((Request, u8)),
    GrantWriter,
    ReleaseWriter,
    GrantReader,
    ReleaseReader,
}

impl Key {
    fn has(&self, who: Who) -> bool {
        match self {
            Key::Free => false,
            Key::Writer(holder) => *holder == who,
            Key::Readers(readers) => readers.contains(&who),
        }
    }

    fn add_reader(&mut self, who: Who) {
        match self {
            Key::Readers(readers) => _ = readers.insert(who),
            _ => *self = Key::Readers([who].into()),
        }
    }

    fn remove_reader(&mut self, who: Who) {
        if let Key::Readers(readers) = self {
            readers.remove(&who);
            if readers.is_empty() {
                *self = Key::Free;
            }
        }
    }

    /// Whether the client has the lock afterwards, of a downgrade.
    fn execute(&mut self, request: Request, rule: Rule) -> bool {
        let is_writer = *self == Key::Writer(Who::Client);
        match request {
            Request::Downgrade => {
                if is_writer || (rule == Rule::TakesAFreeLock && *self == Key::Free) {
                    self.add_reader(Who::Client);
                }
            }
            Request::ReleaseWriter | Request::ReleaseEither if is_writer => *self = Key::Free,
            Request::ReleaseReader | Request::ReleaseEither => self.remove_reader(Who::Client),
            Request::ReleaseWriter => {}
        }
        self.has(Who::Client)
    }
}

impl State {
    fn send(&mut self, request: Request, copy: u8) {
        self.requests.insert((request, copy));
    }

    fn is_alone(&self) -> bool {
        let writes = self.phase == Phase::Writer;
        // It may count on no more than reading as soon as it has asked.
        let reads = matches!(self.phase, Phase::Unsure | Phase::Reader);
        let others = [self.writer, self.reader].map(|other| other == Other::Holds);
        match (writes, others[0]) {
            (true, writer) => !writer && !others[1],
            (false, true) => !reads && !others[1],
            (false, false) => true,
        }
    }
}

impl Model for Rule {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            key: Key::Writer(Who::Client),
            phase: Phase::Writer,
            requests: BTreeSet::new(),
            repeats: 2,
            writer: Other::Idle,
            reader: Other::Idle,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.phase == Phase::Writer {
            steps.push(Step::Ask);
        }
        if state.phase == Phase::Unsure && state.repeats > 0 {
            steps.push(Step::AskAgain);
        }
        if state.phase != Phase::Released {
            steps.push(Step::Release);
        }
        for request in &state.requests {
            steps.push(Step::Execute(*request));
            if request.0 == Request::Downgrade && state.phase == Phase::Unsure {
                steps.push(Step::Answer(*request));
            }
        }
        match state.writer {
            Other::Idle if state.key == Key::Free => steps.push(Step::GrantWriter),
            Other::Holds => steps.push(Step::ReleaseWriter),
            Other::Idle | Other::Done => {}
        }
        match state.reader {
            Other::Idle if !matches!(state.key, Key::Writer(_)) => steps.push(Step::GrantReader),
            Other::Holds => steps.push(Step::ReleaseReader),
            Other::Idle | Other::Done => {}
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = last.clone();
        match step {
            Step::Ask => {
                next.phase = Phase::Unsure;
                next.send(Request::Downgrade, next.repeats);
            }
            Step::AskAgain => {
                next.repeats -= 1;
                next.send(Request::Downgrade, next.repeats);
            }
            Step::Release => {
                let requests: &[Request] = match (last.phase, self) {
                    (Phase::Writer, _) | (Phase::Unsure, Rule::ReleasesTheWriterOnly) => {
                        &[Request::ReleaseWriter]
                    }
                    (Phase::Unsure, Rule::TwoReleases) => {
                        &[Request::ReleaseWriter, Request::ReleaseReader]
                    }
                    (Phase::Unsure, _) => &[Request::ReleaseEither],
                    (Phase::Reader | Phase::Released, _) => &[Request::ReleaseReader],
                };
                requests.iter().for_each(|request| next.send(*request, 0));
                next.phase = Phase::Released;
            }
            Step::Execute(request) => {
                next.requests.remove(&request);
                next.key.execute(request.0, *self);
            }
            Step::Answer(request) => {
                next.requests.remove(&request);
                let has = next.key.execute(request.0, *self);
                next.phase = if has { Phase::Reader } else { Phase::Released };
            }
            Step::GrantWriter => (next.key, next.writer) = (Key::Writer(Who::Other), Other::Holds),
            Step::ReleaseWriter => {
                next.writer = Other::Done;
                if next.key == Key::Writer(Who::Other) {
                    next.key = Key::Free;
                }
            }
            Step::GrantReader => {
                next.key.add_reader(Who::Other);
                next.reader = Other::Holds;
            }
            Step::ReleaseReader => {
                next.key.remove_reader(Who::Other);
                next.reader = Other::Done;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Rule>> {
        vec![
            Property::always(ALONE, |_, state: &State| state.is_alone()),
            Property::always(NOTHING_LEFT, |_, state: &State| {
                let is_over = state.phase == Phase::Released && state.requests.is_empty();
                !(is_over && state.key.has(Who::Client))
            }),
            Property::always(NO_FALSE_LOSS, |rule: &Rule, state: &State| {
                let finds = match rule {
                    Rule::RenewsTheWriterOnly => state.key == Key::Writer(Who::Client),
                    Rule::RenewsTheReaderOnly => {
                        matches!(&state.key, Key::Readers(all) if all.contains(&Who::Client))
                    }
                    _ => state.key.has(Who::Client),
                };
                state.phase != Phase::Unsure || finds
            }),
            Property::sometimes(JOINED, |_, state: &State| {
                state.phase == Phase::Reader && state.reader == Other::Holds
            }),
        ]
    }
}

#[test]
fn one_step_that_knows_both_forms_is_enough() {
    holds(Rule::Either, 200);
}

#[test]
fn a_release_for_each_form_leaves_a_reader() {
    breaks(Rule::TwoReleases, NOTHING_LEFT);
}

#[test]
fn a_release_of_the_writer_leaves_a_reader() {
    breaks(Rule::ReleasesTheWriterOnly, NOTHING_LEFT);
}

#[test]
fn a_late_downgrade_must_not_take_a_free_lock() {
    breaks(Rule::TakesAFreeLock, NOTHING_LEFT);
}

#[test]
fn a_renewal_of_one_form_tells_a_loss_that_is_none() {
    breaks(Rule::RenewsTheWriterOnly, NO_FALSE_LOSS);
    breaks(Rule::RenewsTheReaderOnly, NO_FALSE_LOSS);
}
