//! A connected quorum as the core calls it: renewals, waiter checks, `inspect` and `evict`.

use std::sync::Arc;

use fencelock_core::{
    Claim, Clock, DistributedLock, Error, LockName, ParticipantId, Profile, ReleaseOutcome,
    RenewOutcome, Result, Scratch, Snapshot, WaiterCheck,
};
use futures_util::future::join_all;

use super::node::member::Member;
use super::node::pending_releases::{ReleaseKind, release_round};
use super::node::quorum::Quorum;
use super::request::acquisition::RedlockAcquisition;
use super::request::waiter_check;
use crate::protocol::call::ScriptCall;
use crate::protocol::error::protocol_error;
use crate::protocol::identity::{ClientId, Keys};
use crate::protocol::script::SCRIPTS;
use crate::protocol::snapshot::{self, LockContents, MOST};
use crate::server::scratch::Leftovers;

/// How many times `node_timeout` an eviction waits while less than a majority has answered.
const EVICTION_PATIENCE: u32 = 3;

#[derive(Debug)]
pub(crate) struct QuorumStore {
    pub(crate) quorum: Arc<Quorum>,
    pub(crate) client: ClientId,
    pub(crate) profile: Profile,
}

impl QuorumStore {
    /// What each node that replies has of a lock.
    async fn inspect_all(&self, keys: &Keys, waiters: &str) -> Result<Vec<LockContents>> {
        let call = ScriptCall {
            script: &SCRIPTS.inspect,
            keys: &keys.all(),
            values: &[MOST, waiters].map(str::as_bytes),
        };
        let request = async |member: &Member, ticket| {
            let reply = member.batches.call(call, call.script.priority, Some(ticket)).await?;
            snapshot::read(reply).ok_or_else(|| protocol_error("inspect"))
        };
        self.quorum.ask(self.quorum.unanswered(), 1, request).await
    }

    async fn snapshot(&self, name: &LockName, waiters: &str) -> Result<Snapshot> {
        let seen = self.inspect_all(&Keys::of(name.key()), waiters).await?;
        let quorum = &self.quorum;
        // A holder that too few nodes report may be held by the nodes that do not reply.
        let silent = quorum.members.len() - seen.len();
        Ok(LockContents::merge(seen, quorum.majority().saturating_sub(silent).max(1))
            .into_snapshot())
    }
}

impl DistributedLock for QuorumStore {
    type Acquisition = RedlockAcquisition;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock(&self) -> &dyn Clock {
        &*self.quorum.view.clock
    }

    fn begin(self: &Arc<Self>, claim: Arc<Claim>) -> RedlockAcquisition {
        RedlockAcquisition::new(self.quorum.clone(), &self.client, claim)
    }

    async fn renew(&self, held: &RedlockAcquisition) -> Result<RenewOutcome> {
        held.renew().await
    }

    async fn check_waiters(
        &self,
        lock: &LockName,
        waiting: &[&RedlockAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        waiter_check::check(&self.quorum, &self.client, lock, waiting).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        self.snapshot(name, MOST).await
    }

    async fn inspect_holders(&self, name: &LockName) -> Result<Snapshot> {
        self.snapshot(name, "0").await
    }

    async fn evict(&self, name: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
        let keys = Keys::of(name.key());
        let seen = self.inspect_all(&keys, MOST).await?;
        let found = seen.iter().find_map(|seen| seen.evicted(who));
        let Some((value, how)) = found else {
            return Ok(ReleaseOutcome::Absent);
        };
        let quorum = &self.quorum;
        let release = async |member: &Member, ticket| {
            release_round(&member.batches, Some(ticket), &keys, value, "", ReleaseKind::Evict(how))
                .await
        };
        let replies = quorum.ask(quorum.unanswered(), EVICTION_PATIENCE, release).await;
        let replies = replies.map_err(|error| {
            let text = "its holder may still have it, for too few nodes have removed it";
            let message = format!("{text}: {}", error.message());
            Error::new(error.kind(), message).retryable(error.is_retryable())
        })?;
        Ok(match (replies.contains(&true), replies.len() == quorum.members.len()) {
            (false, true) => ReleaseOutcome::Absent,
            (true, true) => ReleaseOutcome::Removed,
            // Perhaps only a silent node has it: no majority extends it there.
            (_, false) => ReleaseOutcome::Partly { was_held: true },
        })
    }

    /// Clears every node, whether it may vote or not. An unreachable one does not delay the others.
    async fn clear(&self, scratch: &Scratch) -> Result<()> {
        let leftovers = &Leftovers::of(scratch);
        let clearing = self.quorum.members.iter().map(async |member| {
            let cleared = leftovers.clear(member.connection()).await;
            cleared.map_err(|error| {
                let message = format!("node {} could not be cleared", member.host);
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
