//! The store as core drives it: renewals and looks, and people's questions.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{
    Claim, Clock, DistributedLock, Error, LockName, Look, OccupantId, Profile, Removal, Renewal,
    Result, Scratch, Snapshot,
};
use futures_util::future::join_all;
use redis::Value;

use super::contender::RedlockContender;
use super::debts::{By, free};
use super::member::Member;
use super::quorum::{Quorum, Slate};
use super::refusals::{LOOK_AGAIN, nth_change};
use crate::error::strange_answer;
use crate::identity::{Keys, Process};
use crate::node::Step;
use crate::sample::in_turn;
use crate::scratch::Leftovers;
use crate::script::{QUORUM, SCRIPTS};
use crate::snapshot::{self, Seen};

/// One connected store.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) quorum: Quorum,
    pub(crate) process: Process,
    pub(crate) profile: Profile,
}

impl Store {
    /// What each node that answers has of a lock.
    async fn inspect_all(&self, keys: &Keys) -> Result<Vec<Seen>> {
        let step = Step {
            script: &SCRIPTS.inspect,
            keys: &keys.all(),
            values: &[snapshot::MOST.as_bytes()],
        };
        let question = async |member: &Member| {
            let answer = member.batches.step(step).await?;
            snapshot::read(answer).ok_or_else(|| strange_answer("inspect"))
        };
        self.quorum.ask_all(question).await
    }
}

/// What one node said to a look.
pub(crate) struct Seeing {
    look_in: Duration,
    missing: bool,
    /// Empty if it is of another process.
    first: Vec<u8>,
    /// Those of this process whose turn it is: the first, or readers.
    turns: Vec<Vec<u8>>,
}

impl Seeing {
    fn is_turn_of(&self, waiter: &[u8]) -> bool {
        self.turns.iter().any(|turn| turn == waiter)
    }

    /// Whether it says something of `waiter`.
    fn concerns(&self, waiter: &[u8]) -> bool {
        self.first == waiter || self.is_turn_of(waiter)
    }

    /// Whether more of the dead come first than one look may pass over: the living are not known yet.
    fn is_unfinished(&self) -> bool {
        self.first.is_empty() && self.look_in < LOOK_AGAIN
    }

    /// When the node may have something else to say to `waiter`.
    fn change_for(&self, waiter: &[u8]) -> Duration {
        if self.is_turn_of(waiter) {
            Duration::ZERO
        } else if self.first == waiter || self.is_unfinished() {
            self.look_in
        } else if self.missing {
            // It may be the first there as soon as it asks.
            Duration::ZERO
        } else {
            LOOK_AGAIN
        }
    }
}

pub(crate) fn read_look(answer: &Value) -> Option<Seeing> {
    let Value::Array(values) = answer else { return None };
    let [Value::Int(look_in), Value::Int(missing), Value::BulkString(first), turns @ ..] =
        values.as_slice()
    else {
        return None;
    };
    let turns = turns.iter().map(|turn| match turn {
        Value::BulkString(identity) => Some(identity.clone()),
        _ => None,
    });
    let look_in = Duration::from_millis(u64::try_from(*look_in).ok()?);
    let (missing, first) = (*missing != 0, first.clone());
    Some(Seeing { look_in, missing, first, turns: turns.collect::<Option<_>>()? })
}

impl DistributedLock for Store {
    type Contender = RedlockContender;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock(&self) -> &dyn Clock {
        &*self.quorum.circle.clock
    }

    fn enter(self: &Arc<Self>, claim: Arc<Claim>) -> RedlockContender {
        RedlockContender::new(self.clone(), claim)
    }

    async fn renew(&self, held: &RedlockContender) -> Result<Renewal> {
        held.renew().await
    }

    async fn look(&self, lock: &LockName, waiting: &[&RedlockContender]) -> Result<Vec<Look>> {
        let keys = Keys::of(lock.key());
        let quorum = &self.quorum;
        let mut values = vec![self.process.as_str().as_bytes()];
        values.extend(in_turn(waiting).map(|waiter| waiter.waiter().as_bytes()));
        let step = Step { script: &QUORUM.look, keys: &keys.all(), values: &values };
        let Slate { ballots, words, .. } = quorum.slate(quorum.now())?;
        let question = async |member: &Member| {
            let answer = member.batches.step(step).await?;
            read_look(&answer).ok_or_else(|| strange_answer("look"))
        };
        let asked = ballots.asked().map(|(node, _)| node);
        let seen = quorum.ask(asked, words, question).await?;
        let missing = seen.iter().filter(|look| look.missing).count();
        // One of them is enough to go on with what nodes had to leave undone.
        let unfinished = seen.iter().filter(|look| look.is_unfinished());
        let sweep_in = unfinished.map(|look| look.look_in).min().unwrap_or(LOOK_AGAIN);
        let look = |(index, waiter): (usize, &&RedlockContender)| {
            if missing >= quorum.majority() {
                return Look::Attempt;
            }
            let waiter = waiter.waiter().as_bytes();
            let at_latest = if index == 0 { sweep_in } else { LOOK_AGAIN };
            if !seen.iter().any(|look| look.concerns(waiter)) {
                return Look::Again(at_latest);
            }
            let changes = seen.iter().map(|look| look.change_for(waiter));
            match nth_change(changes.collect(), quorum.majority()) {
                Duration::ZERO => Look::Attempt,
                again => Look::Again(again.min(at_latest)),
            }
        };
        Ok(waiting.iter().enumerate().map(look).collect())
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let seen = self.inspect_all(&Keys::of(name.key())).await?;
        let quorum = &self.quorum;
        // Who is not seen by those that do not answer may be held by them.
        let silent = quorum.members.len() - seen.len();
        Ok(Seen::merge(seen, quorum.majority().saturating_sub(silent).max(1)).into_snapshot())
    }

    async fn evict(&self, name: &LockName, who: &OccupantId) -> Result<Removal> {
        let keys = Keys::of(name.key());
        let seen = self.inspect_all(&keys).await?;
        let Some(value) = seen.iter().find_map(|seen| seen.value_of(who)) else {
            return Ok(Removal::Absent);
        };
        let quorum = &self.quorum;
        let freeing = quorum.ask_all(|member| free(&member.batches, &keys, value, "", By::Order));
        let removed = freeing.await?;
        match (removed.contains(&true), removed.len() == quorum.members.len()) {
            (false, _) => Ok(Removal::Absent),
            (true, true) => Ok(Removal::Removed),
            (true, false) => Ok(Removal::Partly { was_held: true }),
        }
    }

    /// From every node, whether it may vote or not. One that is away does not hold up the others.
    async fn clear(&self, scratch: &Scratch) -> Result<()> {
        let leftovers = &Leftovers::of(scratch);
        let clearing = self.quorum.members.iter().map(async |member| {
            let cleared = leftovers.clear(member.link()).await;
            cleared.map_err(|error| {
                let message = format!("node {} keeps some of it", member.host);
                Error::new(error.kind(), message).retryable(error.is_retryable()).caused_by(error)
            })
        });
        join_all(clearing).await.into_iter().collect()
    }

    async fn close(&self) -> Result<()> {
        self.quorum.close();
        Ok(())
    }
}
