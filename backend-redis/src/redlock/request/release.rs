//! Releases: of rounds that were not won, of what was granted, and of queue entries, at every node
//! that may have something of them.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::Result;
use futures_util::TryFutureExt;

use super::state::{NODE_STRIDE, QuorumClaim, ReleaseInFlight, RoundResidue};
use crate::redlock::node::fan_out::BoxedFanOut;
use crate::redlock::node::member::Member;
use crate::redlock::node::pending_releases::{PendingRelease, ReleaseKind, release_round};
use crate::redlock::node_set::NodeSet;
use crate::redlock::rules::release_tally::WasHeld;

/// How long a node keeps the queue entry of a waiter whose client is silent.
const WAITER_TTL: Duration = Duration::from_secs(5);

/// How soon a roll-back that a node has not confirmed is repeated.
const ROLLBACK_RETRY: Duration = Duration::from_millis(100);

impl QuorumClaim {
    /// Releases what rounds acquired that were not won; the waiter stays queued if the claim
    /// queues. The requests are sent before this returns, so that they arrive before the next
    /// round's.
    pub(super) async fn roll_back(self: &Arc<Self>) {
        {
            let mut state = self.state();
            state.residues.iter_mut().for_each(|residue| residue.is_abandoned = true);
            if state.residues.iter().all(|residue| residue.nodes.is_empty()) {
                return;
            }
        }
        let mut fan_out = self.rollback_requests();
        let is_empty = fan_out.pending().next().is_none();
        if is_empty || !fan_out.send(|| self.unless_releasing()).await {
            return;
        }
        let repeats = !std::mem::replace(&mut self.state().is_rolling_back, true);
        let shared = self.clone();
        self.quorum.runtime.spawn(async move {
            shared.collect_rollback(&mut fan_out).await;
            // One task for each claim is enough.
            if repeats {
                shared.repeat_rollback().await;
                shared.state().is_rolling_back = false;
            }
        });
    }

    async fn collect_rollback(&self, fan_out: &mut BoxedFanOut<Result<Arc<str>>>) {
        while let Some((node, reply)) = fan_out.next().await {
            if let Ok(identity) = reply {
                self.record_removed(&identity, node);
            }
        }
    }

    /// Repeats the roll-back at nodes that have not confirmed it, until they have or the rounds
    /// have expired.
    async fn repeat_rollback(self: &Arc<Self>) {
        let expires = self.quorum.now() + self.claim.ttl();
        loop {
            tokio::time::sleep(ROLLBACK_RETRY).await;
            let mut fan_out = self.rollback_requests();
            let is_done = fan_out.pending().next().is_none() || self.quorum.now() >= expires;
            // What is left of earlier rounds is released with the grant. A claim that has left its
            // queues must not return to them.
            let is_wanted = || self.unless_releasing().filter(|state| state.grant.is_none());
            if is_done || !fan_out.send(is_wanted).await {
                return;
            }
            self.collect_rollback(&mut fan_out).await;
        }
    }

    /// The requests of a roll-back, each with the identity that it releases for its result.
    fn rollback_requests(self: &Arc<Self>) -> BoxedFanOut<Result<Arc<str>>> {
        let mut fan_out = BoxedFanOut::new();
        let mut state = self.state();
        let unreachable = self.quorum.unreachable();
        for residue in state.residues.iter_mut().filter(|residue| residue.is_abandoned) {
            self.defer_to_unreachable(residue, NodeSet::default(), unreachable);
        }
        let arrival = state.arrival.filter(|_| self.queues());
        for residue in state.residues.iter().filter(|residue| residue.is_abandoned) {
            for node in residue.nodes.iter() {
                let member = self.quorum.members[node].clone();
                let release = self.clone().release_at(member, &residue.identity, arrival);
                let identity = residue.identity.clone();
                fan_out.ask(node, Box::pin(release.map_ok(|_| identity)));
            }
        }
        fan_out
    }

