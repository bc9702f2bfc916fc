//! The store as core drives it: renewals and looks, and people's questions.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{
    Claim, Clock, DistributedLock, Error, LockName, ParticipantId, Profile, ReleaseOutcome,
    RenewOutcome, Result, Scratch, Snapshot, WaiterCheck,
};
use futures_util::future::join_all;
use redis::Value;

use super::contender::RedlockAcquisition;
use super::debts::{ReleaseKind, free};
use super::member::Member;
use super::quorum::{Electorate, Quorum};
use super::rejections::{LOOK_AGAIN, nth_change};
use crate::protocol::call::ScriptCall;
use crate::protocol::error::protocol_error;
use crate::protocol::identity::{ClientId, Keys};
use crate::protocol::script::{QUORUM, SCRIPTS};
use crate::protocol::snapshot::{self, LockContents};
use crate::sample::in_turn;
use crate::server::scratch::Leftovers;

/// One connected store.
#[derive(Debug)]
pub(crate) struct QuorumStore {
    pub(crate) quorum: Quorum,
    pub(crate) client: ClientId,
    pub(crate) profile: Profile,
}

impl QuorumStore {
    /// What each node that answers has of a lock.
    async fn inspect_all(&self, keys: &Keys) -> Result<Vec<LockContents>> {
        let call = ScriptCall {
            script: &SCRIPTS.inspect,
            keys: &keys.all(),
            values: &[snapshot::MOST.as_bytes()],
        };
        let question = async |member: &Member| {
            let answer = member.batches.call(call).await?;
            snapshot::read(answer).ok_or_else(|| protocol_error("inspect"))
        };
        self.quorum.ask_all(question).await
    }
}

/// What one node said to a look.
pub(crate) struct WaiterCheckReply {
    check_after: Duration,
    missing: bool,
    /// Empty if it is of another process.
    first: Vec<u8>,
    /// Those of this process whose turn it is: the first, or readers.
    turns: Vec<Vec<u8>>,
}

impl WaiterCheckReply {
    fn is_turn_of(&self, waiter: &[u8]) -> bool {
        self.turns.iter().any(|turn| turn == waiter)
    }

    /// Whether it says something of `waiter`.
    fn concerns(&self, waiter: &[u8]) -> bool {
        self.first == waiter || self.is_turn_of(waiter)
    }

    /// Whether more of the dead come first than one look may pass over: the living are not known yet.
    fn is_unfinished(&self) -> bool {
        self.first.is_empty() && self.check_after < LOOK_AGAIN
    }

    /// When the node may have something else to say to `waiter`.
    fn change_for(&self, waiter: &[u8]) -> Duration {
        if self.is_turn_of(waiter) {
            Duration::ZERO
        } else if self.first == waiter || self.is_unfinished() {
            self.check_after
        } else if self.missing {
            // It may be the first there as soon as it asks.
            Duration::ZERO
        } else {
            LOOK_AGAIN
        }
    }
}

pub(crate) fn read_look(answer: &Value) -> Option<WaiterCheckReply> {
    let Value::Array(values) = answer else { return None };
    let [Value::Int(check_after), Value::Int(missing), Value::BulkString(first), turns @ ..] =
        values.as_slice()
    else {
        return None;
    };
    let turns = turns.iter().map(|turn| match turn {
        Value::BulkString(identity) => Some(identity.clone()),
        _ => None,
    });
    let check_after = Duration::from_millis(u64::try_from(*check_after).ok()?);
    let (missing, first) = (*missing != 0, first.clone());
    Some(WaiterCheckReply { check_after, missing, first, turns: turns.collect::<Option<_>>()? })
}

impl DistributedLock for QuorumStore {
    type Contender = RedlockAcquisition;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock(&self) -> &dyn Clock {
        &*self.quorum.view.clock
    }

    fn enter(self: &Arc<Self>, claim: Arc<Claim>) -> RedlockAcquisition {
        RedlockAcquisition::new(self.clone(), claim)
    }

    async fn renew(&self, held: &RedlockAcquisition) -> Result<RenewOutcome> {
        held.renew().await
    }

    async fn look(
        &self,
        lock: &LockName,
        waiting: &[&RedlockAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        let keys = Keys::of(lock.key());
        let quorum = &self.quorum;
        let mut values = vec![self.client.as_str().as_bytes()];
        values.extend(in_turn(waiting).map(|waiter| waiter.waiter().as_bytes()));
        let call = ScriptCall { script: &QUORUM.check_waiters, keys: &keys.all(), values: &values };
        let Electorate { eligible, words, .. } = quorum.electorate(quorum.now())?;
        let question = async |member: &Member| {
            let answer = member.batches.call(call).await?;
            read_look(&answer).ok_or_else(|| protocol_error("look"))
        };
        let asked = eligible.asked().map(|(node, _)| node);
        let seen = quorum.ask(asked, words, question).await?;
        let missing = seen.iter().filter(|look| look.missing).count();
        // One of them is enough to go on with what nodes had to leave undone.
        let unfinished = seen.iter().filter(|look| look.is_unfinished());
        let sweep_in = unfinished.map(|look| look.check_after).min().unwrap_or(LOOK_AGAIN);
        let look = |(index, waiter): (usize, &&RedlockAcquisition)| {
            if missing >= quorum.majority() {
                return WaiterCheck::Attempt;
            }
            let waiter = waiter.waiter().as_bytes();
            let at_latest = if index == 0 { sweep_in } else { LOOK_AGAIN };
            if !seen.iter().any(|look| look.concerns(waiter)) {
                return WaiterCheck::Again(at_latest);
            }
            let changes = seen.iter().map(|look| look.change_for(waiter));
            match nth_change(changes.collect(), quorum.majority()) {
                Duration::ZERO => WaiterCheck::Attempt,
                again => WaiterCheck::Again(again.min(at_latest)),
            }
        };
        Ok(waiting.iter().enumerate().map(look).collect())
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let seen = self.inspect_all(&Keys::of(name.key())).await?;
        let quorum = &self.quorum;
        // Who is not seen by those that do not answer may be held by them.
        let silent = quorum.members.len() - seen.len();
        Ok(LockContents::merge(seen, quorum.majority().saturating_sub(silent).max(1))
            .into_snapshot())
    }

    async fn evict(&self, name: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
        let keys = Keys::of(name.key());
        let seen = self.inspect_all(&keys).await?;
        let Some(value) = seen.iter().find_map(|seen| seen.value_of(who)) else {
            return Ok(ReleaseOutcome::Absent);
        };
        let quorum = &self.quorum;
        let release =
            quorum.ask_all(|member| free(&member.batches, &keys, value, "", ReleaseKind::Evict));
        let removed = release.await?;
        match (removed.contains(&true), removed.len() == quorum.members.len()) {
            (false, _) => Ok(ReleaseOutcome::Absent),
            (true, true) => Ok(ReleaseOutcome::Removed),
            (true, false) => Ok(ReleaseOutcome::Partly { was_held: true }),
        }
    }

    /// From every node, whether it may vote or not. One that is away does not hold up the others.
    async fn clear(&self, scratch: &Scratch) -> Result<()> {
        let leftovers = &Leftovers::of(scratch);
        let clearing = self.quorum.members.iter().map(async |member| {
            let cleared = leftovers.clear(member.connection()).await;
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
