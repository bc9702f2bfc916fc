//! One round of votes: all nodes are asked at once, and a majority decides.

use std::sync::Arc;

use fencelock_core::{Mode, Result};
use redis::Value;
use tokio::time::timeout_at;

use super::state::{Grant, Possession, QuorumClaim};
use crate::protocol::call::ScriptCall;
use crate::protocol::identity::{of_round, ttl_of};
use crate::redlock::node::fan_out::{BoxedFanOut, FanOut};
use crate::redlock::node::member::Member;
use crate::redlock::node::monitor::VoteRequest;
use crate::redlock::node::quorum::{Electorate, EligibleNodes, NodeReport};
use crate::redlock::node_set::NodeSet;
use crate::redlock::rules::rejections::{Rejection, Rejections};
use crate::redlock::rules::votes::{self, Poll, Settled, Vote};
use crate::redlock::scripts::QUORUM;

/// What the requests of one round have in common.
pub(super) struct Round {
    pub(super) identity: Arc<str>,
    proposal: String,
    arrival: String,
}

/// The result of a round.
pub(super) struct RoundOutcome {
    pub(super) round: Arc<Round>,
    pub(super) votes: Vec<Vote>,
    pub(super) rejections: Rejections,
    /// The nodes whose replies were not waited for.
    unanswered: NodeSet,
    /// Their requests: if these were dropped, some would not even be sent.
    pub(super) late_votes: BoxedFanOut<Result<Value>>,
    /// The fencing token, if the round was won.
    pub(super) token: Option<u64>,
}

impl RoundOutcome {
    fn new(round: Arc<Round>, nodes: usize) -> RoundOutcome {
        let votes = vec![Vote::Absent; nodes];
        RoundOutcome {
            round,
            votes,
            rejections: Rejections::default(),
            unanswered: NodeSet::default(),
            late_votes: BoxedFanOut::new(),
            token: None,
        }
    }

    /// Which nodes have the grant, as far as is known.
    pub(super) fn possession(&self, eligible: &EligibleNodes) -> Vec<Possession> {
        let of_node = |node: usize| match eligible.get(node) {
            Some(request) if matches!(self.votes[node], Vote::Yes(_)) => {
                Possession::Confirmed(request.incarnation.clone())
            }
            Some(request) if self.unanswered.contains(node) => {
                Possession::Unconfirmed(request.incarnation.clone())
            }
            _ => Possession::No,
        };
        (0..self.votes.len()).map(of_node).collect()
    }
}

impl QuorumClaim {
    /// Asks every eligible node for its vote, in a new round.
    pub(super) async fn request_votes(
        self: &Arc<Self>,
        electorate: &mut Electorate,
    ) -> RoundOutcome {
        let quorum = &self.quorum;
        let round = self.begin_round(electorate);
        let mut fan_out = BoxedFanOut::new();
        let mut outcome = RoundOutcome::new(round.clone(), quorum.members.len());
        for (node, request) in electorate.eligible.iter() {
            outcome.votes[node] = Vote::Pending;
            let vote = self.vote(&quorum.members[node], request, &round, node);
            fan_out.ask(node, Box::pin(vote));
        }
        let deadline = self.deadline();
        while votes::is_open(&outcome.votes) {
            let next = timeout_at(deadline, fan_out.next()).await;
            let Ok(Some((node, reply))) = next else { break };
            let Electorate { eligible, reports, .. } = electorate;
            let Some(value) = self.read_reply(node, reply, eligible, reports) else {
                outcome.votes[node] = Vote::Absent;
                continue;
            };
            outcome.votes[node] = if let Some(token) = read_token(&value) {
                reports.set(node, NodeReport::Answered("yes"));
                Vote::Yes(token)
            } else if let Some(rejection) = Rejection::read(&value) {
                self.count_rejection(rejection, node, electorate, &mut outcome)
            } else {
                self.reject_reply(node, "vote", reports)
            };
        }
        self.suspect_silent(&fan_out);
        for node in fan_out.pending() {
            outcome.votes[node] = Vote::Absent;
            outcome.unanswered.insert(node);
        }
        outcome.late_votes = fan_out;
        if let Poll::Uneven(token) = votes::poll(&outcome.votes) {
            match self.claim.mode() {
                // A shared grant's token only names it, and contains the node's own number.
                Mode::Shared => outcome.token = Some(token),
                _ => self.write_back(electorate, &mut outcome, token).await,
            }
        } else if let Poll::Won(token) = votes::poll(&outcome.votes) {
            outcome.token = Some(token);
        }
        outcome
    }

    fn begin_round(&self, electorate: &Electorate) -> Arc<Round> {
        let was_evicted = self.quorum.view.waiters.begin_round(&self.claim);
        let mut state = self.state();
        state.rounds += 1;
        if was_evicted {
            // To the end of the queue.
            state.arrival = None;
        }
        let arrival = *state.arrival.get_or_insert_with(|| electorate.arrival());
        let identity: Arc<str> = of_round(&self.waiter, state.rounds).into();
        let nodes = electorate.eligible.nodes();
        state.add_residue(&identity, nodes);
        if self.queues() {
            state.queued_at |= nodes;
        }
        let (proposal, arrival) = (electorate.proposal().to_string(), arrival.to_string());
        Arc::new(Round { identity, proposal, arrival })
    }

