//! The store behind its traits: its profile, its renewals, its checks of waiters and its cells.

use std::borrow::Cow;
use std::hash::Hash;
use std::sync::Arc;

use fencelock_core::{
    Acquisition, CellDurability, CellStore, Cells, Claim, Clock, Content, DistributedLock, Keep,
    Liveness, LockName, Modes, Notifier, Order, ParticipantId, Profile, Reach, ReleaseOutcome,
    RenewOutcome, RenewalPlan, Result, Scratch, Snapshot, Stamp, TokenOrder, Ttl, WaiterCheck,
};
use futures_util::future::join_all;

use crate::claim::acquisition::{ZkAcquisition, find_missed};
use crate::error::RequestError;
use crate::nodes::{cell, scratch, snapshot};
use crate::sessions::pool::Pool;
use crate::sessions::session::heartbeat_interval;

/// What no margin covers: docs/zookeeper.md explains each.
const FAILS_WHEN: &[&str] = &[
    "the servers have different bounds for session timeouts",
    "a frozen follower is cut off from its leader at the moment it resumes",
    "an observer that follows an observer master is cut off, with a session of less than 4 ticks",
    "someone force-releases the lock, until its holder has been notified",
];

/// A connected client behind the core's trait.
pub(crate) struct ZkBackend {
    pool: Arc<Pool>,
    profile: Profile,
}

impl ZkBackend {
    pub(crate) fn new(pool: Arc<Pool>) -> ZkBackend {
        let timeout = pool.timeout;
        let profile = Profile {
            store: "zookeeper",
            reach: Reach::Network,
            liveness: Liveness::Session(timeout),
            renewal: RenewalPlan::Every(heartbeat_interval(timeout)),
            longest_ttl: Ttl::MAX,
            order: Order::Arrival,
            modes: Modes::ALL,
            downgrade: true,
            tokens: TokenOrder::Data,
            max_local_handoffs: 64,
            cells: Some(CellDurability::Synced),
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

    fn begin(self: &Arc<Self>, claim: Arc<Claim>) -> ZkAcquisition {
        ZkAcquisition::new(self.pool.clone(), claim)
    }

    /// The session of its node.
    fn shard(&self, acquisition: &ZkAcquisition) -> impl Eq + Hash + Send {
        acquisition.live_session().map(|session| session.id)
    }

    /// Renews by the heartbeat of the session, which concurrent renewals share.
    async fn renew(&self, held: &ZkAcquisition) -> Result<RenewOutcome> {
        let Some(session) = held.live_session() else { return Ok(RenewOutcome::Lost) };
        let heartbeat = session.send_heartbeat().await;
        // Checked again: the node, or the session, may be gone by now.
        let valid_until = session.deadline().filter(|_| held.live_session().is_some());
        match (heartbeat, valid_until) {
            (_, None) => Ok(RenewOutcome::Lost),
            (Ok(()), Some(valid_until)) => Ok(RenewOutcome::Renewed { valid_until }),
            (Err(error), Some(_)) => Err(error.into_error()),
        }
    }

    async fn check_waiters(
        &self,
        _: &LockName,
        waiting: &[&ZkAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        let Some(session) = waiting.iter().find_map(|waiter| waiter.live_session()) else {
            return Ok(vec![WaiterCheck::Attempt; waiting.len()]);
        };
        let heartbeat = session.send_heartbeat().await;
        let now = self.pool.clock.now();
        join_all(waiting.iter().map(|waiter| waiter.pass_over(now))).await;
        let missed = find_missed(&session, waiting).await;
        let must_attempt = |waiter: &&ZkAcquisition| {
            waiter.live_session().is_none() || missed.contains(&waiter.claim().id())
        };
        if let Err(error) = heartbeat
            && !waiting.iter().all(must_attempt)
        {
            // The error applies to all waiters. Those that have to attempt are woken, so that they
            // need not wait for the next check.
            for waiter in waiting.iter().copied().filter(must_attempt) {
                waiter.claim().wake();
            }
            return Err(error.into_error());
        }
        let again = WaiterCheck::Again(session.heartbeat_interval());
        let check = |waiter| if must_attempt(waiter) { WaiterCheck::Attempt } else { again };
        Ok(waiting.iter().map(check).collect())
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let session = self.pool.session().await?;
        let lock = self.pool.path_of(name)?;
        let nodes = snapshot::read(&session, &lock).await;
        nodes.map(snapshot::of_nodes).map_err(RequestError::into_error)
    }

    async fn inspect_holders(&self, name: &LockName) -> Result<Snapshot> {
        let session = self.pool.session().await?;
        let lock = self.pool.path_of(name)?;
        let nodes = snapshot::read_holders(&session, &lock).await;
        nodes.map(snapshot::of_nodes).map_err(RequestError::into_error)
    }

    async fn evict(&self, name: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
        let session = self.pool.session().await?;
        let lock = self.pool.path_of(name)?;
        snapshot::evict(&session, &lock, who).await.map_err(RequestError::into_error)
    }

    async fn clear(&self, scratch: &Scratch) -> Result<()> {
        scratch::clear(&self.pool, scratch).await
    }

    fn cells(self: &Arc<Self>) -> Option<Cells> {
        Some(Cells::of(self.clone()))
    }

    async fn close(&self) -> Result<()> {
        self.pool.close().await;
        Ok(())
    }
}

/// Cells end by nothing but their removal: the servers end no node by time unless they are configured
/// to, so `keep` is for the readers, and `list` for an operator.
impl CellStore for ZkBackend {
    async fn read(
        &self,
        cell: &LockName,
        notifier: Option<&Arc<Notifier>>,
    ) -> Result<Option<Content>> {
        let path = self.pool.path_of_cell(cell)?;
        let Some(notifier) = notifier else {
            let session = self.pool.session().await?;
            return cell::read(&session, &path).await.map_err(RequestError::into_error);
        };
        let (session, room) = self.pool.reserve_cell(&path).await?;
        let states = session.states();
        let read = cell::read_and_watch(&session, &path).await;
        let (content, watcher) = read.map_err(RequestError::into_error)?;
        // Ends the watch of the last reading. That is removed only here, after this one was added in
        // its place: one watch at the servers, and no gap between the two.
        notifier.notify_when(async move {
            let _room = room;
            cell::until_changed(watcher, states).await;
        });
        Ok(content)
    }

    async fn swap(
        &self,
        cell: &LockName,
        from: Option<Stamp>,
        to: Option<&Content>,
        _keep: Keep,
    ) -> Result<bool> {
        let path = self.pool.path_of_cell(cell)?;
        let session = self.pool.session().await?;
        let swapped = cell::swap(&session, &self.pool.access, &path, from, to).await;
        swapped.map_err(RequestError::into_error)
    }

    async fn list(&self, prefix: &str) -> Result<Option<Vec<String>>> {
        let session = self.pool.session().await?;
        let listed = cell::list(&session, &self.pool.access.root, prefix).await;
        listed.map(Some).map_err(RequestError::into_error)
    }
}
