//! Giving back: rounds that nobody won, what was held, and places in queues, at every node that may
//! have something of them.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::Result;
use futures_util::TryFutureExt;

use super::debts::{By, Debt, free};
use super::desk::{Desk, NODES, Owed};
use super::fan::Kept;
use super::member::Member;
use super::votes;

/// What the nodes have said to the release of what was granted, as bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Freed {
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

impl Freed {
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
pub(super) struct Freeing {
    pub(super) fan: Kept<Result<bool>>,
    /// What each question is about.
    pub(super) identities: Vec<Arc<str>>,
}

/// How long a node keeps the place of a waiter that nobody looks after.
const PLACE: Duration = Duration::from_secs(5);

/// How soon a retreat that a node did not hear is repeated.
const RETREAT_AGAIN: Duration = Duration::from_millis(100);

impl Desk {
    /// Gives back what rounds got that nobody won, and goes on waiting if it is to. Sent before this
    /// returns, so that it arrives before the next round.
    pub(super) async fn retreat(self: &Arc<Self>) {
        {
            let mut state = self.state();
            state.owed.iter_mut().for_each(|owed| owed.is_over = true);
            if state.owed.iter().all(|owed| owed.nodes == 0) {
                return;
            }
        }
        let mut fan = self.retreats();
        if fan.pending().next().is_none() || !fan.send(|| self.not_over()).await {
            return;
        }
        let repeats = !std::mem::replace(&mut self.state().retreating, true);
        let desk = self.clone();
        self.store.quorum.runtime.spawn(async move {
            desk.hear_retreat(&mut fan).await;
            // One of them is enough.
            if repeats {
                desk.retreat_again().await;
                desk.state().retreating = false;
            }
        });
    }

    async fn hear_retreat(&self, fan: &mut Kept<Result<Arc<str>>>) {
        while let Some((node, answer)) = fan.next().await {
            if let Ok(identity) = answer {
                self.note_freed(&identity, node);
            }
        }
    }

    /// Repeats what nodes did not hear, until they have or it has ended by itself.
    async fn retreat_again(self: &Arc<Self>) {
        let ends = self.store.quorum.now() + self.claim.ttl();
        loop {
            tokio::time::sleep(RETREAT_AGAIN).await;
            let mut fan = self.retreats();
            let is_done = fan.pending().next().is_none() || self.store.quorum.now() >= ends;
            // What is left behind a grant is freed with it. A claim that has left its queues must
            // not come back to them.
            let is_wanted = || self.not_over().filter(|state| state.grant.is_none());
            if is_done || !fan.send(is_wanted).await {
                return;
            }
            self.hear_retreat(&mut fan).await;
        }
    }

    /// The questions of a retreat, each answered with what it has freed.
    fn retreats(self: &Arc<Self>) -> Kept<Result<Arc<str>>> {
        let mut fan = Kept::new();
        let mut state = self.state();
        let away = self.store.quorum.away();
        for owed in state.owed.iter_mut().filter(|owed| owed.is_over) {
            self.owe_later(owed, 0, away);
        }
        let arrival = state.arrival.filter(|_| self.queues());
        for owed in state.owed.iter().filter(|owed| owed.is_over) {
            for (node, member) in self.store.quorum.members.iter().enumerate() {
                if owed.nodes & 1 << node == 0 {
                    continue;
                }
                let freeing = self.clone().free_at(member.clone(), &owed.identity, arrival);
                let identity = owed.identity.clone();
                fan.ask(node, Box::pin(freeing.map_ok(|_| identity)));
            }
        }
        fan
    }

    /// Begins to free everything that is owed. The first call is the end of asking.
    pub(super) async fn free_all(self: &Arc<Self>) -> Freeing {
        let quorum = &self.store.quorum;
        let mut freeing = Freeing { fan: Kept::new(), identities: Vec::new() };
        {
            let mut state = self.state();
            state.is_over = true;
            let last = state.owed.len().saturating_sub(1);
            let granted = state.grant.as_ref().map(|grant| grant.identity.clone());
            let mut asked = 0;
            for (index, owed) in state.owed.iter().enumerate() {
                // The last one takes the waiter out of the queues too.
                let nodes = if index == last { owed.nodes | state.queued_at } else { owed.nodes };
                freeing.identities.push(owed.identity.clone());
                if granted.as_ref() == Some(&owed.identity) {
                    asked = owed.nodes;
                }
                for (node, member) in quorum.members.iter().enumerate() {
                    if nodes & 1 << node != 0 {
                        let freeing_it = self.clone().free_at(member.clone(), &owed.identity, None);
                        freeing.fan.ask(index * NODES + node, Box::pin(freeing_it));
                    }
                }
            }
            state.freed.asked_again |= asked & state.freed.asked;
            state.freed.asked |= asked;
        }
        // Under the lock, so that no extension is sent behind it.
        freeing.fan.send(|| Some(self.state())).await;
        freeing
    }

    /// Takes a round out of a node; its waiter stays in the queue if it has an `arrival`.
    fn free_at(
        self: Arc<Self>,
        member: Arc<Member>,
        identity: &Arc<str>,
        arrival: Option<u64>,
    ) -> impl Future<Output = Result<bool>> + Send + use<> {
        let identity = identity.clone();
        async move {
            let waiter = if self.queues() { &*self.waiter } else { "" };
            let arrival = arrival.map(|arrival| arrival.to_string());
            let by = arrival.as_deref().map_or(By::Itself, By::Waiter);
            free(&member.batches, &self.keys, identity.as_bytes(), waiter, by).await
        }
    }

    /// What a node said to a release.
    pub(super) fn freed(&self, node: usize, identity: &Arc<str>, had_it: bool) {
        let quorum = &self.store.quorum;
        quorum.members[node].heard(quorum.now());
        self.note_freed(identity, node);
        let mut state = self.state();
        state.queued_at &= !(1 << node);
        if state.grant.as_ref().is_some_and(|grant| grant.identity == *identity) {
            state.freed.heard(node, had_it);
        }
    }

    /// What it all came to: whether everything is freed, and whether it was held. Nobody waits for
    /// nodes that are away if a majority is there: those are freed when they are back.
    pub(super) fn settle_release(&self) -> (bool, WasHeld) {
        let quorum = &self.store.quorum;
        let away = quorum.away();
        let mut state = self.state();
        if (away.count_ones() as usize) < quorum.majority() {
            let last = state.owed.last().map(|owed| owed.identity.clone());
            let queued_at = std::mem::take(&mut state.queued_at);
            state.queued_at = queued_at & !away;
            for owed in &mut state.owed {
                let is_last = Some(&owed.identity) == last.as_ref();
                self.owe_later(owed, if is_last { queued_at } else { 0 }, away);
            }
        }
        let is_done = state.queued_at == 0 && state.owed.iter().all(|owed| owed.nodes == 0);
        let silent = if is_done { away & state.freed.asked } else { 0 };
        (is_done, state.freed.was_held(quorum.members.len(), silent))
    }

    /// What a round has at nodes that are away, or its waiter in their queues, is freed when those are
    /// back.
    fn owe_later(&self, owed: &mut Owed, queued_at: u16, away: u16) {
        let left = (owed.nodes | queued_at) & away;
        for (node, member) in self.store.quorum.members.iter().enumerate() {
            if left & 1 << node != 0 {
                member.owe(Debt {
                    keys: self.keys.clone(),
                    identity: owed.identity.clone(),
                    waiter: self.waiter.clone(),
                    ends: self.store.quorum.now() + self.claim.ttl().max(PLACE),
                });
            }
        }
        owed.nodes &= !away;
    }
}
