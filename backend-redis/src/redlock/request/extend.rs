//! The extension of a held lock, by a majority.

use std::sync::Arc;

use fencelock_core::batching::Priority;
use fencelock_core::{Moment, RenewOutcome, Result, lease_end};
use tokio::time::{Instant, timeout_at};

use super::release::STRAGGLER_GRACE;
use super::state::{Grant, Phase, Possession, QuorumClaim, read_bool};
use crate::protocol::identity::ttl_of;
use crate::redlock::node::fan_out::FanOut;
use crate::redlock::node::monitor::VoteRequest;
use crate::redlock::node::quorum::{Electorate, NodeReport};
use crate::redlock::rules::votes::{self, Extension, Vote};
use crate::redlock::scripts::QUORUM;
use crate::server::batch::Ticket;

impl QuorumClaim {
    /// Extends the grant on a majority.
    pub(super) async fn renew(&self) -> Result<RenewOutcome> {
        let quorum = &self.quorum;
        let grant = match &self.state().phase {
            Phase::Granted(grant) => grant.clone(),
            Phase::Idle | Phase::Voting(_) | Phase::Releasing(_) => return Ok(RenewOutcome::Lost),
        };
        let sent = quorum.now();
        let Electorate { eligible, mut reports, .. } = quorum.electorate(sent, |_| None)?;
        let ttl = if self.claim.is_fixed_lease() { "0" } else { ttl_of(&self.waiter) };
        // A vote must not come after what reinstalls it.
        for node in self.state().end_votes(self.queues(), Moment::NEVER).iter() {
            grant.possession()[node] = Possession::No;
        }
        let mut fan_out = FanOut::new(quorum.majority());
        let mut votes = vec![Vote::Absent; quorum.members.len()];
        for (node, request) in eligible.iter() {
            votes[node] = Vote::Pending;
            fan_out.ask(node, |ticket| self.extend(node, request, ticket, &grant, ttl));
        }
        let written = fan_out.written.clone();
        let while_granted = || {
            let mut state = self.state();
            state.extensions.retain(|earlier| Arc::strong_count(earlier) > 1);
            state.extensions.push(written.clone());
            state.may_extend(&grant.identity, eligible.nodes()).then_some(state)
        };
        if !fan_out.send(while_granted).await {
            return Ok(RenewOutcome::Lost);
        }
        let (asked, mut kept_at) = (Instant::now(), None);
        loop {
            let reply = match votes::extension(&votes) {
                Extension::Open => fan_out.next_within(asked, quorum.node_timeout).await,
                // The caller can wait a little, and the other replies show where to reinstall it.
                Extension::Kept => {
                    let kept_at = *kept_at.get_or_insert_with(Instant::now);
                    timeout_at(kept_at + STRAGGLER_GRACE, fan_out.next()).await.ok().flatten()
                }
                Extension::Lost | Extension::Unknown => break,
            };
            let Some((node, reply)) = reply else { break };
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
        ticket: Arc<dyn Ticket>,
        grant: &Grant,
        ttl: &str,
    ) -> Result<bool> {
        let may_reinstall = grant.may_reinstall(node, &request.incarnation);
        let mode = if may_reinstall { "plant" } else { "" };
        let values = [&*request.record, &*grant.identity, ttl, &*grant.token, mode];
        self.call(node, request, (ticket, Priority::Renewal), &QUORUM.extend, values, read_bool)
            .await
    }
}
