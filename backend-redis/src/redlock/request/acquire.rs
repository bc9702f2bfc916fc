//! One round of votes: all nodes are asked at once, and a majority decides.

use std::sync::Arc;

use fencelock_core::batching::Priority;
use fencelock_core::{Mode, Moment, Result};
use redis::Value;
use tokio::time::Instant;

use super::state::{Grant, Phase, Possession, QuorumClaim, read_bool};
use crate::protocol::identity::{of_round, ttl_of};
use crate::redlock::node::fan_out::FanOut;
use crate::redlock::node::monitor::VoteRequest;
use crate::redlock::node::quorum::{Electorate, EligibleNodes, NodeReport};
use crate::redlock::node::written::Written;
use crate::redlock::node_set::NodeSet;
use crate::redlock::rules::rejections::{Rejection, Rejections};
use crate::redlock::rules::votes::{self, Poll, Settled, Vote};
use crate::redlock::scripts::QUORUM;
use crate::server::batch::Ticket;

/// What the requests of one round have in common.
pub(super) struct Round {
    pub(super) identity: Arc<str>,
    proposal: String,
    arrival: String,
    priority: Priority,
}

/// The result of a round.
pub(super) struct RoundOutcome {
    pub(super) round: Arc<Round>,
    pub(super) votes: Vec<Vote>,
    pub(super) rejections: Rejections,
    /// The requests whose replies were not waited for: if these were dropped, some would not even
    /// be sent.
    pub(super) late_votes: FanOut<'static, Result<VoteReply>>,
    /// The fencing token, if the round was won.
    pub(super) token: Option<u64>,
}

impl RoundOutcome {
    /// Which nodes have the grant, as far as is known.
    pub(super) fn possession(&self, eligible: &EligibleNodes) -> Vec<Possession> {
        let unanswered = NodeSet::of(self.late_votes.pending());
        let at_node = |(node, vote): (usize, &Vote)| match (eligible.get(node), vote) {
            (Some(request), Vote::Yes(_)) => Possession::Confirmed(request.incarnation.clone()),
            (Some(request), _) if unanswered.contains(node) => {
                Possession::Unconfirmed(request.incarnation.clone())
            }
            _ => Possession::No,
        };
        self.votes.iter().enumerate().map(at_node).collect()
    }
}

impl QuorumClaim {
    /// Asks every eligible node for its vote, in a new round.
    pub(super) async fn request_votes(
        self: &Arc<Self>,
        electorate: &mut Electorate,
    ) -> RoundOutcome {
        let late_votes = FanOut::new(self.quorum.majority());
        let mut outcome = RoundOutcome {
            round: self.begin_round(electorate, &late_votes.written),
            votes: vec![Vote::Absent; self.quorum.members.len()],
            rejections: Rejections::default(),
            late_votes,
            token: None,
        };
        for (node, request) in electorate.eligible.iter() {
            outcome.votes[node] = Vote::Pending;
            let (request, round) = (request.clone(), outcome.round.clone());
            outcome.late_votes.ask(node, |ticket| self.clone().vote(node, request, ticket, round));
        }
        let asked = Instant::now();
        while votes::is_open(&outcome.votes)
            && let Some((node, reply)) =
                outcome.late_votes.next_within(asked, self.quorum.node_timeout).await
        {
            outcome.votes[node] = match reply {
                Ok(VoteReply::Yes(token)) => {
                    electorate.reports[node] = NodeReport::Answered("yes");
                    Vote::Yes(token)
                }
                Ok(VoteReply::No(rejection)) => {
                    self.count_rejection(rejection, node, &mut electorate.reports, &mut outcome)
                }
                Err(error) => electorate.reports[node].failed(error),
            };
        }
        self.quorum.suspect_silent(&outcome.late_votes);
        for node in outcome.late_votes.pending() {
            outcome.votes[node] = Vote::Absent;
        }
        match votes::poll(&outcome.votes) {
            Poll::Won(token) => outcome.token = Some(token),
            // A shared grant's token only names it, and contains the node's own number.
            Poll::Uneven(token) if self.claim.mode() == Mode::Shared => outcome.token = Some(token),
            Poll::Uneven(token) => self.write_back(electorate, &mut outcome, token).await,
            Poll::Open | Poll::Failed => {}
        }
        outcome
    }

    fn begin_round(&self, electorate: &Electorate, written: &Arc<Written>) -> Arc<Round> {
        let was_evicted = self.quorum.view.waiters.begin_round(&self.claim);
        let mut state = self.state();
        state.rounds += 1;
        if was_evicted {
            // To the end of the queue.
            state.arrival = None;
        }
        let arrival = *state.arrival.get_or_insert_with(|| electorate.arrival());
        let identity: Arc<str> = of_round(&self.waiter, state.rounds).into();
        if let Phase::Releasing(_) = state.phase {
            // Nothing is requested any more.
            written.end();
        } else {
            state.phase = Phase::Voting(identity.clone());
            state.add_residue(&identity, electorate.eligible.nodes(), Moment::NEVER);
            state.votes = Some((identity.clone(), written.clone()));
        }
        let (proposal, arrival) = (electorate.proposal().to_string(), arrival.to_string());
        Arc::new(Round { identity, proposal, arrival, priority: self.claim.priority() })
    }

