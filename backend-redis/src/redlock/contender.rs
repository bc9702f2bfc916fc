//! One claim's seat on a quorum, as core drives it.

use std::sync::{Arc, Mutex};

use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, FencingToken, ReleaseOutcome, RenewOutcome, Residue,
    Result, lease_end,
};
use tokio::time::timeout_at;

use super::backend::QuorumStore;
use super::quorum::NodeReport;
use super::release::WasHeld;
use super::shared::{Grant, NODES, QuorumClaim};
use super::votes::{self, Vote};
use crate::protocol::identity::{Keys, identity};

pub(crate) struct RedlockAcquisition {
    shared: Arc<QuorumClaim>,
}

impl RedlockAcquisition {
    pub(crate) fn new(store: Arc<QuorumStore>, claim: Arc<Claim>) -> RedlockAcquisition {
        let shared = QuorumClaim {
            keys: Keys::of(claim.name().key()),
            waiter: identity(&claim, &store.client).into(),
            store,
            claim,
            state: Mutex::default(),
        };
        RedlockAcquisition { shared: Arc::new(shared) }
    }

    pub(crate) fn waiter(&self) -> &str {
        &self.shared.waiter
    }

    /// Extends what is held.
    pub(crate) async fn renew(&self) -> Result<RenewOutcome> {
        self.shared.renew().await
    }
}

impl Acquisition for RedlockAcquisition {
    fn claim(&self) -> &Arc<Claim> {
        &self.shared.claim
    }

    async fn attempt(&self) -> Result<AttemptOutcome> {
        let shared = &self.shared;
        let quorum = &shared.store.quorum;
        // What earlier rounds may still have stands in the way of this one.
        shared.roll_back().await;
        let sent = quorum.now();
        let mut electorate = quorum.electorate(sent)?;
        let outcome = shared.request_votes(&mut electorate).await;
        if let Some(token) = outcome.token {
            let valid_until = lease_end(sent, shared.claim.ttl());
            let grant = Grant {
                identity: outcome.round.identity.clone(),
                token: token.to_string(),
                possession: Mutex::new(outcome.possession(&electorate.eligible)),
            };
            let grant = Arc::new(grant);
            shared.state().grant = Some(grant.clone());
            shared.collect_late_votes(outcome.late, grant);
            return Ok(AttemptOutcome::Granted { token: FencingToken::new(token), valid_until });
        }
        shared.roll_back().await;
        if !votes::is_busy(&outcome.votes) {
            return Err(quorum.no_quorum(&electorate.reports));
        }
        if !shared.queues() {
            let is_clean = outcome.votes.iter().all(|vote| *vote == Vote::No);
            let rest = if is_clean { Residue::Nothing } else { Residue::Perhaps };
            return Ok(AttemptOutcome::Busy { rest });
        }
        let is_split = outcome.rejections.is_split(quorum.majority());
        let splits = {
            let mut state = shared.state();
            state.splits = if is_split { state.splits + 1 } else { 0 };
            state.splits
        };
        Ok(AttemptOutcome::Waiting {
            check_after: outcome.rejections.check_after(quorum.majority(), splits),
        })
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        let shared = &self.shared;
        let quorum = &shared.store.quorum;
        let nodes = quorum.members.len();
        let mut reports = quorum.unanswered();
        let under_way = shared.state().release.take();
        let mut release = match under_way {
            Some(release) => release,
            None => shared.release_all().await,
        };
        let deadline = shared.deadline();
        while let Ok(Some((at, answer))) = timeout_at(deadline, release.fan_out.next()).await {
            match answer {
                Ok(had_it) => {
                    shared.record_release(at % NODES, &release.identities[at / NODES], had_it)
                }
                Err(error) => reports.set(at % NODES, NodeReport::Failed(error)),
            }
            let mut state = shared.state();
            let is_free = matches!(state.tally.was_held(nodes, 0), WasHeld::Yes);
            if is_free && release.fan_out.pending().next().is_some() {
                // At a majority: the rest is finished in the background.
                state.release = Some(release);
                return Ok(ReleaseOutcome::Partly { was_held: true });
            }
        }
        shared.suspect(&release.fan_out);
        let (is_done, was_held) = shared.settle_release();
        if !is_done && release.fan_out.pending().next().is_some() {
            shared.state().release = Some(release);
        }
        match (is_done, was_held) {
            (true, WasHeld::Yes) => Ok(ReleaseOutcome::Removed),
            (true, _) => Ok(ReleaseOutcome::Absent),
            (false, WasHeld::Yes) => Ok(ReleaseOutcome::Partly { was_held: true }),
            (false, WasHeld::No) => Ok(ReleaseOutcome::Partly { was_held: false }),
            (false, WasHeld::Open) => Err(quorum.no_quorum(&reports)),
        }
    }
}

impl Drop for RedlockAcquisition {
    fn drop(&mut self) {
        self.shared.store.quorum.view.waiters.remove(&self.shared.claim);
        // Its questions hold the shared.
        let release = self.shared.state().release.take();
        drop(release);
    }
}
