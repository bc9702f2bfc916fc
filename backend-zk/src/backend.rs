//! The connected store: what it promises, and the batches that core sends.

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_core::{
    Claim, Clock, Contender, DistributedLock, Liveness, LockName, Look, Modes, OccupantId, Order,
    Profile, Reach, Removal, Renewal, RenewalPlan, Report, Result, Scratch, Snapshot, Tokens, Ttl,
};
use futures_util::future::join_all;

use crate::contender::{Upkeep, ZkContender};
use crate::pool::Pool;
use crate::scratch;
use crate::session::{Session, heartbeat};
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

/// The driver's own seat behind the trait.
fn own(contender: &Arc<dyn Contender>) -> Option<&ZkContender> {
    let any: &dyn Any = &**contender;
    any.downcast_ref()
}

/// The indices of contenders by the session that they live by.
#[derive(Default)]
struct BySession {
    sessions: Vec<(Arc<Session>, Vec<usize>)>,
    /// Those that have none.
    homeless: Vec<usize>,
}

impl BySession {
    fn of(contenders: &[Arc<dyn Contender>]) -> BySession {
        let mut all = BySession::default();
        for (index, contender) in contenders.iter().enumerate() {
            let Some(session) = own(contender).and_then(ZkContender::lives_by) else {
                all.homeless.push(index);
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
impl DistributedLock for Driver {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock(&self) -> &dyn Clock {
        &*self.pool.clock
    }

    fn enter(&self, claim: Arc<Claim>) -> Arc<dyn Contender> {
        Arc::new(ZkContender::new(self.pool.clone(), claim))
    }

    async fn renew(&self, held: &[Arc<dyn Contender>], report: Report<'_, Renewal>) {
        let BySession { sessions, homeless } = BySession::of(held);
        homeless.into_iter().for_each(|index| report(index, Ok(Renewal::Lost)));
        join_all(sessions.into_iter().map(async |(session, indices)| {
            let beat = session.beat().await;
            for index in indices {
                // Looked at again: a node may have gone meanwhile, or all of them.
                let is_there = own(&held[index]).and_then(ZkContender::lives_by).is_some();
                let valid_until = session.deadline().filter(|_| is_there);
                report(
                    index,
                    match (&beat, valid_until) {
                        (_, None) => Ok(Renewal::Lost),
                        (Ok(()), Some(valid_until)) => Ok(Renewal::Renewed { valid_until }),
                        (Err(trouble), Some(_)) => Err(trouble.clone().into()),
                    },
                );
            }
        }))
        .await;
    }

    async fn look(&self, waiting: &[Arc<dyn Contender>], report: Report<'_, Look>) {
        let BySession { sessions, homeless } = BySession::of(waiting);
        homeless.into_iter().for_each(|index| report(index, Ok(Look::Attempt)));
        join_all(sessions.into_iter().map(async |(session, indices)| {
            let beat = session.beat().await;
            let waiters = || indices.iter().filter_map(|at| own(&waiting[*at]));
            let now = self.pool.clock.now();
            join_all(waiters().map(|waiter| waiter.pass_over(now))).await;
            let upkeep = Upkeep::of(&session, waiters()).await;
            for index in indices {
                let Some(waiter) = own(&waiting[index]) else { continue };
                report(
                    index,
                    match &beat {
                        _ if upkeep.must_attempt(waiter) => Ok(Look::Attempt),
                        Ok(()) => Ok(Look::Again(session.heartbeat())),
                        Err(trouble) => Err(trouble.clone().into()),
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
