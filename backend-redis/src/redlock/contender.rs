//! One claim's seat on a quorum: rounds of votes, extensions, and what is owed to the nodes.
//!
//! Each round has an identity of its own, which is never asked for again once it was given back: a
//! release that arrives late must not delete what a later round has.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::{
    Attempt, Claim, Contender, Error, ErrorKind, FencingToken, IfBusy, Mode, Removal, Renewal,
    Rest, Result, lease_end,
};
use redis::Value;
use tokio::time::{Instant, timeout_at};

use super::backend::Store;
use super::fan::Fan;
use super::member::{Ballot, By, Debt, Member, free};
use super::quorum::{Slate, Word, Words};
use super::refusals::Refusals;
use super::votes::{self, Extension, Poll, Settled, Vote};
use crate::error::strange_answer;
use crate::identity::{Keys, identity, of_round, ttl_of};
use crate::node::Step;
use crate::script::QUORUM;

pub(crate) struct RedlockContender {
    desk: Arc<Desk>,
}

/// What the seat shares with the tasks that finish its work.
pub(crate) struct Desk {
    store: Arc<Store>,
    claim: Arc<Claim>,
    keys: Keys,
    /// As it stands in the nodes' queues.
    waiter: Arc<str>,
    state: Mutex<State>,
    /// The claim gives back what it has: nothing is asked for any more.
    over: AtomicBool,
}

#[derive(Default)]
struct State {
    rounds: u32,
    /// When it first came, on the nodes' clocks, in µs.
    arrival: Option<u64>,
    /// Rounds in a row that nobody won.
    splits: u32,
    grant: Option<Arc<Grant>>,
    owed: Vec<Owed>,
    /// The nodes in whose queues the waiter may stand, as bits.
    queued_at: u16,
    freeing: Option<Freeing>,
    freed: Freed,
}

/// What the nodes have said to the release of what was granted, as bits.
#[derive(Clone, Copy, Debug, Default)]
struct Freed {
    had_it: u16,
    lacked_it: u16,
    /// They cannot say: they are away, or an answer that got lost may have said that it had it.
    unsure: u16,
    asked: u16,
    asked_again: u16,
}

/// Whether a majority had what was released.
enum WasHeld {
    Yes,
    No,
    Open,
}

