//! What can happen next, and what must never happen.

use fencelock_redis::redlock::votes::{self, Extension, Settled, Vote};
use stateright::{Model, Property};

use crate::redlock::client::Reading;
use crate::redlock::rules::{Dropped, Setting};
use crate::redlock::state::{CLIENTS, Kind, Stage, State};

/// A message is lost if no step delivers it, late if the step comes later; messages overtake each
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Tick,
    Start(usize, Reading),
    /// A node gets a client's request, and the client the reply.
    Deliver(usize, usize),
    /// The node gets the request, and the reply is lost.
    DeliverOnly(usize, usize),
    /// The client abandons the request, which is still in flight.
    Delay(usize, usize),
    /// The request is delivered, and will be delivered again.
    Replay(usize, usize),
    DeliverStray(usize, usize),
    DeliverRelease(usize, usize),
    /// A client decides by the replies that it has.
    Decide(usize),
    /// A client stops waiting.
    GiveUp(usize),
    Extend(usize),
    Release(usize),
    /// A node loses its data and its run.
    Restart(usize),
    /// A node loses its data.
    Flush(usize),
    /// The clock of an excluded node is set forward.
    SetForward(usize),
    /// An operator evicts the first client at a node.
    Evict(usize),
}

pub(crate) const OVERLAP: &str = "no two clients hold the lock at once";
pub(crate) const FALL: &str = "tokens rise in the order of the grants";
pub(crate) const COMES_BACK: &str = "what a majority evicted is not extended";
pub(crate) const GRANT: &str = "the lock is granted";
pub(crate) const WRITE_BACK: &str = "a token is written back";
pub(crate) const REINSTALLING: &str = "an extension needs what it plants";

impl Model for Setting {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut first = State::first(self);
        let now = first.now;
        let quarantined = first.nodes.iter_mut().filter(|node| node.traits.is_quarantined);
        quarantined.for_each(|node| node.restart(now, self));
        vec![first.canonical(self)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let is_over = |client: usize| {
            let mine = &state.clients[client];
            mine.stage == Stage::Idle && mine.rounds == self.rounds[client]
        };
        if state.fell || state.came_back || CLIENTS.into_iter().all(is_over) {
            return;
        }
        if state.now < self.horizon {
            steps.push(Step::Tick);
        }
        for client in CLIENTS {
            self.steps_of(client, state, steps);
        }
        for (at, node) in state.nodes.iter().enumerate() {
            for client in CLIENTS {
                let ask = &node.asks[client];
                if ask.sent.is_some() {
                    steps.push(Step::Deliver(client, at));
                    if state.silences > 0 {
                        steps.push(Step::DeliverOnly(client, at));
                    }
                    if state.strays > 0 && ask.stray.is_none() {
                        steps.extend([Step::Delay(client, at), Step::Replay(client, at)]);
                    }
                }
                if ask.stray.is_some() {
                    steps.push(Step::DeliverStray(client, at));
                }
                if ask.release.is_some() {
                    steps.push(Step::DeliverRelease(client, at));
                }
            }
            if state.restarts > 0 {
                steps.push(Step::Restart(at));
            }
            if state.flushes > 0 {
                steps.push(Step::Flush(at));
            }
            if state.steps > 0 && !node.open {
                steps.push(Step::SetForward(at));
            }
            let is_held = state.clients[0].believes(state.now);
            if is_held && !node.has_evicted && state.evicted() < self.evictions {
                steps.push(Step::Evict(at));
            }
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = last.clone();
        let now = next.now;
        match step {
            Step::Tick => {
                next.now += 1;
                next.nodes.iter_mut().for_each(|node| node.tick(now + 1, self));
            }
            Step::Start(client, reading) => next.start(client, reading, self)?,
            Step::Deliver(client, at) => self.deliver(&mut next, client, at, true),
            Step::DeliverOnly(client, at) => {
                next.silences -= 1;
                self.deliver(&mut next, client, at, false);
            }
            Step::Delay(client, at) => {
                next.strays -= 1;
                let ask = &mut next.nodes[at].asks[client];
                ask.stray = ask.sent.take();
                ask.vote = Vote::Absent;
            }
            Step::Replay(client, at) => {
                next.strays -= 1;
                next.nodes[at].asks[client].stray = next.nodes[at].asks[client].sent;
                self.deliver(&mut next, client, at, true);
            }
            Step::DeliverStray(client, at) => {
                let request = next.nodes[at].asks[client].stray.take()?;
                next.nodes[at].answer(&request, now, self);
            }
            Step::DeliverRelease(client, at) => {
                let owner = next.nodes[at].asks[client].release.take()?;
                next.nodes[at].release(owner, self);
            }
            Step::Decide(client) => next.decide(client, self),
            Step::GiveUp(client) => {
                next.give_up(client);
                next.decide(client, self);
            }
            Step::Extend(client) => next.extend(client, self),
            Step::Release(client) => next.end(client, self),
            Step::Restart(at) => {
                next.restarts -= 1;
                next.nodes[at].restart(now, self);
            }
            Step::Flush(at) => {
                next.flushes -= 1;
                next.nodes[at].flush(now, self);
            }
            Step::SetForward(at) => {
                next.steps -= 1;
                next.nodes[at].stepped += self.delay();
                next.nodes[at].check(now, self);
            }
            Step::Evict(at) => next.nodes[at].evict(),
        }
        Some(next.canonical(self))
    }

    fn properties(&self) -> Vec<Property<Setting>> {
        vec![
            Property::always(OVERLAP, |_, state: &State| !state.overlaps()),
            Property::always(FALL, |_, state: &State| !state.fell),
            Property::always(COMES_BACK, |_, state: &State| !state.came_back),
            Property::sometimes(GRANT, |_, state: &State| {
                CLIENTS.iter().any(|client| state.clients[*client].believes(state.now))
            }),
            Property::sometimes(WRITE_BACK, |_, state: &State| {
                CLIENTS.iter().any(|client| has_written_back(state, *client))
            }),
            Property::sometimes(REINSTALLING, |_, state: &State| {
                CLIENTS.iter().any(|client| needs_reinstalling(state, *client))
            }),
        ]
    }
}

impl Setting {
    fn steps_of(&self, client: usize, state: &State, steps: &mut Vec<Step>) {
        let mine = &state.clients[client];
        match mine.stage {
            Stage::Idle if mine.rounds < self.rounds[client] => {
                steps.push(Step::Start(client, Reading::Exact));
                if self.readings {
                    let odd = |at: &usize| state.nodes[*at].traits.lead > 0;
                    for at in (0..state.nodes.len()).filter(odd) {
                        steps.push(Step::Start(client, Reading::Slow(at)));
                        steps.push(Step::Start(client, Reading::Without(at)));
                    }
                }
            }
            Stage::Idle => {}
            Stage::Held => {
                if state.now < mine.until && mine.extensions < self.extensions[client] {
                    steps.push(Step::Extend(client));
                }
                steps.push(Step::Release(client));
            }
            Stage::Voting | Stage::Settling | Stage::Extending => {
                if state.is_decided(client, self) {
                    steps.push(Step::Decide(client));
                } else {
                    steps.push(Step::GiveUp(client));
                }
            }
        }
    }

