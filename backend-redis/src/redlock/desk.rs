//! What a claim's seat knows, and the questions that it asks the nodes.
//!
//! Each round has an identity of its own, which is never asked for again once it was given back: a
//! release that arrives late must not delete what a later round has.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencelock_core::{Claim, IfBusy, Mode, Result};
use redis::Value;
use tokio::time::Instant;

use super::backend::Store;
use super::fan::Fan;
use super::freeing::{Freed, Freeing};
use super::member::Member;
use super::quorum::{Ballots, Word, Words};
use super::round::Round;
use super::sight::Ballot;
use super::votes::Vote;
use crate::protocol::error::protocol_error;
use crate::protocol::identity::{Keys, ttl_of};
use crate::protocol::call::ScriptCall;
use crate::protocol::script::QUORUM;

/// What the seat shares with the tasks that finish its work.
pub(crate) struct Desk {
    pub(super) store: Arc<Store>,
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
    pub(super) owed: Vec<Owed>,
    /// The nodes in whose queues the waiter may stand, as bits.
    pub(super) queued_at: u16,
    pub(super) freeing: Option<Freeing>,
    /// A task repeats what nodes did not hear of rounds that are over.
    pub(super) retreating: bool,
    pub(super) freed: Freed,
}

/// A round that nodes may still have something of.
pub(super) struct Owed {
    pub(super) identity: Arc<str>,
    /// As bits.
    pub(super) nodes: u16,
    /// Nobody won it: it is never asked for again.
    pub(super) is_over: bool,
}

/// What was granted.
pub(super) struct Grant {
    pub(super) identity: Arc<str>,
    pub(super) fence: String,
    /// By node.
    pub(super) had: Mutex<Vec<Had>>,
}

/// Whether a node has what was granted, as far as is known. Where it was in this life of the node's
/// data it is not planted again: a person may have taken it away.
pub(super) enum Had {
    Never,
    /// It was asked for it in this life, and its answer was not waited for.
    Perhaps(Arc<str>),
    /// It has said so in this life.
    Surely(Arc<str>),
}

/// A fan's index: which identity, at which node.
pub(super) const NODES: usize = 16;

impl State {
    /// These nodes may have something of the round.
    pub(super) fn owe(&mut self, identity: &Arc<str>, nodes: u16) {
        match self.owed.iter_mut().find(|owed| owed.identity == *identity) {
            Some(owed) => owed.nodes |= nodes,
            None => {
                let identity = identity.clone();
                self.owed.push(Owed { identity, nodes, is_over: false });
            }
        }
    }
}

impl Grant {
    pub(super) fn had(&self) -> MutexGuard<'_, Vec<Had>> {
        self.had.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it may be planted on `node` in this life.
    pub(super) fn may_be_planted(&self, node: usize, life: &str) -> bool {
        match &self.had()[node] {
            Had::Never => true,
            Had::Perhaps(had) | Had::Surely(had) => &**had != life,
        }
    }
}

impl Desk {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unless the claim gives back what it has; while this is kept it does not begin to.
    pub(super) fn not_over(&self) -> Option<MutexGuard<'_, State>> {
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
        ballot: &Ballot,
        round: &Arc<Round>,
        node: usize,
    ) -> impl Future<Output = Result<Value>> + Send + use<> {
        let (desk, member, round) = (self.clone(), member.clone(), round.clone());
        let marker = ballot.marker.clone();
        async move {
            let number = match desk.claim.mode() {
                Mode::Shared => (node + 1).to_string(),
                Mode::Exclusive | Mode::Permits(_) => String::new(),
            };
            let values = [
                &*marker,
                &*round.identity,
                ttl_of(&desk.waiter),
                &*round.proposal,
                &*number,
                if desk.queues() { &*desk.waiter } else { "" },
                &*round.arrival,
            ];
            let values = values.map(str::as_bytes);
            let call = ScriptCall { script: &QUORUM.vote, keys: &desk.keys.of_node(), values: &values };
            member.batches.call(call).await
        }
    }

    /// Writes the round's largest fence back to one node.
    pub(super) fn raise(
        self: &Arc<Self>,
        member: &Arc<Member>,
        ballot: &Ballot,
        round: &Arc<Round>,
        fence: u64,
    ) -> impl Future<Output = Result<Value>> + Send + use<> {
        let (desk, member, round) = (self.clone(), member.clone(), round.clone());
        let marker = ballot.marker.clone();
        async move {
            let fence = fence.to_string();
            let values = [&*marker, &*round.identity, &*fence].map(str::as_bytes);
            let call = ScriptCall { script: &QUORUM.raise, keys: &desk.keys.of_node(), values: &values };
            member.batches.call(call).await
        }
    }

    /// One node's part of an extension.
    pub(super) async fn extend(
        &self,
        member: &Arc<Member>,
        ballot: &Ballot,
        grant: &Grant,
        ttl: &str,
        plant: &str,
    ) -> Result<Value> {
        let values = [&*ballot.marker, &*grant.identity, ttl, &*grant.fence, plant];
        let values = values.map(str::as_bytes);
        let call = ScriptCall { script: &QUORUM.extend, keys: &self.keys.of_node(), values: &values };
        member.batches.call(call).await
    }

    /// What a node answered, if it is an answer; else `words` says what it is.
    pub(super) fn read(
        &self,
        node: usize,
        answer: Result<Value>,
        ballots: &Ballots,
        words: &mut Words,
    ) -> Option<Value> {
        let quorum = &self.store.quorum;
        let member = &quorum.members[node];
        match answer {
            Ok(Value::Int(-1)) => {
                ballots.of(node).into_iter().for_each(|asked| member.is_not(asked));
                words.set(node, Word::Said("it has lost its data, or is of another set of nodes"));
                None
            }
            Ok(value) => {
                member.heard(quorum.now());
                Some(value)
            }
            Err(error) => {
                words.set(node, Word::Failed(error));
                None
            }
        }
    }

    /// An answer that no script gives.
    pub(super) fn strange(&self, node: usize, script: &str, words: &mut Words) -> Vote {
        self.store.quorum.members[node].connection().mark_broken("it gave an unexpected reply");
        words.set(node, Word::Failed(protocol_error(script)));
        Vote::Absent
    }

    /// Those who have not answered when others have may have fallen silent.
    pub(super) fn doubt<F: Future + ?Sized>(&self, fan: &Fan<F>) {
        let quorum = &self.store.quorum;
        fan.pending().for_each(|node| quorum.members[node % NODES].doubt(quorum.now()));
    }

    /// A node is certain to have nothing of the round.
    pub(super) fn note_freed(&self, identity: &Arc<str>, node: usize) {
        let mut state = self.state();
        if let Some(owed) = state.owed.iter_mut().find(|owed| owed.identity == *identity) {
            owed.nodes &= !(1 << node);
        }
        // The last one stays: the next release is about it.
        let last = state.owed.last().map(|owed| owed.identity.clone());
        state.owed.retain(|owed| owed.nodes != 0 || Some(&owed.identity) == last.as_ref());
    }
}
