//! The clients' side: requests, and what follows from the replies. The decisions themselves are those
//! of `fencelock_redis::redlock`.

use fencelock_redis::redlock::clocks::{Offset, agreement};
use fencelock_redis::redlock::incarnation::{IncarnationVerdict, RestartTracker};
use fencelock_redis::redlock::token;
use fencelock_redis::redlock::votes::{self, Extension, Poll, Settled, Vote};

use crate::redlock::rules::{Dropped, Setting, TOO_MUCH};
use crate::redlock::server::deployment;
use crate::redlock::state::{CLIENTS, Incarnation, Kind, Node, Owner, Request, Stage, State};
use crate::redlock::units::{end_of_lease, moment, ticks, token_us};

/// How precisely a client knows the nodes' clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    Exact,
    /// This node's reply took a tick.
    Slow(usize),
    /// This node never replied.
    Without(usize),
}

impl State {
    /// Starts a round; `None` if the clocks do not agree.
    pub(crate) fn start(
        &mut self,
        client: usize,
        reading: Reading,
        setting: &Setting,
    ) -> Option<()> {
        let now = self.now;
        let ours = token_us(now);
        let offset = |(at, node): (usize, &Node)| match reading {
            _ if !node.traits.asked_by[client] => None,
            Reading::Without(unknown) if unknown == at => None,
            Reading::Slow(slow) if slow == at => {
                Some(Offset::read(token_us(now - 1 + node.traits.lead), token_us(now - 1), ours))
            }
            // Clocks are read periodically: a step has not been seen yet.
            _ => Some(Offset::read(token_us(now + node.traits.lead), ours, ours)),
        };
        let mut offsets: Vec<_> = self.nodes.iter().enumerate().map(offset).collect();
        // A fourth node that this client does not ask is not a silent one.
        let mut asked = self.nodes.iter().map(|node| node.traits.asked_by[client]);
        offsets.retain(|_| asked.next() == Some(true));
        let tolerance = match setting.dropped {
            Dropped::ClockAgreement => u64::MAX,
            _ => token_us(setting.tolerance),
        };
        let agreed = agreement(&offsets, tolerance)?;
        let mut members = agreed.members.into_iter();

        let mine = &mut self.clients[client];
        let is_first = mine.rounds == 0;
        mine.rounds += 1;
        mine.stage = Stage::Voting;
        mine.sent = now;
        mine.until = end_of_lease(now, setting.ttl);
        mine.token = token::proposal(ours, agreed.lead);
        if setting.dropped == Dropped::FreshProposal {
            mine.first_proposal = if is_first { mine.token } else { mine.first_proposal };
            mine.token = mine.first_proposal;
        }
        let token = mine.token;
        let owner = self.owner(client, setting);
        for node in &mut self.nodes {
            let takes_part = node.traits.asked_by[client] && members.next() == Some(true);
            let incarnation = takes_part.then(|| node.judge(client, now, setting)).flatten();
            let ask = &mut node.asks[client];
            ask.forget();
            ask.incarnation = incarnation;
            ask.sent = incarnation.map(|incarnation| Request {
                kind: Kind::Vote,
                owner,
                incarnation,
                token,
            });
            ask.vote = if incarnation.is_some() { Vote::Pending } else { Vote::Absent };
        }
        Some(())
    }

    pub(crate) fn owner(&self, client: usize, setting: &Setting) -> Owner {
        let round = match setting.dropped {
            Dropped::FreshOwner => 1,
            _ => self.clients[client].rounds,
        };
        Owner { client: client as u8, round }
    }

    /// Gives up all replies that have not arrived.
    pub(crate) fn give_up(&mut self, client: usize) {
        for node in &mut self.nodes {
            let ask = &mut node.asks[client];
            if ask.vote == Vote::Pending {
                ask.vote = Vote::Absent;
                ask.sent = None;
            }
        }
    }

    /// Whether the replies are enough to decide.
    pub(crate) fn is_decided(&self, client: usize, setting: &Setting) -> bool {
        let votes = self.votes(client);
        match self.clients[client].stage {
            Stage::Idle | Stage::Held => false,
            Stage::Voting => poll(&votes, setting) != Poll::Open,
            Stage::Settling => votes::settled(&votes, self.clients[client].token) != Settled::Open,
            Stage::Extending => votes::extension(&votes) != Extension::Open,
        }
    }

    /// Decides by the replies.
    pub(crate) fn decide(&mut self, client: usize, setting: &Setting) {
        let votes = self.votes(client);
        let Stage::Extending = self.clients[client].stage else {
            return self.decide_round(client, &votes, setting);
        };
        let mine = &mut self.clients[client];
        let is_in_time = self.now < mine.until;
        match votes::extension(&votes) {
            Extension::Kept if is_in_time => {
                self.came_back |= self.is_evicted;
                mine.until = end_of_lease(mine.sent, setting.ttl);
                mine.stage = Stage::Held;
            }
            Extension::Kept if setting.dropped == Dropped::ExtensionInTime => {
                mine.until = end_of_lease(mine.sent, setting.ttl);
                mine.stage = Stage::Held;
                // It is held again, and another client may have been granted more meanwhile.
                self.fell |= mine.believes(self.now) && mine.token < self.last;
            }
            Extension::Unknown if is_in_time => mine.stage = Stage::Held,
            Extension::Kept | Extension::Unknown | Extension::Lost | Extension::Open => {
                self.end(client, setting);
            }
        }
    }

