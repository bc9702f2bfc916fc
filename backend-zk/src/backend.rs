//! The connected store: what it promises, and what core asks of it.

use std::borrow::Cow;
use std::hash::Hash;
use std::sync::Arc;

use fencelock_core::{
    Acquisition, Claim, Clock, DistributedLock, Liveness, LockName, Modes, Order, ParticipantId,
    Profile, Reach, ReleaseOutcome, RenewOutcome, RenewalPlan, Result, Scratch, Snapshot,
    TokenOrder, Ttl, WaiterCheck,
};
use futures_util::future::join_all;

use crate::contender::{MissedWatches, ZkAcquisition};
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
pub(crate) struct ZkBackend {
    pool: Arc<Pool>,
    profile: Profile,
}

impl ZkBackend {
    pub(crate) fn new(pool: Arc<Pool>) -> ZkBackend {
        let timeout = pool.timeout();
        let profile = Profile {
            store: "zookeeper",
            reach: Reach::Network,
            liveness: Liveness::Session(timeout),
            renewal: RenewalPlan::Every(heartbeat_interval(timeout)),
            longest_ttl: Ttl::MAX,
            order: Order::Arrival,
            modes: Modes::ALL,
            tokens: TokenOrder::Data,
            exclusion_fails_when: Cow::Borrowed(FAILS_WHEN),
        };
        ZkBackend { pool, profile }
    }
}

impl DistributedLock for ZkBackend {
    type Acquisition = ZkAcquisition;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock(&self) -> &dyn Clock {
        &*self.pool.clock
    }

    fn enter(self: &Arc<Self>, claim: Arc<Claim>) -> ZkAcquisition {
        ZkAcquisition::new(self.pool.clone(), claim)
    }

    /// The session that it lives by.
    fn shard(&self, acquisition: &ZkAcquisition) -> impl Eq + Hash + Send {
        acquisition.live_session().map(|session| session.id())
    }

    /// By the heartbeat of its session, which all that are renewed at the same time share.
    async fn renew(&self, held: &ZkAcquisition) -> Result<RenewOutcome> {
        let Some(session) = held.live_session() else { return Ok(RenewOutcome::Lost) };
        let heartbeat = session.send_heartbeat().await;
        // Looked at again: its node may have gone meanwhile, or all of them.
        let valid_until = session.deadline().filter(|_| held.live_session().is_some());
        match (send_heartbeat, valid_until) {
            (_, None) => Ok(RenewOutcome::Lost),
            (Ok(()), Some(valid_until)) => Ok(RenewOutcome::Renewed { valid_until }),
            (Err(error), Some(_)) => Err(error.into()),
        }
    }

    async fn look(&self, _: &LockName, waiting: &[&ZkAcquisition]) -> Result<Vec<WaiterCheck>> {
        let Some(session) = waiting.iter().find_map(|waiter| waiter.live_session()) else {
            return Ok(vec![WaiterCheck::Attempt; waiting.len()]);
        };
        let heartbeat = session.send_heartbeat().await;
        let now = self.pool.clock.now();
        join_all(waiting.iter().map(|waiter| waiter.pass_over(now))).await;
        let missed = MissedWatches::of(&session, waiting).await;
        let must_attempt = |waiter: &&ZkAcquisition| missed.must_attempt(waiter);
        match send_heartbeat {
            // Those that are not to wait for another look need not.
            Err(error) if !waiting.iter().all(must_attempt) => {
                waiting.iter().copied().filter(must_attempt).for_each(|waiter| {
                    waiter.claim().wake();
                });
                Err(error.into())
            }
            _ => Ok(waiting
                .iter()
                .map(|waiter| match must_attempt(waiter) {
                    true => WaiterCheck::Attempt,
                    false => WaiterCheck::Again(session.heartbeat_interval()),
                })
                .collect()),
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let session = self.pool.session().await?;
        let lock = self.pool.path_of(name)?;
        Ok(snapshot::of(&session, &lock).await?.into_snapshot())
    }

    async fn evict(&self, name: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
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
