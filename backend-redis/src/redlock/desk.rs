//! What a claim's seat knows, and the questions that it asks the nodes.
//!
//! Each round has an identity of its own, which is never asked for again once it was given back: a
//! release that arrives late must not delete what a later round has.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencelock_core::{Claim, IfBusy, Mode, Result};
use redis::Value;
use tokio::time::Instant;

use super::backend::QuorumStore;
use super::fan_out::FanOut;
use super::member::Member;
use super::monitor::VoteRequest;
use super::quorum::{EligibleNodes, NodeReport, NodeReports};
use super::release::{ReleaseInFlight, ReleaseTally};
use super::round::Round;
use super::votes::Vote;
use crate::protocol::call::ScriptCall;
use crate::protocol::error::protocol_error;
use crate::protocol::identity::{Keys, ttl_of};
use crate::protocol::script::QUORUM;

/// What the seat shares with the tasks that finish its work.
pub(crate) struct QuorumClaim {
    pub(super) store: Arc<QuorumStore>,
    pub(super) claim: Arc<Claim>,
    pub(super) keys: Keys,
    /// As it stands in the nodes' queues.
    pub(super) waiter: Arc<str>,
    pub(super) state: Mutex<State>,
}

/// What changes.
#[derive(Default)]
pub(super) struct State {
    /// The claim gives back what it has: nothing is asked for any more.
    pub(super) is_over: bool,
    pub(super) rounds: u32,
    /// When it first came, on the nodes' clocks, in µs.
    pub(super) arrival: Option<u64>,
    /// Rounds in a row that nobody won.
    pub(super) splits: u32,
    pub(super) grant: Option<Arc<Grant>>,
    pub(super) residues: Vec<RoundResidue>,
    /// The nodes in whose queues the waiter may stand, as bits.
    pub(super) queued_at: u16,
    pub(super) release: Option<ReleaseInFlight>,
    /// A task repeats what nodes did not hear of rounds that are over.
    pub(super) is_rolling_back: bool,
    pub(super) tally: ReleaseTally,
}

/// A round that nodes may still have something of.
pub(super) struct RoundResidue {
    pub(super) identity: Arc<str>,
    /// As bits.
    pub(super) nodes: u16,
    /// Nobody won it: it is never asked for again.
    pub(super) is_over: bool,
}

/// What was granted.
pub(super) struct Grant {
    pub(super) identity: Arc<str>,
    pub(super) token: String,
    /// By node.
    pub(super) possession: Mutex<Vec<Possession>>,
}

/// Whether a node has what was granted, as far as is known. Where it was in this incarnation of the node's
/// data it is not reinstalled again: a person may have taken it away.
pub(super) enum Possession {
    Never,
    /// It was asked for it in this incarnation, and its answer was not waited for.
    Perhaps(Arc<str>),
    /// It has said so in this incarnation.
    Surely(Arc<str>),
}

/// A fan_out's index: which identity, at which node.
pub(super) const NODES: usize = 16;

impl State {
    /// These nodes may have something of the round.
    pub(super) fn owe(&mut self, identity: &Arc<str>, nodes: u16) {
        match self.residues.iter_mut().find(|residue| residue.identity == *identity) {
            Some(residue) => residue.nodes |= nodes,
            None => {
                let identity = identity.clone();
                self.residues.push(RoundResidue { identity, nodes, is_over: false });
            }
        }
    }
}

impl Grant {
    pub(super) fn possession(&self) -> MutexGuard<'_, Vec<Possession>> {
        self.had.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it may be reinstalled on `node` in this incarnation.
    pub(super) fn may_reinstall(&self, node: usize, incarnation: &str) -> bool {
        match &self.possession()[node] {
            Possession::No => true,
            Possession::Unconfirmed(had) | Possession::Confirmed(had) => {
                &**possession != incarnation
            }
        }
    }
}