    fn decide_round(&mut self, client: usize, votes: &[Vote], setting: &Setting) {
        let mine = &self.clients[client];
        let is_in_time = self.now < mine.until;
        let outcome = match mine.stage {
            Stage::Voting => poll(votes, setting),
            _ if votes::settled(votes, mine.token) == Settled::Yes => Poll::Won(mine.token),
            _ => Poll::Failed,
        };
        match outcome {
            Poll::Won(token) if is_in_time => {
                self.clients[client].token = token;
                self.hold(client);
            }
            Poll::Uneven(token) if is_in_time && setting.dropped == Dropped::WriteBack => {
                self.clients[client].token = token;
                self.hold(client);
            }
            Poll::Uneven(token) if is_in_time => self.settle(client, token, setting),
            Poll::Won(_) | Poll::Uneven(_) | Poll::Failed | Poll::Open => self.end(client, setting),
        }
    }

    /// Writes the token back to all nodes that were asked and do not have it, also those that said
    /// no, since that may have changed.
    fn settle(&mut self, client: usize, token: u64, setting: &Setting) {
        let owner = self.owner(client, setting);
        let mine = &mut self.clients[client];
        mine.stage = Stage::Settling;
        mine.token = token;
        for node in &mut self.nodes {
            let ask = &mut node.asks[client];
            let has_it = matches!(ask.vote, Vote::Yes(its) if its >= token);
            if let (Some(incarnation), false) = (ask.incarnation, has_it) {
                ask.sent = Some(Request { kind: Kind::Settle, owner, incarnation, token });
                ask.vote = Vote::Pending;
            }
        }
    }

    fn hold(&mut self, client: usize) {
        let mine = &mut self.clients[client];
        mine.stage = Stage::Held;
        self.fell |= mine.token <= self.last;
        self.last = self.last.max(mine.token);
    }

    pub(crate) fn extend(&mut self, client: usize, setting: &Setting) {
        let owner = self.owner(client, setting);
        let now = self.now;
        let mine = &mut self.clients[client];
        mine.stage = Stage::Extending;
        mine.extensions += 1;
        mine.sent = now;
        let token = mine.token;
        self.is_evicted = usize::from(self.evicted()) >= votes::majority(self.nodes.len());
        for node in self.nodes.iter_mut().filter(|node| node.traits.asked_by[client]) {
            let incarnation = node.judge(client, now, setting);
            let ask = &mut node.asks[client];
            ask.reinstalled = false;
            let may_reinstall = ask.confirmed != incarnation;
            let kind = Kind::Extend { may_reinstall };
            ask.incarnation = incarnation;
            ask.sent = incarnation.map(|incarnation| Request { kind, owner, incarnation, token });
            ask.vote = if incarnation.is_some() { Vote::Pending } else { Vote::Absent };
        }
    }

    /// Releases on all nodes, also on those that never replied.
    pub(crate) fn end(&mut self, client: usize, setting: &Setting) {
        let owner = self.owner(client, setting);
        for node in self.nodes.iter_mut().filter(|node| node.traits.asked_by[client]) {
            let ask = &mut node.asks[client];
            ask.forget();
            ask.release = Some(owner);
        }
        let mine = &mut self.clients[client];
        mine.stage = Stage::Idle;
        (mine.sent, mine.until, mine.token) = (0, 0, 0);
    }

    /// Whether both clients believe that they hold the lock.
    pub(crate) fn overlaps(&self) -> bool {
        CLIENTS.iter().all(|client| self.clients[*client].believes(self.now))
    }
}

impl Node {
    /// The incarnation in which a client would ask it now, if at all.
    fn judge(&self, client: usize, now: u8, setting: &Setting) -> Option<Incarnation> {
        let epoch = setting.epochs[client];
        let ours = match setting.dropped {
            Dropped::OneSetOfNodes => self.deployment(setting),
            _ => deployment(epoch, setting),
        };
        let IncarnationVerdict::Open(record) = self.verdict(now, setting, ours) else {
            return None;
        };
        if let (true, Some(lost)) = (setting.all_are_known, self.lost()) {
            let fast = if setting.dropped == Dropped::OwnAgeWithinMargin { TOO_MUCH } else { 0 };
            let mut known = RestartTracker::default();
            let mut observe = |incarnation: &str, tick| {
                known.observe(incarnation, moment(tick), ticks(setting.delay()))
            };
            let _ = observe("an earlier one", 0);
            let _ = observe(&record.incarnation(), lost);
            if !observe(&record.incarnation(), now + fast).is_zero() {
                return None;
            }
        }
        Some(self.incarnation)
    }
}

pub(crate) fn poll(votes: &[Vote], setting: &Setting) -> Poll {
    if setting.dropped == Dropped::AbstainersCount {
        let said: Vec<Vote> = votes.iter().copied().filter(|vote| *vote != Vote::Absent).collect();
        return votes::poll(&said);
    }
    votes::poll(votes)
}
