//! One claim's seat on a quorum, as core drives it.

use std::sync::{Arc, Mutex};

use fencelock_core::{
    Attempt, Claim, Contender, FencingToken, Removal, Renewal, Rest, Result, lease_end,
};
use tokio::time::timeout_at;

use super::backend::Store;
use super::desk::{Desk, Grant, NODES};
use super::freeing::WasHeld;
use super::quorum::Word;
use super::votes::{self, Vote};
use crate::identity::{Keys, identity};

pub(crate) struct RedlockContender {
    desk: Arc<Desk>,
}

impl RedlockContender {
    pub(crate) fn new(store: Arc<Store>, claim: Arc<Claim>) -> RedlockContender {
        let desk = Desk {
            keys: Keys::of(claim.name().key()),
            waiter: identity(&claim, &store.process).into(),
            store,
            claim,
            state: Mutex::default(),
        };
        RedlockContender { desk: Arc::new(desk) }
    }

    pub(crate) fn waiter(&self) -> &str {
        &self.desk.waiter
    }

    /// Extends what is held.
    pub(crate) async fn renew(&self) -> Result<Renewal> {
        self.desk.renew().await
    }
}

impl Contender for RedlockContender {
    fn claim(&self) -> &Arc<Claim> {
        &self.desk.claim
    }

    async fn attempt(&self) -> Result<Attempt> {
        let desk = &self.desk;
        let quorum = &desk.store.quorum;
        // What earlier rounds may still have stands in the way of this one.
        desk.retreat().await;
        let sent = quorum.now();
        let mut slate = quorum.slate(sent)?;
        let outcome = desk.ask_for_votes(&mut slate).await;
        if let Some(fence) = outcome.token {
            let valid_until = lease_end(sent, desk.claim.ttl());
            let grant = Grant {
                identity: outcome.round.identity.clone(),
                fence: fence.to_string(),
                had: Mutex::new(outcome.had(&slate.ballots)),
            };
            let grant = Arc::new(grant);
            desk.state().grant = Some(grant.clone());
            desk.hear_late(outcome.late, grant);
            return Ok(Attempt::Granted { token: FencingToken::new(fence), valid_until });
        }
        desk.retreat().await;
        if !votes::is_busy(&outcome.votes) {
            return Err(quorum.no_majority(&slate.words));
        }
        if !desk.queues() {
            let is_clean = outcome.votes.iter().all(|vote| *vote == Vote::No);
            let rest = if is_clean { Rest::Nothing } else { Rest::Perhaps };
            return Ok(Attempt::Busy { rest });
        }
        let is_split = outcome.refusals.is_split(quorum.majority());
        let splits = {
            let mut state = desk.state();
            state.splits = if is_split { state.splits + 1 } else { 0 };
            state.splits
        };
        Ok(Attempt::Waiting { look_in: outcome.refusals.look_in(quorum.majority(), splits) })
    }

    async fn release(&self) -> Result<Removal> {
        let desk = &self.desk;
        let quorum = &desk.store.quorum;
        let nodes = quorum.members.len();
        let mut words = quorum.silence();
        let under_way = desk.state().freeing.take();
        let mut freeing = match under_way {
            Some(freeing) => freeing,
            None => desk.free_all().await,
        };
        let deadline = desk.deadline();
        while let Ok(Some((at, answer))) = timeout_at(deadline, freeing.fan.next()).await {
            match answer {
                Ok(had_it) => desk.freed(at % NODES, &freeing.identities[at / NODES], had_it),
                Err(error) => words.set(at % NODES, Word::Failed(error)),
            }
            let mut state = desk.state();
            let is_free = matches!(state.freed.was_held(nodes, 0), WasHeld::Yes);
            if is_free && freeing.fan.pending().next().is_some() {
                // At a majority: the rest is finished in the background.
                state.freeing = Some(freeing);
                return Ok(Removal::Partly { was_held: true });
            }
        }
        desk.doubt(&freeing.fan);
        let (is_done, was_held) = desk.settle_release();
        if !is_done && freeing.fan.pending().next().is_some() {
            desk.state().freeing = Some(freeing);
        }
        match (is_done, was_held) {
            (true, WasHeld::Yes) => Ok(Removal::Removed),
            (true, _) => Ok(Removal::Absent),
            (false, WasHeld::Yes) => Ok(Removal::Partly { was_held: true }),
            (false, WasHeld::No) => Ok(Removal::Partly { was_held: false }),
            (false, WasHeld::Open) => Err(quorum.no_majority(&words)),
        }
    }
}

impl Drop for RedlockContender {
    fn drop(&mut self) {
        self.desk.store.quorum.circle.waiters.leave(&self.desk.claim);
        // Its questions hold the desk.
        let freeing = self.desk.state().freeing.take();
        drop(freeing);
    }
}
