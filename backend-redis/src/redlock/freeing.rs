//! Giving back: rounds that nobody won, what was held, and places in queues, at every node that may
//! have something of them.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::Result;
use futures_util::TryFutureExt;

use super::debts::{PendingRelease, ReleaseKind, free};
use super::fan_out::BoxedFanOut;
use super::member::Member;
use super::shared::{NODES, QuorumClaim, RoundResidue};
use super::votes;

/// What the nodes have said to the release of what was granted, as bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReleaseTally {
    had_it: u16,
    lacked_it: u16,
    /// An answer that got lost may have said that it had it.
    unsure: u16,
    asked: u16,
    asked_again: u16,
}

/// Whether a majority had what was released.
pub(super) enum WasHeld {
    Yes,
    No,
    Open,
}

impl ReleaseTally {
    /// Too few nodes may have had it; or so many did, or may have as those that are `away` may. One
    /// that did not have it when it was asked for does not count.
    pub(super) fn was_held(self, nodes: usize, away: u16) -> WasHeld {
        let needed = votes::majority(nodes) as u32;
        let lacking = nodes as u32 - (self.asked & !self.lacked_it).count_ones();
        if lacking > nodes as u32 - needed {
            WasHeld::No
        } else if (self.had_it | self.unsure | away).count_ones() >= needed {
            WasHeld::Yes
        } else {
            WasHeld::Open
        }
    }

    fn heard(&mut self, node: usize, had_it: bool) {
        let bit = 1 << node;
        match had_it {
            // A place in its queue at most.
            _ if self.asked & bit == 0 => {}
            true => self.had_it |= bit,
            false if self.asked_again & bit != 0 => self.unsure |= bit,
            false => self.lacked_it |= bit,
        }
    }
}

/// A release under way.
pub(super) struct ReleaseInFlight {
    pub(super) fan_out: BoxedFanOut<Result<bool>>,
    /// What each question is about.
    pub(super) identities: Vec<Arc<str>>,
}

/// How long a node keeps the place of a waiter that nobody looks after.
const WAITER_TTL: Duration = Duration::from_secs(5);

/// How soon a roll_back that a node did not hear is repeated.
const ROLLBACK_RETRY: Duration = Duration::from_millis(100);

impl QuorumClaim {
    /// Gives back what rounds got that nobody won, and goes on waiting if it is to. Sent before this
    /// returns, so that it arrives before the next round.
    pub(super) async fn roll_back(self: &Arc<Self>) {
        {
            let mut state = self.state();
            state.residues.iter_mut().for_each(|residue| residue.is_over = true);
            if state.residues.iter().all(|residue| residue.nodes == 0) {
                return;
            }
        }
        let mut fan_out = self.rollback_requests();
        if fan_out.pending().next().is_none() || !fan_out.send(|| self.unless_releasing()).await {
            return;
        }
        let repeats = !std::mem::replace(&mut self.state().is_rolling_back, true);
        let shared = self.clone();
        self.store.quorum.runtime.spawn(async move {
            shared.collect_rollback(&mut fan_out).await;
            // One of them is enough.
            if repeats {
                shared.repeat_rollback().await;
                shared.state().is_rolling_back = false;
            }
        });
    }

    async fn collect_rollback(&self, fan_out: &mut BoxedFanOut<Result<Arc<str>>>) {
        while let Some((node, answer)) = fan_out.next().await {
            if let Ok(identity) = answer {
                self.record_freed(&identity, node);
            }
        }
    }

    /// Repeats what nodes did not hear, until they have or it has ended by itself.
    async fn repeat_rollback(self: &Arc<Self>) {
        let ends = self.store.quorum.now() + self.claim.ttl();
        loop {
            tokio::time::sleep(ROLLBACK_RETRY).await;
            let mut fan_out = self.rollback_requests();
            let is_done = fan_out.pending().next().is_none() || self.store.quorum.now() >= ends;
            // What is left behind a grant is freed with it. A claim that has left its queues must
            // not come back to them.
            let is_wanted = || self.unless_releasing().filter(|state| state.grant.is_none());
            if is_done || !fan_out.send(is_wanted).await {
                return;
            }
            self.collect_rollback(&mut fan_out).await;
        }
    }

