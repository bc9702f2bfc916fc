//! The extension of a held lock, by a majority.

use std::time::Duration;

use fencelock_core::{RenewOutcome, Result, lease_end};
use tokio::time::Instant;

use super::state::{Grant, Phase, Possession, QuorumClaim, read_bool};
use crate::protocol::identity::ttl_of;
use crate::redlock::node::fan_out::FanOut;
use crate::redlock::node::monitor::VoteRequest;
use crate::redlock::node::quorum::{Electorate, NodeReport};
use crate::redlock::rules::votes::{self, Extension, Vote};
use crate::redlock::scripts::QUORUM;

/// How long the last replies are waited for, once a majority has extended the lock.
const STRAGGLER_GRACE: Duration = Duration::from_millis(20);

impl QuorumClaim {
    /// Extends the grant on a majority.
    pub(super) async fn renew(&self) -> Result<RenewOutcome> {
        let quorum = &self.quorum;
        let grant = match &self.state().phase {
            Phase::Granted(grant) => grant.clone(),
            Phase::Idle | Phase::Voting(_) | Phase::Releasing(_) => return Ok(RenewOutcome::Lost),
        };
        let sent = quorum.now();
        let Electorate { eligible, mut reports, .. } = quorum.electorate(sent)?;
        let ttl = if self.claim.is_fixed_lease() { "0" } else { ttl_of(&self.waiter) };
        let mut fan_out = FanOut::new();
        let mut votes = vec![Vote::Absent; quorum.members.len()];
        for (node, request) in eligible.iter() {
            votes[node] = Vote::Pending;
            fan_out.ask(node, self.extend(node, request, &grant, ttl));
        }
        let while_granted = || {
            let mut state = self.state();
            state.may_extend(&grant.identity, eligible.nodes()).then_some(state)
        };
        if !fan_out.send(while_granted).await {
            return Ok(RenewOutcome::Lost);
        }
        let mut deadline = self.deadline();
        loop {
            match votes::extension(&votes) {
                Extension::Open => {}
                // The caller can wait a little, and the other replies show where to reinstall it.
                Extension::Kept => deadline = deadline.min(Instant::now() + STRAGGLER_GRACE),
                Extension::Lost | Extension::Unknown => break,
            }
            let Some((node, reply)) = fan_out.next_by(deadline).await else { break };
            votes[node] = match reply {
                Ok(true) => {
                    if let Some(request) = eligible.get(node) {
                        let incarnation = request.incarnation.clone();
                        grant.possession()[node] = Possession::Confirmed(incarnation);
                    }
                    Vote::Yes(0)
                }
                Ok(false) => {
                    reports[node] = NodeReport::Answered("it is not held there");
                    Vote::No
                }
                Err(error) => reports[node].failed(error),
            };
        }
        quorum.suspect_silent(&fan_out);
        for node in fan_out.pending() {
            votes[node] = Vote::Absent;
        }
        let result = votes::extension(&votes);
        for (node, request) in eligible.iter() {
            let may_reinstall = grant.may_reinstall(node, &request.incarnation);
            let possession = &mut grant.possession()[node];
            match (votes[node], &possession) {
                (Vote::Absent, _) if may_reinstall => {
                    *possession = Possession::Unconfirmed(request.incarnation.clone());
                }
                // A majority still has the grant, so it was not taken away: this node never had it.
                (Vote::No, Possession::Unconfirmed(_)) if result == Extension::Kept => {
                    *possession = Possession::No;
                }
                _ => {}
            }
        }
        match result {
            Extension::Kept => Ok(RenewOutcome::Renewed {
                valid_until: if self.claim.is_fixed_lease() {
                    // The lock is still there, and no more: an earlier end than is known changes
                    // nothing.
                    sent
                } else {
                    lease_end(sent, self.claim.ttl())
                },
            }),
            Extension::Lost => Ok(RenewOutcome::Lost),
            Extension::Open | Extension::Unknown => Err(quorum.no_quorum(&reports)),
        }
    }

    /// Extends the grant on one node by `ttl` ms, `0` to ask only whether it is there.
    async fn extend(
        &self,
        node: usize,
        request: &VoteRequest,
        grant: &Grant,
        ttl: &str,
    ) -> Result<bool> {
        let may_reinstall = grant.may_reinstall(node, &request.incarnation);
        let mode = if may_reinstall { "plant" } else { "" };
        let values = [&*request.record, &*grant.identity, ttl, &*grant.token, mode];
        self.call(node, request, &QUORUM.extend, values, read_bool).await
    }
}
