//! One round of votes: all nodes are asked at once, and a majority decides.

use std::sync::Arc;

use fencelock_core::{Mode, Result};
use redis::Value;
use tokio::time::timeout_at;

use super::fan_out::{BoxedFanOut, FanOut};
use super::quorum::{Electorate, EligibleNodes, NodeReport};
use super::rejections::{Rejection, Rejections};
use super::shared::{Grant, Possession, QuorumClaim};
use super::votes::{self, Poll, Settled, Vote};
use crate::protocol::identity::of_round;

/// One round's own.
pub(super) struct Round {
    pub(super) identity: Arc<str>,
    pub(super) proposal: String,
    pub(super) arrival: String,
}

/// What a round came to.
pub(super) struct RoundOutcome {
    pub(super) round: Arc<Round>,
    pub(super) votes: Vec<Vote>,
    pub(super) rejections: Rejections,
    /// The nodes whose answers were not waited for, as bits.
    pub(super) unanswered: u16,
    /// Their questions: dropped, some would not even be sent.
    pub(super) late: BoxedFanOut<Result<Value>>,
    /// If it was won.
    pub(super) token: Option<u64>,
}

impl RoundOutcome {
    fn new(round: Arc<Round>, nodes: usize) -> RoundOutcome {
        let votes = vec![Vote::Absent; nodes];
        RoundOutcome {
            round,
            votes,
            rejections: Rejections::default(),
            unanswered: 0,
            late: BoxedFanOut::new(),
            token: None,
        }
    }

    /// Who has it, as far as is known.
    pub(super) fn possession(&self, eligible: &EligibleNodes) -> Vec<Possession> {
        let had = (0..self.votes.len()).map(|node| match eligible.of(node) {
            Some(vote_request) if matches!(self.votes[node], Vote::Yes(_)) => {
                Possession::Confirmed(vote_request.incarnation.clone())
            }
            Some(vote_request) if self.unanswered & 1 << node != 0 => {
                Possession::Unconfirmed(vote_request.incarnation.clone())
            }
            _ => Possession::No,
        });
        had.collect()
    }
}

impl QuorumClaim {
    /// Asks all of `electorate` for their votes, in a round of its own.
    pub(super) async fn request_votes(
        self: &Arc<Self>,
        electorate: &mut Electorate,
    ) -> RoundOutcome {
        let quorum = &self.store.quorum;
        let was_evicted = quorum.view.waiters.begin_round(&self.claim);
        let round = {
            let mut state = self.state();
            state.rounds += 1;
            if was_evicted {
                // To the end of the queue.
                state.arrival = None;
            }
            let arrival = *state.arrival.get_or_insert_with(|| electorate.arrival());
            let identity: Arc<str> = of_round(&self.waiter, state.rounds).into();
            state.add_residue(&identity, electorate.eligible.bits());
            if self.queues() {
                state.queued_at |= electorate.eligible.bits();
            }
            let (proposal, arrival) = (electorate.proposal().to_string(), arrival.to_string());
            Arc::new(Round { identity, proposal, arrival })
        };
        let mut fan_out = BoxedFanOut::new();
        let mut outcome = RoundOutcome::new(round.clone(), quorum.members.len());
        for (node, vote_request) in electorate.eligible.asked() {
            outcome.votes[node] = Vote::Pending;
            fan_out
                .ask(node, Box::pin(self.vote(&quorum.members[node], vote_request, &round, node)));
        }
        let deadline = self.deadline();
        while votes::is_open(&outcome.votes) {
            let Ok(Some((node, answer))) = timeout_at(deadline, fan_out.next()).await else {
                break;
            };
            let Some(value) =
                self.read(node, answer, &electorate.eligible, &mut electorate.reports)
            else {
                outcome.votes[node] = Vote::Absent;
                continue;
            };
            outcome.votes[node] = if let Some(token) = read_token(&value) {
                electorate.reports.set(node, NodeReport::Answered("yes"));
                Vote::Yes(token)
            } else if let Some(rejection) = Rejection::read(&value) {
                self.count_rejection(rejection, node, electorate, &mut outcome)
            } else {
                self.reject_reply(node, "vote", &mut electorate.reports)
            };
        }
        self.suspect(&fan_out);
        for node in fan_out.pending() {
            outcome.votes[node] = Vote::Absent;
            outcome.unanswered |= 1 << node;
        }
        outcome.late = fan_out;
        if let Poll::Uneven(token) = votes::poll(&outcome.votes) {
            match self.claim.mode() {
                // A shared grant's token only names it, and a node's own number is in it.
                Mode::Shared => outcome.token = Some(token),
                _ => self.write_back(electorate, &mut outcome, token).await,
            }
        } else if let Poll::Won(token) = votes::poll(&outcome.votes) {
            outcome.token = Some(token);
        }
        outcome
    }