impl Freed {
    fn was_held(self, nodes: usize) -> WasHeld {
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

/// A round that nodes may still have something of.
struct Owed {
    identity: Arc<str>,
    /// As bits.
    nodes: u16,
    /// Nobody won it: it is never asked for again.
    is_over: bool,
}

/// What was granted.
struct Grant {
    identity: Arc<str>,
    fence: String,
    /// The life in which each node has confirmed it.
    confirmed: Mutex<Vec<Option<Arc<str>>>>,
}

/// A release under way.
struct Freeing {
    fan: Fan<'static, Result<bool>>,
    /// What each question is about.
    identities: Vec<Arc<str>>,
}

/// How soon a retreat that a node did not hear is repeated.
const RETREAT_AGAIN: Duration = Duration::from_millis(100);

/// A fan's index: which identity, at which node.
const NODES: usize = 16;

impl RedlockContender {
    pub(crate) fn new(store: Arc<Store>, claim: Arc<Claim>) -> RedlockContender {
        let desk = Desk {
            keys: Keys::of(claim.name().key()),
            waiter: identity(&claim, &store.process).into(),
            store,
            claim,
            state: Mutex::default(),
            over: AtomicBool::new(false),
        };
        RedlockContender { desk: Arc::new(desk) }
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.desk.keys
    }

    pub(crate) fn waiter(&self) -> &str {
        &self.desk.waiter
    }

    /// Extends what is held.
    pub(crate) async fn renew(&self) -> Result<Renewal> {
        let desk = &self.desk;
        let quorum = &desk.store.quorum;
        let Some(grant) = desk.state().grant.clone() else { return Ok(Renewal::Lost) };
        let sent = quorum.now();
        let Slate { ballots, mut words, .. } = quorum.slate(sent)?;
        let ttl = if desk.claim.is_fixed_lease() { "0" } else { ttl_of(&desk.waiter) };
        let mut fan = Fan::new();
        let mut votes = vec![Vote::Absent; ballots.len()];
        for (node, ballot) in ballots.iter().enumerate() {
            let Some(ballot) = ballot else { continue };
            votes[node] = Vote::Pending;
            let plant = if grant.had(node, &ballot.life) { "" } else { "plant" };
            fan.ask(node, desk.extend(&quorum.members[node], ballot, &grant, ttl, plant));
        }
        let asked = ballots.iter().enumerate().filter(|(_, ballot)| ballot.is_some());
        let asked = asked.fold(0, |bits, (node, _)| bits | 1 << node);
        let is_here = || {
            let mut state = desk.state();
            // It may be planted wherever it is asked for.
            state.owe(&grant.identity, asked);
            (!desk.over.load(Ordering::SeqCst)).then_some(state)
        };
        if !fan.send(is_here).await {
            return Ok(Renewal::Lost);
        }
        let deadline = desk.deadline();
        while votes::extension(&votes) == Extension::Open {
            let Ok(Some((node, answer))) = timeout_at(deadline, fan.next()).await else { break };
            votes[node] = match desk.read(node, answer, &mut words) {
                Some(Value::Int(1)) => {
                    if let Some(ballot) = &ballots[node] {
                        grant.confirmed()[node] = Some(ballot.life.clone());
                    }
                    Vote::Yes(0)
                }
                Some(Value::Int(0)) => {
                    words.set(node, Word::Said("it is not held there"));
                    Vote::No
                }
                Some(_) => desk.strange(node, "extend", &mut words),
                None => Vote::Absent,
            };
        }
        desk.doubt(&fan);
        for vote in votes.iter_mut().filter(|vote| **vote == Vote::Pending) {
            *vote = Vote::Absent;
        }
        match votes::extension(&votes) {
            Extension::Kept => Ok(Renewal::Renewed {
                valid_until: match desk.claim.is_fixed_lease() {
                    // Still there, and that is all: an earlier end than is known moves nothing.
                    true => sent,
                    false => lease_end(sent, desk.claim.ttl()),
                },
            }),
            Extension::Lost => Ok(Renewal::Lost),
            Extension::Open | Extension::Unknown => Err(quorum.no_majority(&words)),
        }
    }
}

impl State {
    /// These nodes may have something of the round.
    fn owe(&mut self, identity: &Arc<str>, nodes: u16) {
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
    fn confirmed(&self) -> MutexGuard<'_, Vec<Option<Arc<str>>>> {
        self.confirmed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `node` has confirmed it in this life.
    fn had(&self, node: usize, life: &str) -> bool {
        self.confirmed()[node].as_deref() == Some(life)
    }
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.store.quorum.node_timeout
    }

    fn queues(&self) -> bool {
        self.claim.if_busy() == IfBusy::Queue
    }

    /// One node's vote.
    fn vote(
        self: &Arc<Self>,
        member: &Arc<Member>,
        ballot: &Ballot,
        round: &Arc<Round>,
        node: usize,
    ) -> impl Future<Output = Result<Value>> + Send + use<> {
        let (desk, member, round) = (self.clone(), member.clone(), round.clone());
        let marker = ballot.marker.clone();
        async move {
            let number = (node + 1).to_string();
            let values = [
                &*marker,
                &*round.identity,
                ttl_of(&desk.waiter),
                &*round.proposal,
                if desk.claim.mode() == Mode::Shared { &number } else { "" },
                if desk.queues() { &*desk.waiter } else { "" },
                &*round.arrival,
            ];
            let step = Step { script: &QUORUM.vote, keys: &desk.keys.of_node(), values: &values };
            member.batches.step(step).await
        }
    }

    /// Writes the round's largest fence back to one node.
    fn raise(
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
            let values = [&*marker, &*round.identity, &*fence];
            let step = Step { script: &QUORUM.raise, keys: &desk.keys.of_node(), values: &values };
            member.batches.step(step).await
        }
    }

    /// One node's part of an extension.
    async fn extend(
        &self,
        member: &Arc<Member>,
        ballot: &Ballot,
        grant: &Grant,
        ttl: &str,
        plant: &str,
    ) -> Result<Value> {
        let values = [&*ballot.marker, &*grant.identity, ttl, &*grant.fence, plant];
        let step = Step { script: &QUORUM.extend, keys: &self.keys.of_node(), values: &values };
        member.batches.step(step).await
    }

    /// What a node answered, if it is an answer; else `words` says what it is.
    fn read(&self, node: usize, answer: Result<Value>, words: &mut Words) -> Option<Value> {
        let quorum = &self.store.quorum;
        let member = &quorum.members[node];
        match answer {
            Ok(Value::Int(-1)) => {
                member.is_not_known();
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
    fn strange(&self, node: usize, script: &str, words: &mut Words) -> Vote {
        self.store.quorum.members[node].link().distrust("it gave an answer that cannot be");
        words.set(node, Word::Failed(strange_answer(script)));
        Vote::Absent
    }

    /// Those who have not answered when others have may have fallen silent.
    fn doubt<T>(&self, fan: &Fan<'_, T>) {
        let quorum = &self.store.quorum;
        fan.pending().for_each(|node| quorum.members[node % NODES].doubt(quorum.now()));
    }

    /// A node is certain to have nothing of the round.
    fn note_freed(&self, identity: &Arc<str>, node: usize) {
        let mut state = self.state();
        if let Some(owed) = state.owed.iter_mut().find(|owed| owed.identity == *identity) {
            owed.nodes &= !(1 << node);
        }
        // The last one stays: the next release is about it.
        let last = state.owed.last().map(|owed| owed.identity.clone());
        state.owed.retain(|owed| owed.nodes != 0 || Some(&owed.identity) == last.as_ref());
    }

    /// Asks all of `slate` for their votes, in a round of its own.
    async fn ask_for_votes(self: &Arc<Self>, slate: &mut Slate) -> Outcome {
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
            let asked = slate.ballots.iter().enumerate();
            let asked = asked.filter(|(_, ballot)| ballot.is_some());
            let nodes = asked.fold(0, |bits, (node, _)| bits | 1 << node);
            state.owe(&identity, nodes);
            if self.queues() {
                state.queued_at |= nodes;
            }
            let (proposal, arrival) = (slate.proposal().to_string(), arrival.to_string());
            Arc::new(Round { identity, proposal, arrival })
        };
        let mut fan = Fan::new();
        let mut outcome = Outcome::new(round.clone(), slate.ballots.len());
        for (node, ballot) in slate.ballots.iter().enumerate() {
            if let Some(ballot) = ballot {
                outcome.votes[node] = Vote::Pending;
                fan.ask(node, self.vote(&quorum.members[node], ballot, &round, node));
            }
        }
        let deadline = self.deadline();
        while votes::is_open(&outcome.votes) {
            let Ok(Some((node, answer))) = timeout_at(deadline, fan.next()).await else { break };
            let Some(value) = self.read(node, answer, &mut slate.words) else {
                outcome.votes[node] = Vote::Absent;
                continue;
            };
            outcome.votes[node] = match read_fence(&value) {
                Some(fence) => {
                    slate.words.set(node, Word::Said("yes"));
                    Vote::Yes(fence)
                }
                None if outcome.refusals.read(&value) => {
                    slate.words.set(node, Word::Said("held by somebody else, or others wait"));
                    self.note_freed(&round.identity, node);
                    Vote::No
                }
                None => self.strange(node, "vote", &mut slate.words),
            };
        }
        self.doubt(&fan);
        drop(fan);
        let is_pending = |vote: &&mut Vote| **vote == Vote::Pending;
        outcome.votes.iter_mut().filter(is_pending).for_each(|vote| *vote = Vote::Absent);
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

    /// Has a majority know `fence`, the largest that a node of it gave.
    async fn write_back(self: &Arc<Self>, slate: &mut Slate, outcome: &mut Outcome, fence: u64) {
        let quorum = &self.store.quorum;
        let mut fan = Fan::new();
        let mut votes = outcome.votes.clone();
        for (node, vote) in votes.iter_mut().enumerate() {
            if let (Vote::Yes(its), Some(ballot)) = (*vote, &slate.ballots[node])
                && its < fence
            {
                *vote = Vote::Pending;
                let member = &quorum.members[node];
                fan.ask(node, self.raise(member, ballot, &outcome.round, fence));
            }
        }
        let deadline = self.deadline();
        while votes::settled(&votes, fence) == Settled::Open {
            let Ok(Some((node, answer))) = timeout_at(deadline, fan.next()).await else { break };
            votes[node] = match self.read(node, answer, &mut slate.words) {
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

    /// Gives back what rounds got that nobody won, and goes on waiting if it is to. Sent before this
    /// returns, so that it arrives before the next round.
    async fn retreat(self: &Arc<Self>) {
        self.state().owed.iter_mut().for_each(|owed| owed.is_over = true);
        let mut fan = self.retreats();
        if fan.pending().next().is_none() {
            return;
        }
        fan.send(|| Some(())).await;
        let desk = self.clone();
        self.store.quorum.runtime.spawn(async move {
            let ends = desk.store.quorum.now().after(desk.claim.ttl());
            loop {
                while let Some((node, answer)) = fan.next().await {
                    if let Ok(identity) = answer {
                        desk.note_freed(&identity, node);
                    }
                }
                if desk.over.load(Ordering::SeqCst) || desk.store.quorum.now() >= ends {
                    return;
                }
                tokio::time::sleep(RETREAT_AGAIN).await;
                let is_granted = desk.state().grant.is_some();
                fan = desk.retreats();
                // What is left behind a grant is freed with it.
                if is_granted || fan.pending().next().is_none() {
                    return;
                }
            }
        });
    }

    /// The questions of a retreat, each answered with what it has freed.
    fn retreats(self: &Arc<Self>) -> Fan<'static, Result<Arc<str>>> {
        let mut fan = Fan::new();
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
                fan.ask(node, async move {
                    let waiter = if desk.queues() { &*desk.waiter } else { "" };
                    let values = [&*identity, waiter, &*arrival];
                    let keys = desk.keys.all();
                    let step = Step { script: &QUORUM.free, keys: &keys, values: &values };
                    member.batches.step(step).await.map(|_| identity)
                });
            }
        }
        fan
    }

    /// Begins to free everything that is owed. The first call is the end of asking.
    async fn free_all(self: &Arc<Self>) -> Freeing {
        let quorum = &self.store.quorum;
        let mut freeing = Freeing { fan: Fan::new(), identities: Vec::new() };
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
                        freeing.fan.ask(index * NODES + node, freeing_it);
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
    fn freed(&self, node: usize, identity: &Arc<str>, answer: &Result<bool>) {
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

/// One round's own.
struct Round {
    identity: Arc<str>,
    proposal: String,
    arrival: String,
}

/// What a round came to.
struct Outcome {
    round: Arc<Round>,
    votes: Vec<Vote>,
    refusals: Refusals,
    /// If it was won.
    token: Option<u64>,
}

impl Outcome {
    fn new(round: Arc<Round>, nodes: usize) -> Outcome {
        let votes = vec![Vote::Absent; nodes];
        Outcome { round, votes, refusals: Refusals::default(), token: None }
    }
}

fn read_fence(value: &Value) -> Option<u64> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

#[async_trait]
impl Contender for RedlockContender {
    fn claim(&self) -> &Arc<Claim> {
        &self.desk.claim
    }

    async fn attempt(&self) -> Result<Attempt> {
        let desk = &self.desk;
        let quorum = &desk.store.quorum;
        // What earlier rounds may still have stands in the way of this one.
        desk.retreat().await;
        let sent = quorum.now();
        let mut slate = quorum.slate(sent)?;
        let outcome = desk.ask_for_votes(&mut slate).await;
        if let Some(fence) = outcome.token {
            let valid_until = lease_end(sent, desk.claim.ttl());
            let confirmed = outcome.votes.iter().zip(&slate.ballots).map(|(vote, ballot)| {
                let life = ballot.as_ref().map(|ballot| ballot.life.clone());
                life.filter(|_| matches!(vote, Vote::Yes(_)))
            });
            let grant = Grant {
                identity: outcome.round.identity.clone(),
                fence: fence.to_string(),
                confirmed: Mutex::new(confirmed.collect()),
            };
            desk.state().grant = Some(Arc::new(grant));
            return Ok(Attempt::Granted { token: FencingToken::new(fence), valid_until });
        }
        desk.retreat().await;
        if !votes::is_busy(&outcome.votes) {
            return Err(quorum.no_majority(&slate.words));
        }
        if !desk.queues() {
            let is_clean = outcome.votes.iter().all(|vote| *vote == Vote::No);
            let rest = if is_clean { Rest::Nothing } else { Rest::Perhaps };
            return Ok(Attempt::Busy { rest });
        }
        let is_split = outcome.refusals.is_split(quorum.majority());
        let splits = {
            let mut state = desk.state();
            state.splits = if is_split { state.splits + 1 } else { 0 };
            state.splits
        };
        Ok(Attempt::Waiting { look_in: outcome.refusals.look_in(quorum.majority(), splits) })
    }

    async fn release(&self) -> Result<Removal> {
        let desk = &self.desk;
        let nodes = desk.store.quorum.members.len();
        let under_way = desk.state().freeing.take();
        let mut freeing = match under_way {
            Some(freeing) => freeing,
            None => desk.free_all().await,
        };
        let deadline = desk.deadline();
        while let Ok(Some((at, answer))) = timeout_at(deadline, freeing.fan.next()).await {
            desk.freed(at % NODES, &freeing.identities[at / NODES], &answer);
            let mut state = desk.state();
            let is_free = matches!(state.freed.was_held(nodes), WasHeld::Yes);
            if is_free && freeing.fan.pending().next().is_some() {
                // At a majority: the rest is finished in the background.
                state.freeing = Some(freeing);
                return Ok(Removal::Partly { was_held: true });
            }
        }
        desk.doubt(&freeing.fan);
        let mut state = desk.state();
        let is_done = state.queued_at == 0 && state.owed.iter().all(|owed| owed.nodes == 0);
        if freeing.fan.pending().next().is_some() {
            state.freeing = Some(freeing);
        }
        match (is_done, state.freed.was_held(nodes)) {
            (true, WasHeld::Yes) => Ok(Removal::Removed),
            (true, _) => Ok(Removal::Absent),
            (false, WasHeld::Yes) => Ok(Removal::Partly { was_held: true }),
            (false, WasHeld::No) => Ok(Removal::Partly { was_held: false }),
            (false, WasHeld::Open) => Err(Error::new(
                ErrorKind::Unreachable,
                "too few nodes have answered to say whether it was held",
            )),
        }
    }
}

impl Drop for RedlockContender {
    fn drop(&mut self) {
        self.desk.store.quorum.circle.waiters.leave(&self.desk.claim);
    }
}
