//! One round of votes: all nodes are asked at once, and a majority decides.

use std::sync::Arc;

use fencelock_core::{Mode, Result};
use redis::Value;
use tokio::time::timeout_at;

use super::desk::{Desk, Grant, Had};
use super::fan::{Fan, Kept};
use super::quorum::{Ballots, Slate, Word};
use super::refusals::{Refusal, Refusals};
use super::votes::{self, Poll, Settled, Vote};
use crate::protocol::identity::of_round;

/// One round's own.
pub(super) struct Round {
    pub(super) identity: Arc<str>,
    pub(super) proposal: String,
    pub(super) arrival: String,
}

/// What a round came to.
pub(super) struct Outcome {
    pub(super) round: Arc<Round>,
    pub(super) votes: Vec<Vote>,
    pub(super) refusals: Refusals,
    /// The nodes whose answers were not waited for, as bits.
    pub(super) unheard: u16,
    /// Their questions: dropped, some would not even be sent.
    pub(super) late: Kept<Result<Value>>,
    /// If it was won.
    pub(super) token: Option<u64>,
}

impl Outcome {
    fn new(round: Arc<Round>, nodes: usize) -> Outcome {
        let votes = vec![Vote::Absent; nodes];
        Outcome {
            round,
            votes,
            refusals: Refusals::default(),
            unheard: 0,
            late: Kept::new(),
            token: None,
        }
    }

    /// Who has it, as far as is known.
    pub(super) fn had(&self, ballots: &Ballots) -> Vec<Had> {
        let had = (0..self.votes.len()).map(|node| match ballots.of(node) {
            Some(ballot) if matches!(self.votes[node], Vote::Yes(_)) => {
                Had::Surely(ballot.life.clone())
            }
            Some(ballot) if self.unheard & 1 << node != 0 => Had::Perhaps(ballot.life.clone()),
            _ => Had::Never,
        });
        had.collect()
    }
}

impl Desk {
    /// Asks all of `slate` for their votes, in a round of its own.
    pub(super) async fn ask_for_votes(self: &Arc<Self>, slate: &mut Slate) -> Outcome {
        let quorum = &self.store.quorum;
        let was_sent_away = quorum.circle.waiters.asks(&self.claim);
        let round = {
            let mut state = self.state();
            state.rounds += 1;
            if was_sent_away {
                // To the end of the queue.
                state.arrival = None;
            }
            let arrival = *state.arrival.get_or_insert_with(|| slate.arrival());
            let identity: Arc<str> = of_round(&self.waiter, state.rounds).into();
            state.owe(&identity, slate.ballots.bits());
            if self.queues() {
                state.queued_at |= slate.ballots.bits();
            }
            let (proposal, arrival) = (slate.proposal().to_string(), arrival.to_string());
            Arc::new(Round { identity, proposal, arrival })
        };
        let mut fan = Kept::new();
        let mut outcome = Outcome::new(round.clone(), quorum.members.len());
        for (node, ballot) in slate.ballots.asked() {
            outcome.votes[node] = Vote::Pending;
            fan.ask(node, Box::pin(self.vote(&quorum.members[node], ballot, &round, node)));
        }
        let deadline = self.deadline();
        while votes::is_open(&outcome.votes) {
            let Ok(Some((node, answer))) = timeout_at(deadline, fan.next()).await else { break };
            let Some(value) = self.read(node, answer, &slate.ballots, &mut slate.words) else {
                outcome.votes[node] = Vote::Absent;
                continue;
            };
            outcome.votes[node] = if let Some(fence) = read_fence(&value) {
                slate.words.set(node, Word::Said("yes"));
                Vote::Yes(fence)
            } else if let Some(refusal) = Refusal::read(&value) {
                self.refused(refusal, node, slate, &mut outcome)
            } else {
                self.strange(node, "vote", &mut slate.words)
            };
        }
        self.doubt(&fan);
        for node in fan.pending() {
            outcome.votes[node] = Vote::Absent;
            outcome.unheard |= 1 << node;
        }
        outcome.late = fan;
        if let Poll::Uneven(fence) = votes::poll(&outcome.votes) {
            match self.claim.mode() {
                // A shared grant's token only names it, and a node's own number is in it.
                Mode::Shared => outcome.token = Some(fence),
                _ => self.write_back(slate, &mut outcome, fence).await,
            }
        } else if let Poll::Won(fence) = votes::poll(&outcome.votes) {
            outcome.token = Some(fence);
        }
        outcome
    }

    /// What a node's refusal counts for.
    fn refused(&self, refusal: Refusal, node: usize, slate: &mut Slate, to: &mut Outcome) -> Vote {
        self.note_freed(&to.round.identity, node);
        if refusal.is_for(self.claim.owner().reveal()) {
            // A round that nobody won, and its retreat has yet to arrive: nobody else has it.
            slate.words.set(node, Word::Said("an earlier question has yet to be taken back"));
            return Vote::Absent;
        }
        slate.words.set(node, Word::Said("held by somebody else, or others wait"));
        to.refusals.add(refusal);
        Vote::No
    }

    /// Listens to the votes that a grant did not wait for: so each is sent, and the lock is at all
    /// nodes, and it is known where it is not.
    pub(super) fn hear_late(&self, mut votes: Kept<Result<Value>>, grant: Arc<Grant>) {
        if votes.pending().next().is_none() {
            return;
        }
        self.store.quorum.runtime.spawn(async move {
            while let Some((node, answer)) = votes.next().await {
                let mut had = grant.had();
                // A node that has failed may have it.
                if let (Had::Perhaps(life), Ok(vote)) = (&had[node], answer) {
                    had[node] = match read_fence(&vote) {
                        Some(_) => Had::Surely(life.clone()),
                        None => Had::Never,
                    };
                }
            }
        });
    }

    /// Has a majority know `fence`, the largest that a node of it gave.
    async fn write_back(self: &Arc<Self>, slate: &mut Slate, outcome: &mut Outcome, fence: u64) {
        let quorum = &self.store.quorum;
        let mut fan = Fan::new();
        let mut votes = outcome.votes.clone();
        for (node, vote) in votes.iter_mut().enumerate() {
            if let (Vote::Yes(its), Some(ballot)) = (*vote, slate.ballots.of(node))
                && its < fence
            {
                *vote = Vote::Pending;
                let member = &quorum.members[node];
                fan.ask(node, Box::pin(self.raise(member, ballot, &outcome.round, fence)));
            }
        }
        let deadline = self.deadline();
        while votes::settled(&votes, fence) == Settled::Open {
            let Ok(Some((node, answer))) = timeout_at(deadline, fan.next()).await else { break };
            votes[node] = match self.read(node, answer, &slate.ballots, &mut slate.words) {
                Some(Value::Int(1)) => Vote::Yes(fence),
                Some(Value::Int(0)) => Vote::No,
                Some(_) => self.strange(node, "raise", &mut slate.words),
                None => Vote::Absent,
            };
        }
        self.doubt(&fan);
        if votes::settled(&votes, fence) == Settled::Yes {
            outcome.token = Some(fence);
        }
        outcome.votes = votes;
    }
}

pub(crate) fn read_fence(value: &Value) -> Option<u64> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}
