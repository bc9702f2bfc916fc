//! The connected store: what it promises, and what core asks of it.

use std::borrow::Cow;
use std::hash::Hash;
use std::sync::Arc;

use fencelock_core::{
    Claim, Clock, Contender, DistributedLock, Liveness, LockName, Look, Modes, OccupantId, Order,
    Profile, Reach, Removal, Renewal, RenewalPlan, Result, Scratch, Snapshot, Tokens, Ttl,
};
use futures_util::future::join_all;

use crate::contender::{Upkeep, ZkContender};
use crate::pool::Pool;
use crate::scratch;
use crate::session::heartbeat;
use crate::snapshot;

/// What no margin covers: docs/zookeeper.md has more words for it.
const FAILS_WHEN: &[&str] = &[
    "the servers have different bounds for session timeouts",
    "a follower is cut off from its leader in the moment in which it thaws",
    "an observer behind an observer master is cut off, with a session of less than 4 ticks",
    "a person breaks the lock, until its holder has heard of it",
];

/// The store as core drives it.
#[derive(Debug)]
pub(crate) struct Driver {
    pool: Arc<Pool>,
    profile: Profile,
}

impl Driver {
    pub(crate) fn new(pool: Arc<Pool>) -> Driver {
        let timeout = pool.timeout();
        let profile = Profile {
            store: "zookeeper",
            reach: Reach::Network,
            liveness: Liveness::Session(timeout),
            renewal: RenewalPlan::Every(heartbeat(timeout)),
            longest_ttl: Ttl::MAX,
            order: Order::Arrival,
            modes: Modes::ALL,
            tokens: Tokens::Data,
            exclusion_fails_when: Cow::Borrowed(FAILS_WHEN),
        };
        Driver { pool, profile }
    }
}

impl DistributedLock for Driver {
    type Contender = ZkContender;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock(&self) -> &dyn Clock {
        &*self.pool.clock
    }

    fn enter(self: &Arc<Self>, claim: Arc<Claim>) -> ZkContender {
        ZkContender::new(self.pool.clone(), claim)
    }

    /// The session that it lives by.
    fn shard(&self, contender: &ZkContender) -> impl Eq + Hash + Send {
        contender.lives_by().map(|session| session.id())
    }

    /// By the heartbeat of its session, which all that are renewed at the same time share.
    async fn renew(&self, held: &ZkContender) -> Result<Renewal> {
        let Some(session) = held.lives_by() else { return Ok(Renewal::Lost) };
        let beat = session.beat().await;
        // Looked at again: its node may have gone meanwhile, or all of them.
        let valid_until = session.deadline().filter(|_| held.lives_by().is_some());
        match (beat, valid_until) {
            (_, None) => Ok(Renewal::Lost),
            (Ok(()), Some(valid_until)) => Ok(Renewal::Renewed { valid_until }),
            (Err(trouble), Some(_)) => Err(trouble.into()),
        }
    }

    async fn look(&self, _: &LockName, waiting: &[&ZkContender]) -> Result<Vec<Look>> {
        let Some(session) = waiting.iter().find_map(|waiter| waiter.lives_by()) else {
            return Ok(vec![Look::Attempt; waiting.len()]);
        };
        let beat = session.beat().await;
        let now = self.pool.clock.now();
        join_all(waiting.iter().map(|waiter| waiter.pass_over(now))).await;
        let upkeep = Upkeep::of(&session, waiting).await;
        let must_attempt = |waiter: &&ZkContender| upkeep.must_attempt(waiter);
        match beat {
            // Those that are not to wait for another look need not.
            Err(trouble) if !waiting.iter().all(must_attempt) => {
                waiting.iter().copied().filter(must_attempt).for_each(|waiter| {
                    waiter.claim().ring();
                });
                Err(trouble.into())
            }
            _ => Ok(waiting
                .iter()
                .map(|waiter| match must_attempt(waiter) {
                    true => Look::Attempt,
                    false => Look::Again(session.heartbeat()),
                })
                .collect()),
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let session = self.pool.session().await?;
        let lock = self.pool.path_of(name)?;
        Ok(snapshot::of(&session, &lock).await?.into_snapshot())
    }

    async fn evict(&self, name: &LockName, who: &OccupantId) -> Result<Removal> {
        let session = self.pool.session().await?;
        let lock = self.pool.path_of(name)?;
        snapshot::evict(&session, &lock, who).await
    }

    async fn clear(&self, scratch: &Scratch) -> Result<()> {
        scratch::clear(&self.pool, scratch).await
    }

    async fn close(&self) -> Result<()> {
        self.pool.close().await;
        Ok(())
    }
}