    /// Requests one node's vote.
    async fn vote(
        self: Arc<Self>,
        node: usize,
        request: VoteRequest,
        ticket: Arc<dyn Ticket>,
        round: Arc<Round>,
    ) -> Result<VoteReply> {
        let number = match self.claim.mode() {
            Mode::Shared => self.quorum.number(node).to_string(),
            Mode::Exclusive | Mode::Permits(_) => String::new(),
        };
        let values = [
            &*request.record,
            &*round.identity,
            ttl_of(&self.waiter),
            &*round.proposal,
            &*number,
            if self.queues() { &*self.waiter } else { "" },
            &*round.arrival,
        ];
        self.call(node, &request, (ticket, round.priority), &QUORUM.vote, values, VoteReply::read)
            .await
    }

    /// The vote that a node's rejection counts as.
    fn count_rejection(
        &self,
        rejection: Rejection,
        node: usize,
        reports: &mut [NodeReport],
        outcome: &mut RoundOutcome,
    ) -> Vote {
        self.state().remove_residue(&outcome.round.identity, node);
        if rejection.is_for(self.claim.owner().reveal()) {
            // An earlier round that was not won, whose roll-back has yet to arrive: no other
            // client has the lock.
            let report = "it has yet to roll back an earlier round of this claim";
            reports[node] = NodeReport::Answered(report);
            return Vote::Absent;
        }
        let report = "held by another client, or others are queued";
        reports[node] = NodeReport::Answered(report);
        outcome.rejections.add(rejection);
        Vote::No
    }

    /// Collects the votes that a grant did not wait for: so each request is sent, all nodes have
    /// the lock, and where one does not is known.
    pub(super) fn collect_late_votes(
        &self,
        mut votes: FanOut<'static, Result<VoteReply>>,
        grant: Arc<Grant>,
    ) {
        if votes.is_empty() {
            return;
        }
        self.quorum.runtime.spawn(async move {
            while let Some((node, reply)) = votes.next().await {
                let mut possession = grant.possession();
                // A node that failed may have it.
                if let (Possession::Unconfirmed(incarnation), Ok(vote)) = (&possession[node], reply)
                {
                    possession[node] = match vote {
                        VoteReply::Yes(_) => Possession::Confirmed(incarnation.clone()),
                        VoteReply::No(_) => Possession::No,
                    };
                }
            }
        });
    }

    /// Writes `token`, the round's largest, back to the nodes of its majority that gave a smaller
    /// one, and wins the round once a majority has it.
    async fn write_back(
        &self,
        electorate: &mut Electorate,
        outcome: &mut RoundOutcome,
        token: u64,
    ) {
        let Electorate { eligible, reports, .. } = electorate;
        let RoundOutcome { round, votes, .. } = outcome;
        let mut fan_out = FanOut::new(self.quorum.majority());
        for (node, request) in eligible.iter() {
            if matches!(votes[node], Vote::Yes(its) if its < token) {
                votes[node] = Vote::Pending;
                fan_out.ask(node, |ticket| self.raise(node, request, ticket, round, token));
            }
        }
        let asked = Instant::now();
        while votes::settled(votes, token) == Settled::Open
            && let Some((node, reply)) = fan_out.next_within(asked, self.quorum.node_timeout).await
        {
            votes[node] = match reply {
                Ok(true) => Vote::Yes(token),
                Ok(false) => Vote::No,
                Err(error) => reports[node].failed(error),
            };
        }
        self.quorum.suspect_silent(&fan_out);
        if votes::settled(votes, token) == Settled::Yes {
            outcome.token = Some(token);
        }
    }

    /// Raises one node's fencing token to the round's largest.
    async fn raise(
        &self,
        node: usize,
        request: &VoteRequest,
        ticket: Arc<dyn Ticket>,
        round: &Round,
        token: u64,
    ) -> Result<bool> {
        let values = [&*request.record, &*round.identity, &*token.to_string()];
        self.call(node, request, (ticket, Priority::Held), &QUORUM.raise, values, read_bool).await
    }
}

/// A node's reply to the request for its vote.
pub(super) enum VoteReply {
    /// With the node's fencing token.
    Yes(u64),
    No(Rejection),
}

impl VoteReply {
    fn read(reply: &Value) -> Option<VoteReply> {
        read_token(reply).map(VoteReply::Yes).or_else(|| Rejection::read(reply).map(VoteReply::No))
    }
}

/// The fencing token of a vote, if that is a yes.
pub(crate) fn read_token(value: &Value) -> Option<u64> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}