    fn deliver(&self, next: &mut State, client: usize, at: usize, is_heard: bool) {
        let now = next.now;
        let node = &mut next.nodes[at];
        let Some(request) = node.asks[client].sent.take() else { return };
        let was_free = node.key.is_none();
        let vote = node.answer(&request, now, self);
        let ask = &mut node.asks[client];
        ask.vote = if is_heard { vote } else { Vote::Absent };
        if matches!(ask.vote, Vote::Yes(_)) {
            ask.confirmed = ask.incarnation;
            ask.reinstalled = was_free && request.kind == Kind::Extend { may_reinstall: true };
        }
    }
}

impl State {
    /// The representative of all equivalent states.
    fn canonical(mut self, setting: &Setting) -> State {
        let releases_compare = setting.dropped != Dropped::CompareAtRelease;
        for node in &mut self.nodes {
            for client in CLIENTS {
                let Some(owner) = node.asks[client].release else { continue };
                // It would never find anything.
                let has_key = node.key.is_some_and(|key| key.owner == owner);
                let may_get_it =
                    node.asks[client].stray.is_some() || setting.dropped == Dropped::FreshOwner;
                if releases_compare && !has_key && !may_get_it {
                    node.asks[client].release = None;
                }
            }
        }
        if self.clients[0] > self.clients[1] && setting.clients_are_alike() {
            self.swap_clients();
        }
        self.nodes.sort_unstable();
        self
    }

    fn swap_clients(&mut self) {
        self.clients.swap(0, 1);
        for node in &mut self.nodes {
            node.asks.swap(0, 1);
            let keys = node.key.iter_mut().map(|key| &mut key.owner);
            let asks = node.asks.iter_mut().flat_map(|ask| {
                let requests = ask.sent.iter_mut().chain(&mut ask.stray);
                requests.map(|request| &mut request.owner).chain(&mut ask.release)
            });
            keys.chain(asks).for_each(|owner| owner.client = 1 - owner.client);
        }
    }
}

fn has_written_back(state: &State, client: usize) -> bool {
    let mine = &state.clients[client];
    mine.stage == Stage::Settling
        && votes::settled(&state.votes(client), mine.token) == Settled::Yes
}

fn needs_reinstalling(state: &State, client: usize) -> bool {
    let as_it_was = state.nodes.iter().filter(|node| node.traits.asked_by[client]).map(|node| {
        let ask = &node.asks[client];
        if ask.reinstalled { Vote::Absent } else { ask.vote }
    });
    state.clients[client].stage == Stage::Extending
        && votes::extension(&state.votes(client)) == Extension::Kept
        && votes::extension(&as_it_was.collect::<Vec<Vote>>()) != Extension::Kept
}
