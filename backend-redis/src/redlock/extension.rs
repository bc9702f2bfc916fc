//! The extension of what is held, by a majority.

use std::time::Duration;

use fencelock_core::{Renewal, Result, lease_end};
use redis::Value;
use tokio::time::{Instant, timeout_at};

use super::desk::{Desk, Had};
use super::fan::Fan;
use super::quorum::{Slate, Word};
use super::votes::{self, Extension, Vote};
use crate::protocol::identity::ttl_of;

/// How long the last answers are waited for, once a majority has extended it.
const LINGER: Duration = Duration::from_millis(20);

impl Desk {
    /// Extends what is held.
    pub(super) async fn renew(&self) -> Result<Renewal> {
        let quorum = &self.store.quorum;
        let Some(grant) = self.state().grant.clone() else { return Ok(Renewal::Lost) };
        let sent = quorum.now();
        let Slate { ballots, mut words, .. } = quorum.slate(sent)?;
        let ttl = if self.claim.is_fixed_lease() { "0" } else { ttl_of(&self.waiter) };
        let mut fan = Fan::new();
        let mut votes = vec![Vote::Absent; quorum.members.len()];
        for (node, ballot) in ballots.asked() {
            votes[node] = Vote::Pending;
            let plant = if grant.may_be_planted(node, &ballot.life) { "plant" } else { "" };
            fan.ask(node, Box::pin(self.extend(&quorum.members[node], ballot, &grant, ttl, plant)));
        }
        let is_here = || {
            let mut state = self.not_over()?;
            // It may be planted wherever it is asked for.
            state.owe(&grant.identity, ballots.bits());
            Some(state)
        };
        if !fan.send(is_here).await {
            return Ok(Renewal::Lost);
        }
        let mut deadline = self.deadline();
        loop {
            match votes::extension(&votes) {
                Extension::Open => {}
                // Nobody waits for this answer, and the others say where it is to be planted.
                Extension::Kept => deadline = deadline.min(Instant::now() + LINGER),
                Extension::Lost | Extension::Unknown => break,
            }
            let Ok(Some((node, answer))) = timeout_at(deadline, fan.next()).await else { break };
            votes[node] = match self.read(node, answer, &ballots, &mut words) {
                Some(Value::Int(1)) => {
                    if let Some(ballot) = ballots.of(node) {
                        grant.had()[node] = Had::Surely(ballot.life.clone());
                    }
                    Vote::Yes(0)
                }
                Some(Value::Int(0)) => {
                    words.set(node, Word::Said("it is not held there"));
                    Vote::No
                }
                Some(_) => self.strange(node, "extend", &mut words),
                None => Vote::Absent,
            };
        }
        self.doubt(&fan);
        for node in fan.pending() {
            votes[node] = Vote::Absent;
        }
        let result = votes::extension(&votes);
        for (node, ballot) in ballots.asked() {
            let may_be_planted = grant.may_be_planted(node, &ballot.life);
            let had = &mut grant.had()[node];
            match (votes[node], &had) {
                (Vote::Absent, _) if may_be_planted => *had = Had::Perhaps(ballot.life.clone()),
                // A majority still has it, so nobody took it away: it was never there.
                (Vote::No, Had::Perhaps(_)) if result == Extension::Kept => *had = Had::Never,
                _ => {}
            }
        }
        match result {
            Extension::Kept => Ok(Renewal::Renewed {
                valid_until: match self.claim.is_fixed_lease() {
                    // Still there, and that is all: an earlier end than is known moves nothing.
                    true => sent,
                    false => lease_end(sent, self.claim.ttl()),
                },
            }),
            Extension::Lost => Ok(Renewal::Lost),
            Extension::Open | Extension::Unknown => Err(quorum.no_majority(&words)),
        }
    }
}