    /// The questions of a roll_back, each answered with what it has freed.
    fn rollback_requests(self: &Arc<Self>) -> BoxedFanOut<Result<Arc<str>>> {
        let mut fan_out = BoxedFanOut::new();
        let mut state = self.state();
        let away = self.store.quorum.unreachable();
        for residue in state.residues.iter_mut().filter(|residue| residue.is_over) {
            self.defer_to_unreachable(residue, 0, away);
        }
        let arrival = state.arrival.filter(|_| self.queues());
        for residue in state.residues.iter().filter(|residue| residue.is_over) {
            for (node, member) in self.store.quorum.members.iter().enumerate() {
                if residue.nodes & 1 << node == 0 {
                    continue;
                }
                let release = self.clone().release_at(member.clone(), &residue.identity, arrival);
                let identity = residue.identity.clone();
                fan_out.ask(node, Box::pin(release.map_ok(|_| identity)));
            }
        }
        fan_out
    }

    /// Begins to free everything that is residue. The first call is the end of asking.
    pub(super) async fn release_all(self: &Arc<Self>) -> ReleaseInFlight {
        let quorum = &self.store.quorum;
        let mut release = ReleaseInFlight { fan_out: BoxedFanOut::new(), identities: Vec::new() };
        {
            let mut state = self.state();
            state.is_over = true;
            let last = state.residues.len().saturating_sub(1);
            let granted = state.grant.as_ref().map(|grant| grant.identity.clone());
            let mut asked = 0;
            for (index, residue) in state.residues.iter().enumerate() {
                // The last one takes the waiter out of the queues too.
                let nodes =
                    if index == last { residue.nodes | state.queued_at } else { residue.nodes };
                release.identities.push(residue.identity.clone());
                if granted.as_ref() == Some(&residue.identity) {
                    asked = residue.nodes;
                }
                for (node, member) in quorum.members.iter().enumerate() {
                    if nodes & 1 << node != 0 {
                        let freeing_it =
                            self.clone().release_at(member.clone(), &residue.identity, None);
                        release.fan_out.ask(index * NODES + node, Box::pin(freeing_it));
                    }
                }
            }
            state.tally.asked_again |= asked & state.tally.asked;
            state.tally.asked |= asked;
        }
        // Under the lock, so that no extension is sent behind it.
        release.fan_out.send(|| Some(self.state())).await;
        release
    }

    /// Takes a round out of a node; its waiter stays in the queue if it has an `arrival`.
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
            let by = arrival.as_deref().map_or(ReleaseKind::Leave, ReleaseKind::KeepWaiting);
            free(&member.batches, &self.keys, identity.as_bytes(), waiter, by).await
        }
    }

    /// What a node said to a release.
    pub(super) fn record_release(&self, node: usize, identity: &Arc<str>, had_it: bool) {
        let quorum = &self.store.quorum;
        quorum.members[node].heard(quorum.now());
        self.record_freed(identity, node);
        let mut state = self.state();
        state.queued_at &= !(1 << node);
        if state.grant.as_ref().is_some_and(|grant| grant.identity == *identity) {
            state.tally.heard(node, had_it);
        }
    }

    /// What it all came to: whether everything is freed, and whether it was held. Nobody waits for
    /// nodes that are away if a majority is there: those are freed when they are back.
    pub(super) fn settle_release(&self) -> (bool, WasHeld) {
        let quorum = &self.store.quorum;
        let away = quorum.unreachable();
        let mut state = self.state();
        if (away.count_ones() as usize) < quorum.majority() {
            let last = state.residues.last().map(|residue| residue.identity.clone());
            let queued_at = std::mem::take(&mut state.queued_at);
            state.queued_at = queued_at & !away;
            for residue in &mut state.residues {
                let is_last = Some(&residue.identity) == last.as_ref();
                self.defer_to_unreachable(residue, if is_last { queued_at } else { 0 }, away);
            }
        }
        let is_done =
            state.queued_at == 0 && state.residues.iter().all(|residue| residue.nodes == 0);
        let silent = if is_done { away & state.tally.asked } else { 0 };
        (is_done, state.tally.was_held(quorum.members.len(), silent))
    }

    /// What a round has at nodes that are away, or its waiter in their queues, is freed when those are
    /// back.
    fn defer_to_unreachable(&self, residue: &mut RoundResidue, queued_at: u16, away: u16) {
        let left = (residue.nodes | queued_at) & away;
        for (node, member) in self.store.quorum.members.iter().enumerate() {
            if left & 1 << node != 0 {
                member.defer_release(PendingRelease {
                    keys: self.keys.clone(),
                    identity: residue.identity.clone(),
                    waiter: self.waiter.clone(),
                    ends: self.store.quorum.now() + self.claim.ttl().max(WAITER_TTL),
                });
            }
        }
        residue.nodes &= !away;
    }
}
