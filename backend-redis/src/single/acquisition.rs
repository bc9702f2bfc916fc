//! One claim's acquisition: its identity, its keys, and the scripts that acquire, renew and release.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, Clock, Error, FencingToken, IfBusy, Moment, ReleaseOutcome,
    RenewOutcome, Residue, Result, lease_end,
};
use redis::Value;

use super::store::Store;
use crate::protocol::call::ScriptCall;
use crate::protocol::error::unreachable;
use crate::protocol::identity::{Keys, identity, ttl_of};
use crate::protocol::script::SCRIPTS;
use crate::server::node::Request;

/// The token's key lives for most of an hour at least; a longer hold extends its life this often.
const TOKEN_KEY_PERIOD: Duration = Duration::from_secs(20 * 60);

pub(crate) struct RedisAcquisition {
    store: Arc<Store>,
    claim: Arc<Claim>,
    pub(super) keys: Keys,
    pub(super) identity: String,
    /// When the token's key was last certain to live for most of an hour, in ns on the store's clock;
    /// 0 before the grant.
    token_renewed: AtomicU64,
    form: AtomicU8,
}

/// How the server knows a hold, in [`RedisAcquisition::form`].
const AS_GRANTED: u8 = 0;
/// A downgrade was sent and not answered: as granted, or as a reader.
const UNSURE: u8 = 1;
const AS_READER: u8 = 2;

impl RedisAcquisition {
    pub(crate) fn new(store: Arc<Store>, claim: Arc<Claim>) -> RedisAcquisition {
        // Before the first attempt is sent: a push can overtake its reply.
        store.notifications.claims.insert(claim.owner().reveal(), &claim);
        RedisAcquisition {
            keys: Keys::of(claim.name().key()),
            identity: identity(&claim, &store.client, claim.local_handoffs()),
            token_renewed: AtomicU64::new(0),
            form: AtomicU8::new(AS_GRANTED),
            store,
            claim,
        }
    }

    /// Renews the lease.
    pub(crate) async fn renew(&self) -> Result<RenewOutcome> {
        let form = self.form.load(Ordering::SeqCst);
        let renewed = match form {
            AS_GRANTED => self.renew_as(&self.identity).await,
            AS_READER => self.renew_as(&reader_of(&self.identity)).await,
            // It extends either.
            _ => self.share().await,
        };
        match renewed {
            // It has become a reader meanwhile, so the old identity is not there.
            Ok(RenewOutcome::Lost) if form == AS_GRANTED && self.is_downgraded() => {
                self.share().await
            }
            renewed => renewed,
        }
    }

    fn is_downgraded(&self) -> bool {
        self.form.load(Ordering::SeqCst) != AS_GRANTED
    }

    /// Makes an exclusive hold a shared one, or extends one that was made so before.
    async fn share(&self) -> Result<RenewOutcome> {
        let sent = self.store.clock.now();
        let is_fixed = self.claim.is_fixed_lease();
        let (reader, ttl) = (reader_of(&self.identity), ttl_of(&self.identity));
        let values = [self.identity.as_str(), &reader, if is_fixed { "0" } else { ttl }];
        let values = values.map(str::as_bytes);
        let call =
            ScriptCall { script: &SCRIPTS.downgrade, keys: &self.keys.all(), values: &values };
        let answer = self.store.server.call(call).await?;
        if !self.store.read_yes(&answer, self.keys.lock(), "downgrade")? {
            return Ok(RenewOutcome::Lost);
        }
        self.form.store(AS_READER, Ordering::SeqCst);
        self.token_renewed.store(sent.as_nanos(), Ordering::Relaxed);
        let valid_until = if is_fixed { sent } else { lease_end(sent, self.claim.ttl()) };
        Ok(RenewOutcome::Renewed { valid_until })
    }

    async fn renew_as(&self, identity: &str) -> Result<RenewOutcome> {
        let sent = self.store.clock.now();
        let is_fixed = self.claim.is_fixed_lease();
        let since = Moment::from_nanos(self.token_renewed.load(Ordering::Relaxed));
        let is_old = sent.duration_since(since) > TOKEN_KEY_PERIOD;
        let ttl = if is_fixed { "0" } else { ttl_of(&self.identity) };
        let values = [identity, ttl, if is_old { "old" } else { "" }];
        let values = values.map(str::as_bytes);
        // A single key is served also while its slot moves from server to server.
        let keys = &self.keys.all()[..if is_old { 3 } else { 1 }];
        let call = ScriptCall { script: &SCRIPTS.renew, keys, values: &values };
        let answer = self.store.server.call(call).await?;
        if !self.store.read_yes(&answer, self.keys.lock(), "renew")? {
            return Ok(RenewOutcome::Lost);
        }
        if is_old {
            self.token_renewed.store(sent.as_nanos(), Ordering::Relaxed);
        }
        // For a fixed lease only that it is still held: core ignores an end before the known one.
        let valid_until = if is_fixed { sent } else { lease_end(sent, self.claim.ttl()) };
        Ok(RenewOutcome::Renewed { valid_until })
    }

