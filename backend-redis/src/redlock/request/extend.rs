//! The extension of a held lock, by a majority.

use std::time::Duration;

use fencelock_core::{RenewOutcome, Result, lease_end};
use redis::Value;
use tokio::time::{Instant, timeout_at};

use super::state::{Grant, Possession, QuorumClaim};
use crate::protocol::call::ScriptCall;
use crate::protocol::identity::ttl_of;
use crate::redlock::node::fan_out::FanOut;
use crate::redlock::node::member::Member;
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
        let Some(grant) = self.state().grant.clone() else { return Ok(RenewOutcome::Lost) };
        let sent = quorum.now();
        let Electorate { eligible, mut reports, .. } = quorum.electorate(sent)?;
        let ttl = if self.claim.is_fixed_lease() { "0" } else { ttl_of(&self.waiter) };
        let mut fan_out = FanOut::new();
        let mut votes = vec![Vote::Absent; quorum.members.len()];
        for (node, request) in eligible.iter() {
            votes[node] = Vote::Pending;
            let may_reinstall = grant.may_reinstall(node, &request.incarnation);
            let mode = if may_reinstall { "plant" } else { "" };
            let member = &quorum.members[node];
            fan_out.ask(node, Box::pin(self.extend(member, request, &grant, ttl, mode)));
        }
        let unless_releasing = || {
            let mut state = self.unless_releasing()?;
            // The grant may be reinstalled wherever an extension is requested.
            state.add_residue(&grant.identity, eligible.nodes());
            Some(state)
        };
        if !fan_out.send(unless_releasing).await {
            return Ok(RenewOutcome::Lost);
        }
        let mut deadline = self.deadline();
        loop {
            match votes::extension(&votes) {
                Extension::Open => {}
                // The caller can wait a little, and the other replies tell where to reinstall it.
                Extension::Kept => deadline = deadline.min(Instant::now() + STRAGGLER_GRACE),
                Extension::Lost | Extension::Unknown => break,
            }
            let next = timeout_at(deadline, fan_out.next()).await;
            let Ok(Some((node, reply))) = next else { break };
            votes[node] = match self.read_reply(node, reply, &eligible, &mut reports) {
                Some(Value::Int(1)) => {
                    if let Some(request) = eligible.get(node) {
                        let incarnation = request.incarnation.clone();
                        grant.possession()[node] = Possession::Confirmed(incarnation);
                    }
                    Vote::Yes(0)
                }
                Some(Value::Int(0)) => {
                    reports.set(node, NodeReport::Answered("it is not held there"));
                    Vote::No
                }
                Some(_) => self.reject_reply(node, "extend", &mut reports),
                None => Vote::Absent,
            };
        }
        self.suspect_silent(&fan_out);
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

    /// Extends the grant on one node by `ttl` ms, `0` to ask only whether it is there; `mode` as
    /// `extend.lua` has it.
    async fn extend(
        &self,
        member: &Member,
        request: &VoteRequest,
        grant: &Grant,
        ttl: &str,
        mode: &str,
    ) -> Result<Value> {
        let values = [&*request.record, &*grant.identity, ttl, &*grant.token, mode];
        let values = values.map(str::as_bytes);
        let call = ScriptCall { script: &QUORUM.extend, keys: &self.node_keys(), values: &values };
        member.batches.call(call).await
    }
}
