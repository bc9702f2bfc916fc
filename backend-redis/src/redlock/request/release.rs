//! Releases: of rounds that were not won, of what was granted, and of queue entries, at every node
//! that may have something of them.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::Result;

use super::state::{Phase, QuorumClaim, ReleaseRequests, RoundResidue, State};
use crate::redlock::node::fan_out::FanOut;
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
            if let Phase::Voting(_) = state.phase {
                state.phase = Phase::Idle;
            }
            if state.residues.is_empty() {
                return;
            }
        }
        let mut requests = self.rollback_requests();
        if requests.is_empty() || !requests.send(|| self.while_acquiring()).await {
            return;
        }
        let repeats = !std::mem::replace(&mut self.state().is_rolling_back, true);
        let shared = self.clone();
        self.quorum.runtime.spawn(async move {
            shared.collect_rollback(&mut requests).await;
            // One task for each claim is enough.
            if repeats {
                shared.repeat_rollback().await;
                shared.state().is_rolling_back = false;
            }
        });
    }

    /// The state, while rounds may begin and be rolled back: what is left of them is released with
    /// the grant, and a claim that has left its queues must not return to them.
    fn while_acquiring(&self) -> Option<impl Sized> {
        Some(self.state()).filter(|state| matches!(state.phase, Phase::Idle | Phase::Voting(_)))
    }

    async fn collect_rollback(&self, requests: &mut ReleaseRequests) {
        while let Some((node, reply)) = requests.next().await {
            if let Ok((identity, _)) = reply {
                self.state().rolled_back(&identity, node);
            }
        }
    }

    /// Repeats the roll-back at nodes that have not confirmed it, until they have or the rounds
    /// have expired.
    async fn repeat_rollback(self: &Arc<Self>) {
        let expires = self.quorum.now() + self.claim.ttl();
        loop {
            tokio::time::sleep(ROLLBACK_RETRY).await;
            let mut requests = self.rollback_requests();
            let is_done = requests.is_empty() || self.quorum.now() >= expires;
            if is_done || !requests.send(|| self.while_acquiring()).await {
                return;
            }
            self.collect_rollback(&mut requests).await;
        }
    }

    /// The requests of a roll-back to the nodes that can be reached.
    fn rollback_requests(self: &Arc<Self>) -> ReleaseRequests {
        let mut state = self.state();
        self.defer_to_unreachable(&mut state, self.quorum.unreachable(), Phase::abandons);
        let State { phase, residues, arrival, .. } = &*state;
        let abandoned = residues.iter().filter(|residue| phase.abandons(residue));
        self.release_requests(abandoned, arrival.filter(|_| self.queues()))
    }

    /// Starts the release of everything that nodes may have. From the first call on, nothing is
    /// requested any more.
    pub(super) async fn release_all(self: &Arc<Self>) -> ReleaseRequests {
        let mut requests = {
            let mut state = self.state();
            state.begin_release(&self.waiter);
            self.release_requests(&state.residues, None)
        };
        // Under the lock, so that no extension is sent after it.
        requests.send(|| Some(self.state())).await;
        requests
    }

    fn release_requests<'a>(
        self: &Arc<Self>,
        residues: impl IntoIterator<Item = &'a RoundResidue>,
        arrival: Option<u64>,
    ) -> ReleaseRequests {
        let mut requests = FanOut::new();
        for RoundResidue { identity, nodes } in residues {
            for node in nodes.iter() {
                requests.ask(node, self.clone().release_at(node, identity.clone(), arrival));
            }
        }
        requests
    }

    /// Removes a round from a node; with an `arrival` its waiter stays queued.
    async fn release_at(
        self: Arc<Self>,
        node: usize,
        identity: Arc<str>,
        arrival: Option<u64>,
    ) -> Result<(Arc<str>, bool)> {
        let batches = &self.quorum.members[node].batches;
        let waiter = if self.queues() { &*self.waiter } else { "" };
        let arrival = arrival.map(|arrival| arrival.to_string());
        let kind = arrival.as_deref().map_or(ReleaseKind::Leave, ReleaseKind::KeepWaiting);
        let had_it = release_round(batches, &self.keys, identity.as_bytes(), waiter, kind).await?;
        Ok((identity, had_it))
    }

    /// Records a node's reply to a release.
    pub(super) fn record_release(&self, node: usize, identity: &Arc<str>, had_it: bool) {
        let quorum = &self.quorum;
        quorum.members[node].record_reply(quorum.now());
        let mut state = self.state();
        state.remove_residue(identity, node);
        if let Some(release) = state.phase.release() {
            release.record(node, identity, had_it);
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
            self.defer_to_unreachable(&mut state, unreachable, |_, _| true);
        }
        let is_done = state.residues.is_empty();
        let silent = if is_done { unreachable } else { NodeSet::default() };
        (is_done, state.phase.was_held(quorum.members.len(), silent))
    }

    /// Defers what `unreachable` nodes have of some rounds, and of their waiter in the queues, until
    /// they are back.
    fn defer_to_unreachable(
        &self,
        state: &mut State,
        unreachable: NodeSet,
        is_chosen: impl Fn(&Phase, &RoundResidue) -> bool,
    ) {
        let State { phase, residues, .. } = state;
        for residue in residues.iter_mut().filter(|residue| is_chosen(phase, residue)) {
            for node in (residue.nodes & unreachable).iter() {
                self.quorum.members[node].defer_release(PendingRelease {
                    keys: self.keys.clone(),
                    identity: residue.identity.clone(),
                    waiter: self.waiter.clone(),
                    expires: self.quorum.now() + self.claim.ttl().max(WAITER_TTL),
                });
            }
            residue.nodes = residue.nodes - unreachable;
        }
        residues.retain(|residue| !residue.nodes.is_empty());
    }
}