    /// Completes a grant that counts only once the replicas have it.
    ///
    /// The replicas confirm a renewal: it is sent on a connection of its own, and must not acquire
    /// if it arrives after this claim's release. After an error a retry follows, or this claim's one
    /// release, which is its last request: a release between two attempts could arrive after the
    /// second.
    async fn replicated(&self, token: FencingToken) -> Result<AttemptOutcome> {
        let sent = self.store.clock.now();
        let values = [self.identity.as_str(), ttl_of(&self.identity), ""].map(str::as_bytes);
        let keys = &self.keys.all()[..1];
        let call = ScriptCall { script: &SCRIPTS.renew, keys, values: &values };
        let answer = self.store.server.send(Request::Confirm(call)).await?;
        if !self.store.read_yes(&answer, self.keys.lock(), "renew")? {
            let message = "the lock was lost before the replicas had the grant";
            return Err(unreachable(message));
        }
        let valid_until = lease_end(sent, self.claim.ttl());
        Ok(AttemptOutcome::Granted { token, valid_until })
    }
}

/// The identity of an exclusive claim of one token as a reader's.
fn reader_of(identity: &str) -> String {
    ["s", &identity[1..]].concat()
}

/// Reads the reply to an attempt that was sent at `sent` for a lease of `ttl` and so many `tokens`.
pub(crate) fn read_attempt(
    answer: &Value,
    sent: Moment,
    ttl: Duration,
    tokens: u32,
) -> Option<AttemptOutcome> {
    match answer {
        Value::Int(0) => Some(AttemptOutcome::Busy { rest: Residue::Nothing }),
        Value::BulkString(token) => {
            let last: u64 = std::str::from_utf8(token).ok()?.parse().ok()?;
            let token = last.checked_sub(u64::from(tokens) - 1)?;
            let valid_until = lease_end(sent, ttl);
            Some(AttemptOutcome::Granted { token: FencingToken::new(token), valid_until })
        }
        Value::Array(values) => {
            let [Value::Int(check_after)] = values.as_slice() else { return None };
            let check_after = Duration::from_millis(u64::try_from(*check_after).ok()?);
            Some(AttemptOutcome::Waiting { check_after })
        }
        _ => None,
    }
}

impl Acquisition for RedisAcquisition {
    fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    async fn attempt(&self) -> Result<AttemptOutcome> {
        let values = [self.identity.as_str(), ttl_of(&self.identity), "try"].map(str::as_bytes);
        let values = match self.claim.if_busy() {
            IfBusy::Refuse => &values[..],
            IfBusy::Queue => &values[..2],
        };
        let keys = self.keys.all();
        let call = ScriptCall { script: &SCRIPTS.attempt, keys: &keys, values };
        let sent = self.store.clock.now();
        let answer = self.store.server.call_as(call, self.claim.priority()).await?;
        let outcome = read_attempt(&answer, sent, self.claim.ttl(), self.claim.local_handoffs());
        let outcome =
            outcome.ok_or_else(|| self.store.server.protocol_error(self.keys.lock(), "attempt"))?;
        if matches!(outcome, AttemptOutcome::Granted { .. }) {
            self.token_renewed.store(sent.as_nanos(), Ordering::Relaxed);
        }
        match outcome {
            AttemptOutcome::Granted { token, .. } if self.store.replicas > 0 => {
                Box::pin(self.replicated(token)).await
            }
            AttemptOutcome::Waiting { check_after: Duration::ZERO } => {
                let watching = self.store.watch_foreign(&self.keys, &self.claim);
                let check_after = Box::pin(watching).await;
                Ok(AttemptOutcome::Waiting { check_after })
            }
            outcome => Ok(outcome),
        }
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        let (granted, reader) = (self.identity.as_bytes(), reader_of(&self.identity));
        match self.form.load(Ordering::SeqCst) {
            AS_GRANTED => self.store.release(&self.keys, &[granted]).await,
            AS_READER => self.store.release(&self.keys, &[reader.as_bytes()]).await,
            // One step for both: between two of them the downgrade could arrive.
            _ => self.store.release(&self.keys, &[granted, b"or", reader.as_bytes()]).await,
        }
    }

    async fn downgrade(&self) -> Result<RenewOutcome> {
        // Before it is sent: from here on the server may know it in either form.
        let _ = self.form.compare_exchange(AS_GRANTED, UNSURE, Ordering::SeqCst, Ordering::SeqCst);
        self.share().await
    }

    fn unanswered(&self) -> Option<Error> {
        self.store.server.trouble(self.keys.lock())
    }
}

impl Drop for RedisAcquisition {
    fn drop(&mut self) {
        self.store.notifications.claims.remove(&self.claim.owner().reveal());
    }
}
