//! Giving back: rounds that nobody won, what was held, and places in queues, at every node that may
//! have something of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fencelock_core::Result;

use super::debts::{By, Debt, free};
use super::desk::{Desk, NODES};
use super::fan::Kept;
use super::member::Member;
use super::votes;
use crate::node::Step;
use crate::script::QUORUM;

/// What the nodes have said to the release of what was granted, as bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Freed {
    pub(super) had_it: u16,
    pub(super) lacked_it: u16,
    /// They cannot say: they are away, or an answer that got lost may have said that it had it.
    pub(super) unsure: u16,
    pub(super) asked: u16,
    pub(super) asked_again: u16,
}

/// Whether a majority had what was released.
pub(super) enum WasHeld {
    Yes,
    No,
    Open,
}

impl Freed {
    pub(super) fn was_held(self, nodes: usize) -> WasHeld {
        let needed = votes::majority(nodes) as u32;
        let lacking = nodes as u32 - self.asked.count_ones() + self.lacked_it.count_ones();
        if lacking > nodes as u32 - needed {
            WasHeld::No
        } else if (self.had_it | self.unsure).count_ones() >= needed {
            WasHeld::Yes
        } else {
            WasHeld::Open
        }
    }
}

/// A release under way.
pub(super) struct Freeing {
    pub(super) fan: Kept<Result<bool>>,
    /// What each question is about.
    pub(super) identities: Vec<Arc<str>>,
}

/// How soon a retreat that a node did not hear is repeated.
const RETREAT_AGAIN: Duration = Duration::from_millis(100);

impl Desk {
    /// Gives back what rounds got that nobody won, and goes on waiting if it is to. Sent before this
    /// returns, so that it arrives before the next round.
    pub(super) async fn retreat(self: &Arc<Self>) {
        self.state().owed.iter_mut().for_each(|owed| owed.is_over = true);
        let mut fan = self.retreats();
        if fan.pending().next().is_none() || !fan.send(|| self.not_over()).await {
            return;
        }
        let desk = self.clone();
        self.store.quorum.runtime.spawn(async move {
            let ends = desk.store.quorum.now().after(desk.claim.ttl());
            loop {
                while let Some((node, answer)) = fan.next().await {
                    if let Ok(identity) = answer {
                        desk.note_freed(&identity, node);
                    }
                }
                tokio::time::sleep(RETREAT_AGAIN).await;
                fan = desk.retreats();
                let is_done = fan.pending().next().is_none() || desk.store.quorum.now() >= ends;
                // What is left behind a grant is freed with it. A claim that has left its queues must
                // not come back to them.
                let is_wanted = || desk.not_over().filter(|state| state.grant.is_none());
                if is_done || !fan.send(is_wanted).await {
                    return;
                }
            }
        });
    }

    /// The questions of a retreat, each answered with what it has freed.
    fn retreats(self: &Arc<Self>) -> Kept<Result<Arc<str>>> {
        let mut fan = Kept::new();
        let state = self.state();
        let arrival = state.arrival.filter(|_| self.queues()).map(|arrival| arrival.to_string());
        let arrival: Arc<str> = arrival.unwrap_or_default().into();
        for owed in state.owed.iter().filter(|owed| owed.is_over) {
            for (node, member) in self.store.quorum.members.iter().enumerate() {
                if owed.nodes & 1 << node == 0 {
                    continue;
                }
                let (desk, member) = (self.clone(), member.clone());
                let (identity, arrival) = (owed.identity.clone(), arrival.clone());
                let freeing = async move {
                    let waiter = if desk.queues() { &*desk.waiter } else { "" };
                    let values = [&*identity, waiter, &*arrival];
                    let keys = desk.keys.all();
                    let step = Step { script: &QUORUM.free, keys: &keys, values: &values };
                    member.batches.step(step).await.map(|_| identity)
                };
                fan.ask(node, Box::pin(freeing));
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
            self.over.store(true, Ordering::SeqCst);
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
                        let freeing_it = self.clone().free_at(member.clone(), &owed.identity);
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

    fn free_at(
        self: Arc<Self>,
        member: Arc<Member>,
        identity: &Arc<str>,
    ) -> impl Future<Output = Result<bool>> + Send + use<> {
        let identity = identity.clone();
        async move {
            let waiter = if self.queues() { &*self.waiter } else { "" };
            free(&member.batches, &self.keys, &identity, waiter, By::Itself).await
        }
    }

    /// What a node said to a release.
    pub(super) fn freed(&self, node: usize, identity: &Arc<str>, answer: &Result<bool>) {
        let quorum = &self.store.quorum;
        let member = &quorum.members[node];
        match answer {
            Ok(_) => member.heard(quorum.now()),
            Err(_) if member.link().state().is_ok() => return,
            // Nobody waits for a node that is away: it is freed when it is back.
            Err(_) => self.owe_later(member, identity),
        }
        self.note_freed(identity, node);
        let mut state = self.state();
        state.queued_at &= !(1 << node);
        if state.grant.as_ref().is_some_and(|grant| grant.identity == *identity) {
            let freed = &mut state.freed;
            match answer {
                Ok(true) => freed.had_it |= 1 << node,
                Ok(false) if freed.asked_again & 1 << node == 0 => freed.lacked_it |= 1 << node,
                Ok(false) | Err(_) => freed.unsure |= 1 << node,
            }
        }
    }

    fn owe_later(&self, member: &Member, identity: &Arc<str>) {
        member.owe(Debt {
            keys: self.keys.clone(),
            identity: identity.clone(),
            waiter: self.waiter.clone(),
            ends: self.store.quorum.now().after(self.claim.ttl()),
        });
    }
}
