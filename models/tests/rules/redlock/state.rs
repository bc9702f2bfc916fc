//! The state of the model at one moment.
//!
//! All that concerns one node, the clients' side included, is stored together, so that states that
//! differ only in the order of the nodes are one state: the nodes are sorted.

use fencelock_redis::redlock::votes::Vote;

use crate::redlock::rules::{Setting, Traits};

/// The clients, by number.
pub(crate) const CLIENTS: [usize; 2] = [0, 1];

/// From one loss of a node's data to the next, as its record identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Incarnation {
    pub(crate) run: u8,
    /// On the node's clock.
    pub(crate) born: u8,
}

/// An owner token: a client and its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub(crate) client: u8,
    pub(crate) round: u8,
}

/// The lock's key on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) owner: Owner,
    /// The tick at which it expires.
    pub(crate) until: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Vote,
    Settle,
    Extend { may_reinstall: bool },
}

/// A request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) owner: Owner,
    /// The node's incarnation as the client knows it.
    pub(crate) incarnation: Incarnation,
    /// The proposal of a vote, else the grant's token.
    pub(crate) token: u64,
}

/// One client's requests to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Ask {
    /// The node's incarnation that is asked; `None` if it is not.
    pub(crate) incarnation: Option<Incarnation>,
    pub(crate) vote: Vote,
    /// The last incarnation that confirmed that this round has the lock.
    pub(crate) confirmed: Option<Incarnation>,
    /// Whether the last extension reinstalled it.
    pub(crate) reinstalled: bool,
    /// The request whose reply is awaited.
    pub(crate) sent: Option<Request>,
    /// A request whose reply is no longer awaited, but which may arrive.
    pub(crate) stray: Option<Request>,
    /// A release that may arrive.
    pub(crate) release: Option<Owner>,
}

impl Ask {
    const NOTHING: Ask = Ask {
        incarnation: None,
        vote: Vote::Absent,
        confirmed: None,
        reinstalled: false,
        sent: None,
        stray: None,
        release: None,
    };

    /// Ends a round, except for what is in flight.
    pub(crate) fn forget(&mut self) {
        *self = Ask { stray: self.stray, release: self.release, ..Ask::NOTHING };
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Node {
    pub(crate) traits: Traits,
    /// How far its clock stepped forward.
    pub(crate) stepped: u8,
    pub(crate) incarnation: Incarnation,
    /// Whether its record is `open`.
    pub(crate) open: bool,
    pub(crate) key: Option<Key>,
    pub(crate) token: u64,
    /// Whether an operator has evicted the first client here.
    pub(crate) has_evicted: bool,
    /// By client.
    pub(crate) asks: [Ask; 2],
}

/// What a client is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Stage {
    #[default]
    Idle,
    Voting,
    Settling,
    Held,
    Extending,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Client {
    pub(crate) stage: Stage,
    /// How many rounds it has started.
    pub(crate) rounds: u8,
    pub(crate) extensions: u8,
    /// When the requests were sent from which validity is counted.
    pub(crate) sent: u8,
    /// The first tick at which the lock is no longer held.
    pub(crate) until: u8,
    /// The round's proposal, and later its token.
    pub(crate) token: u64,
    /// What the first round proposed, if that is reused.
    pub(crate) first_proposal: u64,
}

impl Client {
    /// Whether this client believes that it holds the lock.
    pub(crate) fn believes(&self, now: u8) -> bool {
        matches!(self.stage, Stage::Held | Stage::Extending) && now < self.until
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The true time, in ticks; the nodes' clocks may differ.
    pub(crate) now: u8,
    pub(crate) nodes: Vec<Node>,
    pub(crate) clients: [Client; 2],
    /// The largest token that was granted.
    pub(crate) last: u64,
    /// Whether a grant got a token that is not larger than all before.
    pub(crate) fell: bool,
    /// Whether a majority had evicted the holder when its last extension was sent.
    pub(crate) is_evicted: bool,
    /// Whether such an extension succeeded.
    pub(crate) came_back: bool,
    /// The faults that may still happen.
    pub(crate) restarts: u8,
    pub(crate) flushes: u8,
    pub(crate) steps: u8,
    pub(crate) strays: u8,
    pub(crate) silences: u8,
}

impl State {
    pub(crate) fn first(setting: &Setting) -> State {
        let node = |traits: &Traits| Node {
            traits: *traits,
            stepped: 0,
            // All nodes were declared new at tick 0.
            incarnation: Incarnation { run: 0, born: 0 },
            open: true,
            key: None,
            token: 0,
            has_evicted: false,
            asks: [Ask::NOTHING; 2],
        };
        State {
            now: 1,
            nodes: setting.nodes.iter().map(node).collect(),
            restarts: setting.restarts,
            flushes: setting.flushes,
            steps: setting.steps,
            strays: setting.strays,
            silences: setting.silences,
            ..State::default()
        }
    }

    /// At how many nodes the first client was evicted.
    pub(crate) fn evicted(&self) -> u8 {
        self.nodes.iter().map(|node| u8::from(node.has_evicted)).sum()
    }

    /// One client's votes, from the nodes that it asks.
    pub(crate) fn votes(&self, client: usize) -> Vec<Vote> {
        let its = self.nodes.iter().filter(|node| node.traits.asked_by[client]);
        its.map(|node| node.asks[client].vote).collect()
    }
}