    /// Requests one node's vote.
    fn vote(
        self: &Arc<Self>,
        member: &Arc<Member>,
        request: &VoteRequest,
        round: &Arc<Round>,
        node: usize,
    ) -> impl Future<Output = Result<Value>> + Send + use<> {
        let (shared, member, round) = (self.clone(), member.clone(), round.clone());
        let record = request.record.clone();
        async move {
            let number = match shared.claim.mode() {
                Mode::Shared => (node + 1).to_string(),
                Mode::Exclusive | Mode::Permits(_) => String::new(),
            };
            let values = [
                &*record,
                &*round.identity,
                ttl_of(&shared.waiter),
                &*round.proposal,
                &*number,
                if shared.queues() { &*shared.waiter } else { "" },
                &*round.arrival,
            ];
            let values = values.map(str::as_bytes);
            let call =
                ScriptCall { script: &QUORUM.vote, keys: &shared.node_keys(), values: &values };
            member.batches.call(call).await
        }
    }

    /// The vote that a node's rejection counts as.
    fn count_rejection(
        &self,
        rejection: Rejection,
        node: usize,
        electorate: &mut Electorate,
        outcome: &mut RoundOutcome,
    ) -> Vote {
        self.record_removed(&outcome.round.identity, node);
        if rejection.is_for(self.claim.owner().reveal()) {
            // An earlier round that was not won, whose roll-back has yet to arrive: no other
            // client has the lock.
            let report = "it has yet to roll back an earlier round of this claim";
            electorate.reports.set(node, NodeReport::Answered(report));
            return Vote::Absent;
        }
        let report = "held by another client, or others are queued";
        electorate.reports.set(node, NodeReport::Answered(report));
        outcome.rejections.add(rejection);
        Vote::No
    }

    /// Collects the votes that a grant did not wait for: so each request is sent, all nodes have
    /// the lock, and where one does not is known.
    pub(super) fn collect_late_votes(
        &self,
        mut votes: BoxedFanOut<Result<Value>>,
        grant: Arc<Grant>,
    ) {
        if votes.pending().next().is_none() {
            return;
        }
        self.quorum.runtime.spawn(async move {
            while let Some((node, reply)) = votes.next().await {
                let mut possession = grant.possession();
                // A node that failed may have it.
                if let (Possession::Unconfirmed(incarnation), Ok(vote)) = (&possession[node], reply)
                {
                    possession[node] = match read_token(&vote) {
                        Some(_) => Possession::Confirmed(incarnation.clone()),
                        None => Possession::No,
                    };
                }
            }
        });
    }

    /// Writes `token`, the round's largest, back to the nodes of its majority that gave a smaller
    /// one, and wins the round once a majority has it.
    async fn write_back(
        self: &Arc<Self>,
        electorate: &mut Electorate,
        outcome: &mut RoundOutcome,
        token: u64,
    ) {
        let quorum = &self.quorum;
        let Electorate { eligible, reports, .. } = electorate;
        let mut fan_out = FanOut::new();
        let mut votes = outcome.votes.clone();
        for (node, vote) in votes.iter_mut().enumerate() {
            if let (Vote::Yes(its), Some(request)) = (*vote, eligible.get(node))
                && its < token
            {
                *vote = Vote::Pending;
                let member = &quorum.members[node];
                fan_out.ask(node, Box::pin(self.raise(member, request, &outcome.round, token)));
            }
        }
        let deadline = self.deadline();
        while votes::settled(&votes, token) == Settled::Open {
            let next = timeout_at(deadline, fan_out.next()).await;
            let Ok(Some((node, reply))) = next else { break };
            votes[node] = match self.read_reply(node, reply, eligible, reports) {
                Some(Value::Int(1)) => Vote::Yes(token),
                Some(Value::Int(0)) => Vote::No,
                Some(_) => self.reject_reply(node, "raise", reports),
                None => Vote::Absent,
            };
        }
        self.suspect_silent(&fan_out);
        if votes::settled(&votes, token) == Settled::Yes {
            outcome.token = Some(token);
        }
        outcome.votes = votes;
    }

    /// Raises one node's fencing token to the round's largest.
    fn raise(
        self: &Arc<Self>,
        member: &Arc<Member>,
        request: &VoteRequest,
        round: &Arc<Round>,
        token: u64,
    ) -> impl Future<Output = Result<Value>> + Send + use<> {
        let (shared, member, round) = (self.clone(), member.clone(), round.clone());
        let record = request.record.clone();
        async move {
            let token = token.to_string();
            let values = [&*record, &*round.identity, &*token].map(str::as_bytes);
            let call =
                ScriptCall { script: &QUORUM.raise, keys: &shared.node_keys(), values: &values };
            member.batches.call(call).await
        }
    }
}

/// The fencing token of a vote, if that is a yes.
pub(crate) fn read_token(value: &Value) -> Option<u64> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}
