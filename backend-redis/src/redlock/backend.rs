//! A connected quorum as core drives it: renewals, waiter checks, `inspect` and `evict`.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_core::{
    Claim, Clock, Contender, DistributedLock, Error, LockName, Look, OccupantId, Profile, Removal,
    Renewal, Report, Result, Scratch, Snapshot,
};
use futures_util::future::join_all;

use super::node::member::Member;
use super::node::pending_releases::{ReleaseKind, release_round};
use super::node::quorum::Quorum;
use super::request::acquisition::RedlockAcquisition;
use super::request::waiter_check;
use crate::error::strange_answer;
use crate::identity::{Keys, Process};
use crate::node::Step;
use crate::scratch::Leftovers;
use crate::script::SCRIPTS;
use crate::seats::{self, Seats};
use crate::snapshot::{self, Seen};

#[derive(Debug)]
pub(crate) struct QuorumStore {
    pub(crate) quorum: Arc<Quorum>,
    pub(crate) process: Process,
    pub(crate) profile: Profile,
}

impl QuorumStore {
    /// What each node that replies has of a lock.
    async fn inspect_all(&self, keys: &Keys) -> Result<Vec<Seen>> {
        let step = Step {
            script: &SCRIPTS.inspect,
            keys: &keys.all(),
            values: &[snapshot::MOST.as_bytes()],
        };
        let request = async |member: &Member| {
            let reply = member.batches.step(step).await?;
            snapshot::read(reply).ok_or_else(|| strange_answer("inspect"))
        };
        self.quorum.ask_all(request).await
    }
}

impl Seats for QuorumStore {
    type Seat = RedlockAcquisition;

    async fn renew_one(&self, seat: &RedlockAcquisition) -> Result<Renewal> {
        seat.renew().await
    }

    async fn look_at(&self, waiting: &[&RedlockAcquisition]) -> Result<Vec<Look>> {
        waiter_check::check(&self.quorum, &self.process, waiting).await
    }
}

pub(crate) struct RedlockBackend {
    pub(crate) store: Arc<QuorumStore>,
}

impl fmt::Debug for RedlockBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedlockBackend").field(&self.store).finish()
    }
}

#[async_trait]
impl DistributedLock for RedlockBackend {
    fn profile(&self) -> &Profile {
        &self.store.profile
    }

    fn clock(&self) -> &dyn Clock {
        &*self.store.quorum.view.clock
    }

    fn enter(&self, claim: Arc<Claim>) -> Arc<dyn Contender> {
        let QuorumStore { quorum, process, .. } = &*self.store;
        Arc::new(RedlockAcquisition::new(quorum.clone(), process, claim))
    }

    async fn renew(&self, held: &[Arc<dyn Contender>], report: Report<'_, Renewal>) {
        seats::renew(&*self.store, held, vec![(0..held.len()).collect()], report).await;
    }

    async fn look(&self, waiting: &[Arc<dyn Contender>], report: Report<'_, Look>) {
        seats::look(&*self.store, waiting, vec![(0..waiting.len()).collect()], report).await;
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let seen = self.store.inspect_all(&Keys::of(name.key())).await?;
        let quorum = &self.store.quorum;
        // A holder that too few nodes report may be held by the nodes that do not reply.
        let silent = quorum.members.len() - seen.len();
        Ok(Seen::merge(seen, quorum.majority().saturating_sub(silent).max(1)).into_snapshot())
    }

    async fn evict(&self, name: &LockName, who: &OccupantId) -> Result<Removal> {
        let keys = Keys::of(name.key());
        let seen = self.store.inspect_all(&keys).await?;
        let Some(value) = seen.iter().find_map(|seen| seen.value_of(who)) else {
            return Ok(Removal::Absent);
        };
        let quorum = &self.store.quorum;
        let release = async |member: &Member| {
            release_round(&member.batches, &keys, value, "", ReleaseKind::Evict).await
        };
        let removed = quorum.ask_all(release).await?;
        match (removed.contains(&true), removed.len() == quorum.members.len()) {
            (false, _) => Ok(Removal::Absent),
            (true, true) => Ok(Removal::Removed),
            (true, false) => Ok(Removal::Partly { was_held: true }),
        }
    }

    /// Clears every node, whether it may vote or not. An unreachable one does not delay the others.
    async fn clear(&self, scratch: &Scratch) -> Result<()> {
        let leftovers = &Leftovers::of(scratch);
        let clearing = self.store.quorum.members.iter().map(async |member| {
            let cleared = leftovers.clear(member.link()).await;
            cleared.map_err(|error| {
                let message = format!("node {} could not be cleared", member.host);
                Error::new(error.kind(), message).retryable(error.is_retryable()).caused_by(error)
            })
        });
        join_all(clearing).await.into_iter().collect()
    }

    async fn close(&self) -> Result<()> {
        self.store.quorum.close();
        Ok(())
    }
}
