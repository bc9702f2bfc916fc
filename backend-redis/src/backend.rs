//! The store as core drives it: renewals and looks, and people's questions.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{
    Acquisition, BootClock, Claim, Clock, DistributedLock, LockName, ParticipantId, Profile,
    ReleaseOutcome, RenewOutcome, Result, Scratch, Snapshot, WaiterCheck,
};
use redis::Value;

use crate::protocol::identity::{ClientId, Identity, Keys};
use crate::protocol::script::SCRIPTS;
use crate::protocol::snapshot::{self, LockContents};
use crate::sample::{SAMPLE, in_turn};
use crate::server::node::{ScriptCall, Watched};
use crate::server::scratch::Leftovers;
use crate::server::topology::Server;
use crate::single::acquisition::RedisAcquisition;
use crate::single::notifications::Notifications;

/// Waiters who do not look sooner look together, this often.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How often the first in the queue looks behind a client of another library.
const FOREIGN_LOOK: Duration = Duration::from_millis(50);

/// One connected store.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) server: Server,
    pub(crate) clock: BootClock,
    pub(crate) process: ClientId,
    pub(crate) notifications: Arc<Notifications>,
    pub(crate) profile: Profile,
}

impl Store {
    /// Takes an identity, the first of `values`, out of the lock or its queue.
    pub(crate) async fn release(&self, keys: &Keys, values: &[&[u8]]) -> Result<ReleaseOutcome> {
        let step = ScriptCall { script: &SCRIPTS.release, keys: &keys.all(), values };
        match self.server.call(step).await? {
            Value::Int(1) => Ok(ReleaseOutcome::Removed),
            Value::Int(0) => Ok(ReleaseOutcome::Absent),
            _ => Err(self.server.protocol_error(keys.lock(), "release")),
        }
    }

    /// The lock is held by a client of another library, whose release tells nobody; `claim` is the
    /// first to get it then. Asks the server to tell when the key changes; when to look again.
    pub(crate) async fn watch_foreign(&self, keys: &Keys, claim: &Arc<Claim>) -> Duration {
        self.notifications.watch(keys.lock(), claim);
        match self.server.watch(keys.lock()).await {
            // It went before the server began to watch it.
            Ok(Watched::Free) => Duration::from_millis(1),
            // Told or not: a push can be lost, and an ACL may not allow to be told.
            Ok(Watched::Held) | Err(_) => FOREIGN_LOOK,
        }
    }

    /// What the store has of this process that nobody here knows was put there by an attempt that
    /// arrived after its claim's release. Nobody else would ever take it away.
    async fn release_if_stray(&self, keys: &Keys, identity: &[u8]) -> Result<()> {
        let known = Identity::parse(identity).is_none_or(|own| self.notifications.knows(own.owner));
        if !known {
            self.release(keys, &[identity]).await?;
        }
        Ok(())
    }
}

/// The oldest of `waiting`, which a loss always hits, and others in turn.
fn sample<'a>(waiting: &'a [&RedisAcquisition]) -> impl Iterator<Item = &'a RedisAcquisition> {
    let oldest = waiting.iter().min_by_key(|waiter| waiter.claim().id()).copied();
    let others = in_turn(waiting);
    let others = others.filter(move |other| oldest.is_none_or(|one| !std::ptr::eq(one, *other)));
    oldest.into_iter().chain(others.take(SAMPLE - 1))
}

/// What one look at a lock said.
pub(crate) struct LookAnswer {
    /// When the first in the queue should look again, if it is of this process, or any waiter while
    /// the step had more to do than it may.
    check_after: Duration,
    /// Waiters of this process may be missing from the queue.
    missing: bool,
    head: Option<Vec<u8>>,
    /// Of this process, and holding or granted.
    ours: Vec<Vec<u8>>,
}

pub(crate) fn read_look(answer: Value) -> Option<LookAnswer> {
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
    Some(LookAnswer {
        check_after: Duration::from_millis(u64::try_from(check_after).ok()?),
        missing: missing != 0,
        head: (!head.is_empty()).then_some(head),
        ours: ours.collect::<Option<_>>()?,
    })
}

impl DistributedLock for Store {
    type Acquisition = RedisAcquisition;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn enter(self: &Arc<Self>, claim: Arc<Claim>) -> RedisAcquisition {
        RedisAcquisition::new(self.clone(), claim)
    }

    /// The server that has its lock.
    fn shard(&self, contender: &RedisAcquisition) -> impl Eq + Hash + Send {
        self.server.shard_of(contender.keys().lock())
    }

    async fn renew(&self, held: &RedisAcquisition) -> Result<RenewOutcome> {
        held.renew().await
    }

    async fn look(
        &self,
        lock: &LockName,
        waiting: &[&RedisAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        let keys = &Keys::of(lock.key());
        let mut values = vec![self.process.as_str().as_bytes()];
        values.extend(sample(waiting).map(|waiter| waiter.identity().as_bytes()));
        let step =
            ScriptCall { script: &SCRIPTS.check_waiters, keys: &keys.all(), values: &values };
        let answer = self.server.call(step).await?;
        let seen =
            read_look(answer).ok_or_else(|| self.server.protocol_error(keys.lock(), "look"))?;
        let is_head =
            |waiter: &&RedisAcquisition| seen.head.as_deref() == Some(waiter.identity().as_bytes());
        let head = waiting.iter().position(is_head);
        let check_after = match (head, seen.check_after) {
            (Some(head), Duration::ZERO) => self.watch_foreign(keys, waiting[head].claim()).await,
            // The first in the queue has a look of its own.
            (None, Duration::ZERO) => LOOK_AGAIN,
            (_, check_after) => check_after,
        };
        for stray in seen.ours.iter().chain(&seen.head) {
            self.release_if_stray(keys, stray).await?;
        }
        // Without a head of ours, what a step had to leave undone is anyone's.
        let sooner = head.unwrap_or(0);
        let look = |(index, waiter): (usize, &&RedisAcquisition)| {
            let identity = waiter.identity().as_bytes();
            match seen.missing || seen.ours.iter().any(|ours| ours == identity) {
                true => WaiterCheck::Attempt,
                false if index == sooner => WaiterCheck::Again(check_after),
                false => WaiterCheck::Again(LOOK_AGAIN),
            }
        };
        Ok(waiting.iter().enumerate().map(look).collect())
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        Ok(snapshot::of(&self.server, &Keys::of(name.key())).await?.into_snapshot())
    }

    async fn evict(&self, name: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
        let keys = Keys::of(name.key());
        let seen: LockContents = snapshot::of(&self.server, &keys).await?;
        match seen.value_of(who) {
            Some(value) => self.release(&keys, &[value, b"tell"]).await,
            None => Ok(ReleaseOutcome::Absent),
        }
    }

    async fn clear(&self, scratch: &Scratch) -> Result<()> {
        self.server.clear(&Leftovers::of(scratch)).await
    }

    async fn close(&self) -> Result<()> {
        self.server.close();
        Ok(())
    }
}