    /// What a node's rejection counts for.
    fn count_rejection(
        &self,
        rejection: Rejection,
        node: usize,
        electorate: &mut Electorate,
        to: &mut RoundOutcome,
    ) -> Vote {
        self.record_freed(&to.round.identity, node);
        if rejection.is_for(self.claim.owner().reveal()) {
            // A round that nobody won, and its roll_back has yet to arrive: nobody else has it.
            electorate
                .reports
                .set(node, NodeReport::Answered("an earlier question has yet to be taken back"));
            return Vote::Absent;
        }
        electorate.reports.set(node, NodeReport::Answered("held by somebody else, or others wait"));
        to.rejections.add(rejection);
        Vote::No
    }

    /// Listens to the votes that a grant did not wait for: so each is sent, and the lock is at all
    /// nodes, and it is known where it is not.
    pub(super) fn collect_late_votes(
        &self,
        mut votes: BoxedFanOut<Result<Value>>,
        grant: Arc<Grant>,
    ) {
        if votes.pending().next().is_none() {
            return;
        }
        self.store.quorum.runtime.spawn(async move {
            while let Some((node, answer)) = votes.next().await {
                let mut possession = grant.possession();
                // A node that has failed may have it.
                if let (Possession::Unconfirmed(incarnation), Ok(vote)) = (&had[node], answer) {
                    had[node] = match read_token(&vote) {
                        Some(_) => Possession::Confirmed(incarnation.clone()),
                        None => Possession::No,
                    };
                }
            }
        });
    }

    /// Has a majority know `token`, the largest that a node of it gave.
    async fn write_back(
        self: &Arc<Self>,
        electorate: &mut Electorate,
        outcome: &mut RoundOutcome,
        token: u64,
    ) {
        let quorum = &self.store.quorum;
        let mut fan_out = FanOut::new();
        let mut votes = outcome.votes.clone();
        for (node, vote) in votes.iter_mut().enumerate() {
            if let (Vote::Yes(its), Some(vote_request)) = (*vote, electorate.eligible.of(node))
                && its < token
            {
                *vote = Vote::Pending;
                let member = &quorum.members[node];
                fan_out
                    .ask(node, Box::pin(self.raise(member, vote_request, &outcome.round, token)));
            }
        }
        let deadline = self.deadline();
        while votes::settled(&votes, token) == Settled::Open {
            let Ok(Some((node, answer))) = timeout_at(deadline, fan_out.next()).await else {
                break;
            };
            votes[node] =
                match self.read(node, answer, &electorate.eligible, &mut electorate.reports) {
                    Some(Value::Int(1)) => Vote::Yes(token),
                    Some(Value::Int(0)) => Vote::No,
                    Some(_) => self.reject_reply(node, "raise", &mut electorate.reports),
                    None => Vote::Absent,
                };
        }
        self.suspect(&fan_out);
        if votes::settled(&votes, token) == Settled::Yes {
            outcome.token = Some(token);
        }
        outcome.votes = votes;
    }
}

pub(crate) fn read_token(value: &Value) -> Option<u64> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}