impl QuorumClaim {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unless the claim gives back what it has; while this is kept it does not begin to.
    pub(super) fn unless_releasing(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.state();
        (!state.is_over).then_some(state)
    }

    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.store.quorum.node_timeout
    }

    pub(super) fn queues(&self) -> bool {
        self.claim.if_busy() == IfBusy::Queue
    }

    /// One node's vote.
    pub(super) fn vote(
        self: &Arc<Self>,
        member: &Arc<Member>,
        vote_request: &VoteRequest,
        round: &Arc<Round>,
        node: usize,
    ) -> impl Future<Output = Result<Value>> + Send + use<> {
        let (shared, member, round) = (self.clone(), member.clone(), round.clone());
        let record = vote_request.record.clone();
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
                ScriptCall { script: &QUORUM.vote, keys: &shared.keys.of_node(), values: &values };
            member.batches.call(call).await
        }
    }

    /// Writes the round's largest token back to one node.
    pub(super) fn raise(
        self: &Arc<Self>,
        member: &Arc<Member>,
        vote_request: &VoteRequest,
        round: &Arc<Round>,
        token: u64,
    ) -> impl Future<Output = Result<Value>> + Send + use<> {
        let (shared, member, round) = (self.clone(), member.clone(), round.clone());
        let record = vote_request.record.clone();
        async move {
            let token = token.to_string();
            let values = [&*record, &*round.identity, &*token].map(str::as_bytes);
            let call =
                ScriptCall { script: &QUORUM.raise, keys: &shared.keys.of_node(), values: &values };
            member.batches.call(call).await
        }
    }

    /// One node's part of an extension.
    pub(super) async fn extend(
        &self,
        member: &Arc<Member>,
        vote_request: &VoteRequest,
        grant: &Grant,
        ttl: &str,
        reinstall: &str,
    ) -> Result<Value> {
        let values = [&*vote_request.record, &*grant.identity, ttl, &*grant.token, reinstall];
        let values = values.map(str::as_bytes);
        let call =
            ScriptCall { script: &QUORUM.extend, keys: &self.keys.of_node(), values: &values };
        member.batches.call(call).await
    }

    /// What a node answered, if it is an answer; else `reports` says what it is.
    pub(super) fn read(
        &self,
        node: usize,
        answer: Result<Value>,
        eligible: &EligibleNodes,
        reports: &mut NodeReports,
    ) -> Option<Value> {
        let quorum = &self.store.quorum;
        let member = &quorum.members[node];
        match answer {
            Ok(Value::Int(-1)) => {
                eligible.of(node).into_iter().for_each(|asked| member.incarnation_changed(asked));
                reports.set(
                    node,
                    NodeReport::Answered("it has lost its data, or is of another set of nodes"),
                );
                None
            }
            Ok(value) => {
                member.heard(quorum.now());
                Some(value)
            }
            Err(error) => {
                reports.set(node, NodeReport::Failed(error));
                None
            }
        }
    }

    /// An answer that no script gives.
    pub(super) fn reject_reply(
        &self,
        node: usize,
        script: &str,
        reports: &mut NodeReports,
    ) -> Vote {
        self.store.quorum.members[node].connection().mark_broken("it gave an unexpected reply");
        reports.set(node, NodeReport::Failed(protocol_error(script)));
        Vote::Absent
    }

    /// Those who have not answered when others have may have fallen silent.
    pub(super) fn suspect<F: Future + ?Sized>(&self, fan_out: &FanOut<F>) {
        let quorum = &self.store.quorum;
        fan_out.pending().for_each(|node| quorum.members[node % NODES].suspect(quorum.now()));
    }

    /// A node is certain to have nothing of the round.
    pub(super) fn record_freed(&self, identity: &Arc<str>, node: usize) {
        let mut state = self.state();
        if let Some(residue) =
            state.residues.iter_mut().find(|residue| residue.identity == *identity)
        {
            residue.nodes &= !(1 << node);
        }
        // The last one stays: the next release is about it.
        let last = state.residues.last().map(|residue| residue.identity.clone());
        state
            .residues
            .retain(|residue| residue.nodes != 0 || Some(&residue.identity) == last.as_ref());
    }
}
