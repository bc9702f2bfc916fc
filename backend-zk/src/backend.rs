//! The connected store: what it promises, and the batches that core sends.

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_core::{
    Acquisition, Claim, Clock, DistributedLock, Liveness, LockName, Modes, Order, ParticipantId,
    Profile, Reach, ReleaseOutcome, RenewOutcome, RenewalPlan, Report, Result, Scratch, Snapshot,
    TokenOrder, Ttl, WaiterCheck,
};
use futures_util::future::join_all;

use crate::contender::{MissedWatches, ZkAcquisition};
use crate::pool::Pool;
use crate::scratch;
use crate::session::{Session, heartbeat_interval};
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

/// The driver's own seat behind the trait.
fn own(acquisition: &Arc<dyn Acquisition>) -> Option<&ZkAcquisition> {
    let any: &dyn Any = &**acquisition;
    any.downcast_ref()
}

/// The indices of contenders by the session that they live by.
#[derive(Default)]
struct BySession {
    sessions: Vec<(Arc<Session>, Vec<usize>)>,
    /// Those that have none.
    orphaned: Vec<usize>,
}

impl BySession {
    fn of(acquisitions: &[Arc<dyn Acquisition>]) -> BySession {
        let mut all = BySession::default();
        for (index, acquisition) in acquisitions.iter().enumerate() {
            let Some(session) = own(acquisition).and_then(ZkAcquisition::live_session) else {
                all.orphaned.push(index);
                continue;
            };
            match all.sessions.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &session)) {
                Some((_, indices)) => indices.push(index),
                None => all.sessions.push((session, vec![index])),
            }
        }
        all
    }
}

#[async_trait]
impl DistributedLock for ZkBackend {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock(&self) -> &dyn Clock {
        &*self.pool.clock
    }

    fn begin(&self, claim: Arc<Claim>) -> Arc<dyn Acquisition> {
        Arc::new(ZkAcquisition::new(self.pool.clone(), claim))
    }

    async fn renew(&self, held: &[Arc<dyn Acquisition>], report: Report<'_, RenewOutcome>) {
        let BySession { sessions, orphaned } = BySession::of(held);
        orphaned.into_iter().for_each(|index| report(index, Ok(RenewOutcome::Lost)));
        join_all(sessions.into_iter().map(async |(session, indices)| {
            let heartbeat = session.send_heartbeat().await;
            for index in indices {
                // Looked at again: a node may have gone meanwhile, or all of them.
                let is_there = own(&held[index]).and_then(ZkAcquisition::live_session).is_some();
                let valid_until = session.deadline().filter(|_| is_there);
                report(
                    index,
                    match (&heartbeat, valid_until) {
                        (_, None) => Ok(RenewOutcome::Lost),
                        (Ok(()), Some(valid_until)) => Ok(RenewOutcome::Renewed { valid_until }),
                        (Err(error), Some(_)) => Err(error.clone().into()),
                    },
                );
            }
        }))
        .await;
    }

    async fn check_waiters(
        &self,
        waiting: &[Arc<dyn Acquisition>],
        report: Report<'_, WaiterCheck>,
    ) {
        let BySession { sessions, orphaned } = BySession::of(waiting);
        orphaned.into_iter().for_each(|index| report(index, Ok(WaiterCheck::Attempt)));
        join_all(sessions.into_iter().map(async |(session, indices)| {
            let heartbeat = session.send_heartbeat().await;
            let waiters = || indices.iter().filter_map(|at| own(&waiting[*at]));
            let now = self.pool.clock.now();
            join_all(waiters().map(|waiter| waiter.pass_over(now))).await;
            let missed = MissedWatches::of(&session, waiters()).await;
            for index in indices {
                let Some(waiter) = own(&waiting[index]) else { continue };
                report(
                    index,
                    match &heartbeat {
                        _ if missed.must_attempt(waiter) => Ok(WaiterCheck::Attempt),
                        Ok(()) => Ok(WaiterCheck::Again(session.heartbeat_interval())),
                        Err(error) => Err(error.clone().into()),
                    },
                );
            }
        }))
        .await;
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
