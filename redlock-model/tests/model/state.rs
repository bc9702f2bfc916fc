//! What the model is in at one moment.
//!
//! All that concerns one node, the clients' side included, stands together, so that nodes that
//! were changed for each other are one state: they are sorted.

use fencelock_redis::redlock::votes::Vote;

use crate::rules::{Setting, Traits};

/// The clients, by number.
pub(crate) const CLIENTS: [usize; 2] = [0, 1];

/// From one loss of a node's data to the next: what its record tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Incarnation {
    pub(crate) run: u8,
    /// On the node's clock.
    pub(crate) born: u8,
}

/// An owner token: which round of which client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub(crate) client: u8,
    pub(crate) round: u8,
}

/// The lock's key on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) owner: Owner,
    /// The tick at which it is gone.
    pub(crate) until: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Vote,
    Settle,
    Extend { may_reinstall: bool },
}

/// A request that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) owner: Owner,
    /// The node's incarnation as the client knows it.
    pub(crate) incarnation: Incarnation,
    /// The proposal of a vote, else the grant's token.
    pub(crate) token: u64,
}

/// What one client has to do with one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ask {
    /// The node's incarnation that is asked; `None` if it is not.
    pub(crate) incarnation: Option<Incarnation>,
    pub(crate) vote: Vote,
    /// The last incarnation that said that the lock is this round's.
    pub(crate) confirmed: Option<Incarnation>,
    /// Whether it was only now put there again, by an extension.
    pub(crate) reinstalled: bool,
    /// The request whose answer is waited for.
    pub(crate) sent: Option<Request>,
    /// One that is not waited for any more, but may arrive.
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

    /// Ends a round, but for what is under way.
    pub(crate) fn forget(&mut self) {
        *self = Ask { stray: self.stray, release: self.release, ..Ask::NOTHING };
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Node {
    pub(crate) traits: Traits,
    /// How far its clock stepped forward.
    pub(crate) stepped: u8,
    pub(crate) incarnation: Incarnation,
    /// Whether its record says so.
    pub(crate) open: bool,
    pub(crate) key: Option<Key>,
    pub(crate) token: u64,
    /// Of each client.
    pub(crate) asks: [Ask; 2],
}

/// What a client is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Stage {
    Idle,
    Voting,
    Settling,
    Held,
    Extending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Client {
    pub(crate) stage: Stage,
    /// How many rounds it has begun.
    pub(crate) rounds: u8,
    pub(crate) extensions: u8,
    /// When the requests were sent that validity is counted from.
    pub(crate) sent: u8,
    /// The first tick at which the lock is not held any more.
    pub(crate) until: u8,
    /// The round's proposal, and later its token.
    pub(crate) token: u64,
    /// What the first round proposed, where that is used again.
    pub(crate) first_proposal: u64,
}

impl Client {
    /// Whether this client believes that it holds the lock.
    pub(crate) fn believes(&self, now: u8) -> bool {
        matches!(self.stage, Stage::Held | Stage::Extending) && now < self.until
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The time, in ticks, of which no clock but this tells the truth.
    pub(crate) now: u8,
    pub(crate) nodes: Vec<Node>,
    pub(crate) clients: [Client; 2],
    /// The largest token that was granted.
    pub(crate) last: u64,
    /// Whether a grant was given a token that is not larger than those before.
    pub(crate) fell: bool,
    /// What may still go wrong.
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
            asks: [Ask::NOTHING; 2],
        };
        let client = Client {
            stage: Stage::Idle,
            rounds: 0,
            extensions: 0,
            sent: 0,
            until: 0,
            token: 0,
            first_proposal: 0,
        };
        State {
            now: 1,
            nodes: setting.nodes.iter().map(node).collect(),
            clients: [client; 2],
            last: 0,
            fell: false,
            restarts: setting.restarts,
            flushes: setting.flushes,
            steps: setting.steps,
            strays: setting.strays,
            silences: setting.silences,
        }
    }

    /// One client's votes, of the nodes that it asks.
    pub(crate) fn votes(&self, client: usize) -> Vec<Vote> {
        let its = self.nodes.iter().filter(|node| node.traits.asked_by[client]);
        its.map(|node| node.asks[client].vote).collect()
    }
}
