//! The extension of what is held, by a majority.

use std::time::Duration;

use fencelock_core::{RenewOutcome, Result, lease_end};
use redis::Value;
use tokio::time::{Instant, timeout_at};

use super::fan_out::FanOut;
use super::quorum::{Electorate, NodeReport};
use super::shared::{Possession, QuorumClaim};
use super::votes::{self, Extension, Vote};
use crate::protocol::identity::ttl_of;

/// How long the last answers are waited for, once a majority has extended it.
const STRAGGLER_GRACE: Duration = Duration::from_millis(20);

impl QuorumClaim {
    /// Extends what is held.
    pub(super) async fn renew(&self) -> Result<RenewOutcome> {
        let quorum = &self.store.quorum;
        let Some(grant) = self.state().grant.clone() else { return Ok(RenewOutcome::Lost) };
        let sent = quorum.now();
        let Electorate { eligible, mut reports, .. } = quorum.electorate(sent)?;
        let ttl = if self.claim.is_fixed_lease() { "0" } else { ttl_of(&self.waiter) };
        let mut fan_out = FanOut::new();
        let mut votes = vec![Vote::Absent; quorum.members.len()];
        for (node, vote_request) in eligible.asked() {
            votes[node] = Vote::Pending;
            let reinstall =
                if grant.may_reinstall(node, &vote_request.incarnation) { "plant" } else { "" };
            fan_out.ask(
                node,
                Box::pin(self.extend(&quorum.members[node], vote_request, &grant, ttl, reinstall)),
            );
        }
        let is_here = || {
            let mut state = self.unless_releasing()?;
            // It may be reinstalled wherever it is asked for.
            state.add_residue(&grant.identity, eligible.bits());
            Some(state)
        };
        if !fan_out.send(is_here).await {
            return Ok(RenewOutcome::Lost);
        }
        let mut deadline = self.deadline();
        loop {
            match votes::extension(&votes) {
                Extension::Open => {}
                // Nobody waits for this answer, and the others say where it is to be reinstalled.
                Extension::Kept => deadline = deadline.min(Instant::now() + STRAGGLER_GRACE),
                Extension::Lost | Extension::Unknown => break,
            }
            let Ok(Some((node, answer))) = timeout_at(deadline, fan_out.next()).await else {
                break;
            };
            votes[node] = match self.read(node, answer, &eligible, &mut reports) {
                Some(Value::Int(1)) => {
                    if let Some(vote_request) = eligible.of(node) {
                        grant.possession()[node] =
                            Possession::Confirmed(vote_request.incarnation.clone());
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
        self.suspect(&fan_out);
        for node in fan_out.pending() {
            votes[node] = Vote::Absent;
        }
        let result = votes::extension(&votes);
        for (node, vote_request) in eligible.asked() {
            let may_reinstall = grant.may_reinstall(node, &vote_request.incarnation);
            let had = &mut grant.possession()[node];
            match (votes[node], &had) {
                (Vote::Absent, _) if may_reinstall => {
                    *had = Possession::Unconfirmed(vote_request.incarnation.clone())
                }
                // A majority still has it, so nobody took it away: it was never there.
                (Vote::No, Possession::Unconfirmed(_)) if result == Extension::Kept => {
                    *had = Possession::No
                }
                _ => {}
            }
        }
        match result {
            Extension::Kept => Ok(RenewOutcome::Renewed {
                valid_until: match self.claim.is_fixed_lease() {
                    // Still there, and that is all: an earlier end than is known moves nothing.
                    true => sent,
                    false => lease_end(sent, self.claim.ttl()),
                },
            }),
            Extension::Lost => Ok(RenewOutcome::Lost),
            Extension::Open | Extension::Unknown => Err(quorum.no_quorum(&reports)),
        }
    }
}
