//! The backend: renewals, checks of waiters, `inspect` and `evict`.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{
    Acquisition, Cells, Claim, Clock, DistributedLock, LockName, ParticipantId, Profile,
    ReleaseOutcome, RenewOutcome, Result, Scratch, Snapshot, WaiterCheck,
};
use redis::Value;
use tokio::time::timeout;

use super::acquisition::RedisAcquisition;
use super::store::Store;
use crate::protocol::call::ScriptCall;
use crate::protocol::identity::Keys;
use crate::protocol::script::SCRIPTS;
use crate::protocol::snapshot::MOST;
use crate::server::sample::{SAMPLE, in_turn};
use crate::server::scratch::Leftovers;

/// How often the waiters of a lock are checked together, unless one is due sooner.
const CHECK_AGAIN: Duration = Duration::from_secs(1);

impl DistributedLock for Store {
    type Acquisition = RedisAcquisition;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn begin(self: &Arc<Self>, claim: Arc<Claim>) -> RedisAcquisition {
        RedisAcquisition::new(self.clone(), claim)
    }

    /// The server that has the lock: a server that is slow or dead does not delay the others.
    fn shard(&self, acquisition: &RedisAcquisition) -> impl Eq + Hash + Send {
        self.server.shard_of(acquisition.keys.lock())
    }

    async fn renew(&self, held: &RedisAcquisition) -> Result<RenewOutcome> {
        held.renew().await
    }

    async fn check_waiters(
        &self,
        lock: &LockName,
        waiting: &[&RedisAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        let keys = &Keys::of(lock.key());
        let mut values = vec![self.client.as_str().as_bytes()];
        values.extend(sample(waiting).map(|waiter| waiter.identity.as_bytes()));
        let call =
            ScriptCall { script: &SCRIPTS.check_waiters, keys: &keys.all(), values: &values };
        let priority = Claim::check_priority(waiting.iter().map(|it| it.claim()));
        let answer = self.server.call_as(call, priority).await?;
        let reply = read_check(answer)
            .ok_or_else(|| self.server.protocol_error(keys.lock(), "check_waiters"))?;
        let head = reply.head.as_deref();
        let head = waiting.iter().position(|waiter| head == Some(waiter.identity.as_bytes()));
        let check_after = match (head, reply.check_after) {
            (Some(head), Duration::ZERO) => self.watch_foreign(keys, waiting[head].claim()).await,
            // The first in the queue is checked by its own client.
            (None, Duration::ZERO) => CHECK_AGAIN,
            (_, check_after) => check_after,
        };
        let ours = reply.ours.iter().chain(&reply.head);
        let strays: Vec<_> = ours.filter(|identity| self.is_stray(identity)).cloned().collect();
        if !strays.is_empty() {
            // What this check says of the others is not lost with it, nor late.
            let _ = timeout(CHECK_AGAIN, self.release_strays(keys, strays)).await;
        }
        // Without a first waiter of ours, any waiter may continue what the script left undone.
        let sooner = head.unwrap_or(0);
        let result_for = |(index, waiter): (usize, &&RedisAcquisition)| {
            let is_ours = |ours: &Vec<u8>| ours == waiter.identity.as_bytes();
            if reply.missing || reply.ours.iter().any(is_ours) {
                WaiterCheck::Attempt
            } else {
                WaiterCheck::Again(if index == sooner { check_after } else { CHECK_AGAIN })
            }
        };
        Ok(waiting.iter().enumerate().map(result_for).collect())
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        Ok(self.contents(&Keys::of(name.key()), MOST).await?.into_snapshot())
    }

    async fn inspect_holders(&self, name: &LockName) -> Result<Snapshot> {
        Ok(self.contents(&Keys::of(name.key()), "0").await?.into_snapshot())
    }

    async fn evict(&self, name: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
        let keys = Keys::of(name.key());
        let contents = self.contents(&keys, MOST).await?;
        match contents.evicted(who) {
            Some((value, how)) => self.release(&keys, &[value, how]).await,
            None => Ok(ReleaseOutcome::Absent),
        }
    }

    fn cells(self: &Arc<Self>) -> Option<Cells> {
        Some(Cells::of(self.clone()))
    }

    async fn clear(&self, scratch: &Scratch) -> Result<()> {
        self.server.clear(&Leftovers::of(scratch)).await
    }

    fn stop_attempts(&self) {
        self.server.stop_attempts();
    }

    async fn close(&self) -> Result<()> {
        self.server.close();
        Ok(())
    }
}

/// The oldest of `waiting`, which every loss of the queue affects, and some others.
fn sample<'a>(waiting: &'a [&RedisAcquisition]) -> impl Iterator<Item = &'a RedisAcquisition> {
    let oldest = waiting.iter().min_by_key(|waiter| waiter.claim().id()).copied();
    let others = in_turn(waiting);
    let others = others.filter(move |other| oldest.is_none_or(|one| !std::ptr::eq(one, *other)));
    oldest.into_iter().chain(others.take(SAMPLE - 1))
}

/// The reply of the script `check_waiters`.
pub(crate) struct CheckReply {
    /// When to check again: for the first in the queue, if it is of this client; for any waiter, if
    /// the script left work undone.
    check_after: Duration,
    /// Waiters of this client may be missing from the queue.
    missing: bool,
    /// The first in the queue, if it is of this client.
    head: Option<Vec<u8>>,
    /// Identities of this client that hold the lock or were granted it.
    ours: Vec<Vec<u8>>,
}

pub(crate) fn read_check(answer: Value) -> Option<CheckReply> {
    let Value::Array(values) = answer else { return None };
    let mut values = values.into_iter();
    let (Value::Int(check_after), Value::Int(missing), Value::BulkString(head)) =
        (values.next()?, values.next()?, values.next()?)
    else {
        return None;
    };
    let ours = values.map(|value| match value {
        Value::BulkString(identity) => Some(identity),
        _ => None,
    });
    Some(CheckReply {
        check_after: Duration::from_millis(u64::try_from(check_after).ok()?),
        missing: missing != 0,
        head: (!head.is_empty()).then_some(head),
        ours: ours.collect::<Option<_>>()?,
    })
}