    /// Starts the release of everything that nodes may have. From the first call on, nothing is
    /// requested any more.
    pub(super) async fn release_all(self: &Arc<Self>) -> ReleaseInFlight {
        let quorum = &self.quorum;
        let mut release = ReleaseInFlight { fan_out: BoxedFanOut::new(), identities: Vec::new() };
        {
            let mut state = self.state();
            state.is_releasing = true;
            let last = state.residues.len().saturating_sub(1);
            let granted = state.grant.as_ref().map(|grant| grant.identity.clone());
            let mut asked = NodeSet::default();
            for (index, residue) in state.residues.iter().enumerate() {
                // The last one also removes the waiter from the queues.
                let queued_at = if index == last { state.queued_at } else { NodeSet::default() };
                release.identities.push(residue.identity.clone());
                if granted.as_ref() == Some(&residue.identity) {
                    asked = residue.nodes;
                }
                for node in (residue.nodes | queued_at).iter() {
                    let member = quorum.members[node].clone();
                    let at_node = self.clone().release_at(member, &residue.identity, None);
                    release.fan_out.ask(index * NODE_STRIDE + node, Box::pin(at_node));
                }
            }
            state.tally.ask(asked);
        }
        // Under the lock, so that no extension is sent after it.
        release.fan_out.send(|| Some(self.state())).await;
        release
    }

    /// Removes a round from a node; with an `arrival` its waiter stays queued.
    fn release_at(
        self: Arc<Self>,
        member: Arc<Member>,
        identity: &Arc<str>,
        arrival: Option<u64>,
    ) -> impl Future<Output = Result<bool>> + Send + use<> {
        let identity = identity.clone();
        async move {
            let waiter = if self.queues() { &*self.waiter } else { "" };
            let arrival = arrival.map(|arrival| arrival.to_string());
            let kind = arrival.as_deref().map_or(ReleaseKind::Leave, ReleaseKind::KeepWaiting);
            release_round(&member.batches, &self.keys, identity.as_bytes(), waiter, kind).await
        }
    }

    /// Records a node's reply to a release.
    pub(super) fn record_release(&self, node: usize, identity: &Arc<str>, had_it: bool) {
        let quorum = &self.quorum;
        quorum.members[node].record_reply(quorum.now());
        self.record_removed(identity, node);
        let mut state = self.state();
        state.queued_at.remove(node);
        if state.grant.as_ref().is_some_and(|grant| grant.identity == *identity) {
            state.tally.record(node, had_it);
        }
    }

    /// The result of the release: whether everything is released, and whether the lock was held.
    /// Unreachable nodes are not waited for while a majority is reachable: their releases are sent
    /// when they are back.
    pub(super) fn settle_release(&self) -> (bool, WasHeld) {
        let quorum = &self.quorum;
        let unreachable = quorum.unreachable();
        let mut state = self.state();
        if unreachable.len() < quorum.majority() {
            let last = state.residues.last().map(|residue| residue.identity.clone());
            let queued_at = std::mem::take(&mut state.queued_at);
            state.queued_at = queued_at - unreachable;
            for residue in &mut state.residues {
                let is_last = Some(&residue.identity) == last.as_ref();
                let queued_at = if is_last { queued_at } else { NodeSet::default() };
                self.defer_to_unreachable(residue, queued_at, unreachable);
            }
        }
        let is_done = state.queued_at.is_empty()
            && state.residues.iter().all(|residue| residue.nodes.is_empty());
        let silent = if is_done { unreachable & state.tally.asked() } else { NodeSet::default() };
        (is_done, state.tally.was_held(quorum.members.len(), silent))
    }

    /// Defers what `unreachable` nodes have of the round, or of its waiter in their queues, until
    /// they are back.
    fn defer_to_unreachable(
        &self,
        residue: &mut RoundResidue,
        queued_at: NodeSet,
        unreachable: NodeSet,
    ) {
        for node in ((residue.nodes | queued_at) & unreachable).iter() {
            self.quorum.members[node].defer_release(PendingRelease {
                keys: self.keys.clone(),
                identity: residue.identity.clone(),
                waiter: self.waiter.clone(),
                expires: self.quorum.now() + self.claim.ttl().max(WAITER_TTL),
            });
        }
        residue.nodes -= unreachable;
    }
}
