//! One claim's state on the quorum, shared by its requests and the tasks that finish them.
//!
//! Each round has an identity of its own, which is never requested again once it was released: a
//! release that arrives late must not delete what a later round acquired.

use std::sync::{Arc, MutexGuard};

use fencelock_core::sync::Mutex;
use fencelock_core::{Claim, IfBusy, Result};
use redis::Value;
use tokio::time::Instant;

use crate::protocol::error::protocol_error;
use crate::protocol::identity::Keys;
use crate::redlock::node::fan_out::{BoxedFanOut, FanOut};
use crate::redlock::node::quorum::{EligibleNodes, NodeReport, NodeReports, Quorum};
use crate::redlock::node_set::NodeSet;
use crate::redlock::rules::incarnation;
use crate::redlock::rules::release_tally::ReleaseTally;
use crate::redlock::rules::token::MAX_NODES;
use crate::redlock::rules::votes::Vote;

/// One claim on a quorum.
pub(super) struct QuorumClaim {
    pub(super) quorum: Arc<Quorum>,
    pub(super) claim: Arc<Claim>,
    pub(super) keys: Keys,
    /// The claim's identity in the nodes' queues.
    pub(super) waiter: Arc<str>,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// The claim is being released: nothing is requested any more.
    pub(super) is_releasing: bool,
    pub(super) rounds: u32,
    /// When the claim first asked, on the nodes' clocks, in µs.
    pub(super) arrival: Option<u64>,
    /// Consecutive rounds that no claim won.
    pub(super) splits: u32,
    pub(super) grant: Option<Arc<Grant>>,
    pub(super) residues: Vec<RoundResidue>,
    /// The nodes in whose queues the waiter may be.
    pub(super) queued_at: NodeSet,
    pub(super) release: Option<ReleaseInFlight>,
    /// A task repeats the roll-back at nodes that have not confirmed it.
    pub(super) is_rolling_back: bool,
    pub(super) tally: ReleaseTally,
}

/// A round of which nodes may still have something.
pub(super) struct RoundResidue {
    pub(super) identity: Arc<str>,
    pub(super) nodes: NodeSet,
    /// The round was not won: it is never requested again.
    pub(super) is_abandoned: bool,
}

/// What a won round was granted.
pub(super) struct Grant {
    pub(super) identity: Arc<str>,
    pub(super) token: String,
    /// By node.
    pub(super) possession: Mutex<Vec<Possession>>,
}

/// Whether a node has the grant, as far as is known. Where it had the grant in this incarnation, the
/// grant is not reinstalled: an operator may have removed it.
pub(super) enum Possession {
    No,
    /// The node was asked for it in this incarnation, and its reply was not waited for.
    Unconfirmed(Arc<str>),
    /// The node confirmed it in this incarnation.
    Confirmed(Arc<str>),
}

/// A release under way.
pub(super) struct ReleaseInFlight {
    pub(super) fan_out: BoxedFanOut<Result<bool>>,
    /// What is released; request `identity * NODE_STRIDE + node` releases one of them at one node.
    pub(super) identities: Vec<Arc<str>>,
}

/// See [`ReleaseInFlight::identities`].
pub(super) const NODE_STRIDE: usize = MAX_NODES + 1;

impl State {
    /// Records that `nodes` may have something of the round.
    pub(super) fn add_residue(&mut self, identity: &Arc<str>, nodes: NodeSet) {
        match self.residues.iter_mut().find(|residue| residue.identity == *identity) {
            Some(residue) => residue.nodes |= nodes,
            None => {
                let identity = identity.clone();
                self.residues.push(RoundResidue { identity, nodes, is_abandoned: false });
            }
        }
    }
}

impl Grant {
    pub(super) fn possession(&self) -> MutexGuard<'_, Vec<Possession>> {
        self.possession.lock()
    }

    /// Whether the grant may be reinstalled on `node` in this incarnation.
    pub(super) fn may_reinstall(&self, node: usize, incarnation: &str) -> bool {
        match &self.possession()[node] {
            Possession::No => true,
            Possession::Unconfirmed(known) | Possession::Confirmed(known) => {
                **known != *incarnation
            }
        }
    }
}

impl QuorumClaim {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The state, unless the claim is being released; it cannot start to be while this guard lives.
    pub(super) fn unless_releasing(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.state();
        (!state.is_releasing).then_some(state)
    }

    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.quorum.node_timeout
    }

    pub(super) fn queues(&self) -> bool {
        self.claim.if_busy() == IfBusy::Queue
    }

    /// The lock's keys and that of the node's incarnation record.
    pub(super) fn node_keys(&self) -> [&str; 4] {
        let [lock, queue, token] = self.keys.all();
        [lock, queue, token, incarnation::KEY]
    }

    /// The value a node replied; for an error or a rejection to take part `None`, with the reason in
    /// `reports`.
    pub(super) fn read_reply(
        &self,
        node: usize,
        reply: Result<Value>,
        eligible: &EligibleNodes,
        reports: &mut NodeReports,
    ) -> Option<Value> {
        let member = &self.quorum.members[node];
        match reply {
            Ok(Value::Int(-1)) => {
                eligible.get(node).into_iter().for_each(|sent| member.incarnation_changed(sent));
                let report = "it has lost its data, or belongs to another set of nodes";
                reports.set(node, NodeReport::Answered(report));
                None
            }
            Ok(value) => {
                member.record_reply(self.quorum.now());
                Some(value)
            }
            Err(error) => {
                reports.set(node, NodeReport::Failed(error));
                None
            }
        }
    }

    /// Handles a reply that `script` never gives.
    pub(super) fn reject_reply(
        &self,
        node: usize,
        script: &str,
        reports: &mut NodeReports,
    ) -> Vote {
        self.quorum.members[node].connection().mark_broken("it sent an unexpected reply");
        reports.set(node, NodeReport::Failed(protocol_error(script)));
        Vote::Absent
    }

    /// Suspects the nodes that did not reply while others did.
    pub(super) fn suspect_silent<F: Future + ?Sized>(&self, fan_out: &FanOut<F>) {
        let quorum = &self.quorum;
        fan_out.pending().for_each(|node| quorum.members[node % NODE_STRIDE].suspect(quorum.now()));
    }

    /// Records that `node` has nothing of the round.
    pub(super) fn record_removed(&self, identity: &Arc<str>, node: usize) {
        let mut state = self.state();
        if let Some(residue) =
            state.residues.iter_mut().find(|residue| residue.identity == *identity)
        {
            residue.nodes.remove(node);
        }
        // The last one stays: the next release is about it.
        let last = state.residues.last().map(|residue| residue.identity.clone());
        state.residues.retain(|residue| {
            !residue.nodes.is_empty() || Some(&residue.identity) == last.as_ref()
        });
    }
}
