//! One claim's acquisition on a quorum, as core drives it.

use std::sync::Arc;

use fencelock_core::sync::Mutex;
use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, FencingToken, ReleaseOutcome, RenewOutcome, Residue,
    Result, lease_end,
};
use tokio::time::timeout_at;

use super::state::{Grant, NODE_STRIDE, QuorumClaim};
use crate::protocol::identity::{ClientId, Keys, identity};
use crate::redlock::node::quorum::{NodeReport, Quorum};
use crate::redlock::rules::release_tally::WasHeld;
use crate::redlock::rules::votes::{self, Vote};

pub(crate) struct RedlockAcquisition {
    shared: Arc<QuorumClaim>,
}

impl RedlockAcquisition {
    pub(crate) fn new(
        quorum: Arc<Quorum>,
        process: &ClientId,
        claim: Arc<Claim>,
    ) -> RedlockAcquisition {
        let shared = QuorumClaim {
            quorum,
            keys: Keys::of(claim.name().key()),
            waiter: identity(&claim, process).into(),
            claim,
            state: Mutex::default(),
        };
        RedlockAcquisition { shared: Arc::new(shared) }
    }

    /// The claim's identity in the nodes' queues.
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
        let quorum = &shared.quorum;
        // What nodes may still have of earlier rounds would block this one.
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
            shared.collect_late_votes(outcome.late_votes, grant);
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
        let quorum = &shared.quorum;
        let nodes = quorum.members.len();
        let mut reports = quorum.unanswered();
        let in_flight = shared.state().release.take();
        let mut release = match in_flight {
            Some(release) => release,
            None => shared.release_all().await,
        };
        let deadline = shared.deadline();
        while let Ok(Some((at, reply))) = timeout_at(deadline, release.fan_out.next()).await {
            let node = at % NODE_STRIDE;
            match reply {
                Ok(had_it) => {
                    shared.record_release(node, &release.identities[at / NODE_STRIDE], had_it);
                }
                Err(error) => reports.set(node, NodeReport::Failed(error)),
            }
            let mut state = shared.state();
            let is_free = state.tally.was_held(nodes, Default::default()) == WasHeld::Yes;
            if is_free && release.fan_out.pending().next().is_some() {
                // Released on a majority: the others are finished in the background.
                state.release = Some(release);
                return Ok(ReleaseOutcome::Partly { was_held: true });
            }
        }
        shared.suspect_silent(&release.fan_out);
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
        self.shared.quorum.view.waiters.remove(&self.shared.claim);
        // Its requests keep the shared state alive.
        let release = self.shared.state().release.take();
        drop(release);
    }
}
