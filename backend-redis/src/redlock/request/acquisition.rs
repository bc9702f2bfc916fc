//! One claim's acquisition on a quorum, as the core calls it.

use std::sync::Arc;

use fencelock_core::sync::Mutex;
use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, FencingToken, ReleaseOutcome, RenewOutcome, Residue,
    Result, lease_end,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::state::{Grant, Phase, QuorumClaim};
use crate::protocol::identity::{ClientId, Keys, identity};
use crate::redlock::node::quorum::{NodeReport, Quorum};
use crate::redlock::node_set::NodeSet;
use crate::redlock::rules::release_tally::WasHeld;
use crate::redlock::rules::votes::{self, Vote};

pub(crate) struct RedlockAcquisition {
    shared: Arc<QuorumClaim>,
}

impl RedlockAcquisition {
    pub(crate) fn new(
        quorum: Arc<Quorum>,
        client: &ClientId,
        claim: Arc<Claim>,
    ) -> RedlockAcquisition {
        let shared = QuorumClaim {
            quorum,
            keys: Keys::of(claim.name().key()),
            // Each grant has a stride of tokens; the rounds are numbered where the tokens would be.
            waiter: identity(&claim, client, 1).into(),
            claim,
            state: Mutex::default(),
            left: Notify::new(),
            rolled_back: Notify::new(),
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
        if shared.roll_back() {
            shared.until_rolled_back().await;
        }
        let sent = quorum.now();
        let mut electorate = quorum.electorate(sent, |node| shared.state().left_out(node))?;
        let outcome = shared.request_votes(&mut electorate).await;
        if let Some(token) = outcome.token {
            let valid_until = lease_end(sent, shared.claim.ttl());
            let grant = Grant {
                identity: outcome.round.identity.clone(),
                token: token.to_string(),
                possession: Mutex::new(outcome.possession(&electorate.eligible)),
            };
            let grant = Arc::new(grant);
            shared.state().phase = Phase::Granted(grant.clone());
            shared.collect_late_votes(outcome.late_votes, grant);
            return Ok(AttemptOutcome::Granted { token: FencingToken::new(token), valid_until });
        }
        shared.roll_back();
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
        let mut reports = quorum.unanswered();
        let in_flight = shared.state().phase.take_in_flight();
        let mut requests = match in_flight {
            Some(requests) => requests,
            None => shared.release_all().await,
        };
        let asked = Instant::now();
        while let Some((node, reply)) = requests.next_within(asked, quorum.node_timeout).await {
            match reply {
                Ok((identity, had_it)) => shared.record_release(node, &identity, had_it),
                Err(error) => reports[node] = NodeReport::Failed(error),
            }
            let mut state = shared.state();
            let was_held = state.phase.was_held(quorum.members.len(), NodeSet::default());
            if was_held == WasHeld::Yes && !requests.is_empty() {
                // Released on a majority: the others are finished in the background.
                state.phase.keep_in_flight(requests);
                return Ok(ReleaseOutcome::Partly { was_held: true });
            }
        }
        quorum.suspect_silent(&requests);
        let (is_done, was_held) = shared.settle_release();
        if !is_done && !requests.is_empty() {
            shared.state().phase.keep_in_flight(requests);
        }
        match (is_done, was_held) {
            (true, WasHeld::Yes) => Ok(ReleaseOutcome::Removed),
            (true, _) => Ok(ReleaseOutcome::Absent),
            (false, WasHeld::Open) => Err(quorum.no_quorum(&reports)),
            (false, known) => Ok(ReleaseOutcome::Partly { was_held: known == WasHeld::Yes }),
        }
    }
}

impl Drop for RedlockAcquisition {
    fn drop(&mut self) {
        self.shared.quorum.view.waiters.remove(&self.shared.claim);
        // Its requests keep the shared state alive.
        let requests = self.shared.state().phase.take_in_flight();
        drop(requests);
    }
}
