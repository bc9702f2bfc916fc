//! One claim's acquisition: its requests, and what their answers mean.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::batching::Priority;
use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, Clock, Error, FencingToken, Moment, ReleaseOutcome,
    RenewOutcome, Residue, Result, lease_end,
};

use crate::error::protocol_error;
use crate::requests::{Answer, Attempt, Owned, REPEAT, Request, column, micros};
use crate::statements::Function;
use crate::store::Store;

pub(crate) struct PostgresAcquisition {
    store: Arc<Store>,
    claim: Arc<Claim>,
    of: Owned,
    pub(crate) begun: Moment,
}

impl PostgresAcquisition {
    pub(crate) fn new(store: Arc<Store>, claim: Arc<Claim>) -> PostgresAcquisition {
        let owner = claim.owner().reveal();
        // Before the first attempt is sent: a notification can overtake its answer.
        store.notifications.claims.insert(owner, &claim);
        let key = claim.name().key().as_bytes().to_vec();
        PostgresAcquisition { of: Owned { key, owner }, begun: store.clock.now(), store, claim }
    }

    pub(crate) fn owner(&self) -> uuid::Uuid {
        self.of.owner
    }

    /// The lease that a renewal gives; none for a fixed one, of which it only asks.
    fn lease(&self) -> i64 {
        if self.claim.is_fixed_lease() { 0 } else { micros(self.claim.ttl()) }
    }

    /// Renews the lease, in whichever form the server has it.
    pub(crate) async fn renew(&self) -> Result<RenewOutcome> {
        let sent = self.store.clock.now();
        let asked =
            self.store.server.ask(Request::Renew(self.of.clone(), self.lease()), Priority::Renewal);
        match asked.await? {
            Answer::There(is_held) => Ok(self.renewed(is_held, sent)),
            _ => Err(protocol_error("renew_1")),
        }
    }

    fn renewed(&self, is_held: bool, sent: Moment) -> RenewOutcome {
        // For a fixed lease only that it is still held: core ignores an end before the known one.
        let lease = if self.claim.is_fixed_lease() { Duration::ZERO } else { self.claim.ttl() };
        match is_held {
            true if lease.is_zero() => RenewOutcome::Renewed { valid_until: sent },
            true => RenewOutcome::Renewed { valid_until: lease_end(sent, lease) },
            false => RenewOutcome::Lost,
        }
    }
}

impl Acquisition for PostgresAcquisition {
    fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    async fn attempt(&self) -> Result<AttemptOutcome> {
        let sent = self.store.clock.now();
        let attempt = Attempt::of(&self.claim, self.of.clone());
        let asked = self.store.server.ask(Request::Attempt(attempt), self.claim.priority());
        let Answer::Attempt(reply) = asked.await? else {
            return Err(protocol_error("attempt_1"));
        };
        Ok(match reply {
            1.. => AttemptOutcome::Granted {
                token: FencingToken::new(reply.unsigned_abs()),
                valid_until: lease_end(sent, self.claim.ttl()),
            },
            0 => AttemptOutcome::Busy { rest: Residue::Nothing },
            ..=-20 => AttemptOutcome::Waiting {
                check_after: self.store.check_after(reply.unsigned_abs(), self.begun),
            },
            _ => return Err(protocol_error("attempt_1")),
        })
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        match self.store.server.ask(Request::Release(self.of.clone()), Priority::Held).await? {
            Answer::There(true) => Ok(ReleaseOutcome::Removed),
            Answer::There(false) => Ok(ReleaseOutcome::Absent),
            _ => Err(protocol_error("release_1")),
        }
    }

    async fn downgrade(&self) -> Result<RenewOutcome> {
        let sent = self.store.clock.now();
        let arguments: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
            [&self.of.key, &self.of.owner, &self.lease()];
        loop {
            let rows = self.store.call(Function::Downgrade, &arguments).await?;
            match column::<i64>(&rows, 0, "downgrade_1")? {
                REPEAT => {}
                count => return Ok(self.renewed(count > 0, sent)),
            }
        }
    }

    fn unanswered(&self) -> Option<Error> {
        self.store.server.session.state().err()
    }
}

impl Drop for PostgresAcquisition {
    fn drop(&mut self) {
        self.store.notifications.claims.remove(&self.of.owner);
    }
}
