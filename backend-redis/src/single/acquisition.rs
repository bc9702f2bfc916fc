//! One claim's acquisition: its identity, its keys, and the scripts that acquire, renew and release.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, Clock, Error, ErrorKind, FencingToken, IfBusy, Moment,
    ReleaseOutcome, RenewOutcome, Residue, Result, lease_end,
};
use redis::Value;

use super::store::Store;
use crate::protocol::call::ScriptCall;
use crate::protocol::identity::{Keys, identity, ttl_of};
use crate::protocol::script::SCRIPTS;

/// The token's key lives for most of an hour at least; a longer hold extends its life this often.
const TOKEN_KEY_PERIOD: Duration = Duration::from_secs(20 * 60);

pub(crate) struct RedisAcquisition {
    store: Arc<Store>,
    claim: Arc<Claim>,
    keys: Keys,
    identity: String,
    /// When the token's key was last certain to live for most of an hour, in ns on the store's clock;
    /// 0 before the grant.
    token_renewed: AtomicU64,
}

impl RedisAcquisition {
    pub(crate) fn new(store: Arc<Store>, claim: Arc<Claim>) -> RedisAcquisition {
        store.notifications.register(&claim);
        RedisAcquisition {
            keys: Keys::of(claim.name().key()),
            identity: identity(&claim, &store.client),
            token_renewed: AtomicU64::new(0),
            store,
            claim,
        }
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// Renews the lease.
    pub(crate) async fn renew(&self) -> Result<RenewOutcome> {
        let sent = self.store.clock.now();
        let fixed = self.claim.is_fixed_lease();
        let since = Moment::from_nanos(self.token_renewed.load(Ordering::Relaxed));
        let old = sent.duration_since(since) > TOKEN_KEY_PERIOD;
        let ttl = if fixed { "0" } else { ttl_of(&self.identity) };
        let values = [self.identity.as_str(), ttl, if old { "old" } else { "" }];
        // A single key is served also while its slot moves from server to server.
        let keys = self.keys.all();
        let keys = if old { &keys[..] } else { &keys[..1] };
        let values = values.map(str::as_bytes);
        let call = ScriptCall { script: &SCRIPTS.renew, keys, values: &values };
        match self.store.server.call(call).await? {
            Value::Int(1) => {
                if old {
                    self.token_renewed.store(sent.as_nanos(), Ordering::Relaxed);
                }
                let valid_until = match fixed {
                    // Only that it is still held: core ignores an end before the known one.
                    true => sent,
                    false => lease_end(sent, self.claim.ttl()),
                };
                Ok(RenewOutcome::Renewed { valid_until })
            }
            Value::Int(0) => Ok(RenewOutcome::Lost),
            _ => Err(self.protocol_error("renew")),
        }
    }

    /// Completes a grant that counts only once the replicas have it.
    ///
    /// The replicas confirm a renewal: it is sent on a connection of its own, and must not acquire
    /// if it arrives after this claim's release.
    async fn replicated(&self, token: FencingToken) -> Result<AttemptOutcome> {
        let sent = self.store.clock.now();
        let values = [self.identity.as_str(), ttl_of(&self.identity), ""];
        let values = values.map(str::as_bytes);
        let call =
            ScriptCall { script: &SCRIPTS.renew, keys: &self.keys.all()[..1], values: &values };
        match self.store.server.confirm(call).await {
            Ok(Value::Int(1)) => {
                let valid_until = lease_end(sent, self.claim.ttl());
                Ok(AttemptOutcome::Granted { token, valid_until })
            }
            Ok(Value::Int(0)) => {
                let message = "the lock was lost before the replicas had the grant";
                Err(Error::new(ErrorKind::Unreachable, message))
            }
            Ok(_) => Err(self.protocol_error("renew")),
            // A retry follows, or this claim's one release, which is its last request: a release
            // between two attempts could arrive after the second.
            Err(error) => Err(error),
        }
    }

    fn protocol_error(&self, script: &str) -> Error {
        self.store.server.protocol_error(self.keys.lock(), script)
    }
}

/// Reads the reply to an attempt that was sent at `sent` for a lease of `ttl`.
pub(crate) fn read_attempt(answer: &Value, sent: Moment, ttl: Duration) -> Option<AttemptOutcome> {
    match answer {
        Value::Int(0) => Some(AttemptOutcome::Busy { rest: Residue::Nothing }),
        Value::BulkString(token) => {
            let token = std::str::from_utf8(token).ok()?.parse().ok()?;
            let valid_until = lease_end(sent, ttl);
            Some(AttemptOutcome::Granted { token: FencingToken::new(token), valid_until })
        }
        Value::Array(values) => match values.as_slice() {
            [Value::Int(check_after)] => {
                let check_after = Duration::from_millis(u64::try_from(*check_after).ok()?);
                Some(AttemptOutcome::Waiting { check_after })
            }
            _ => None,
        },
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
        let answer = self.store.server.call(call).await?;
        let answer = read_attempt(&answer, sent, self.claim.ttl());
        let answer = answer.ok_or_else(|| self.protocol_error("attempt"))?;
        if matches!(answer, AttemptOutcome::Granted { .. }) {
            self.token_renewed.store(sent.as_nanos(), Ordering::Relaxed);
        }
        match answer {
            AttemptOutcome::Granted { token, .. } if self.store.server.wants_replicas() => {
                Box::pin(self.replicated(token)).await
            }
            AttemptOutcome::Waiting { check_after: Duration::ZERO } => {
                let watching = self.store.watch_foreign(&self.keys, &self.claim);
                let check_after = Box::pin(watching).await;
                Ok(AttemptOutcome::Waiting { check_after })
            }
            answer => Ok(answer),
        }
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        self.store.release(&self.keys, &[self.identity.as_bytes()]).await
    }

    fn unanswered(&self) -> Option<Error> {
        self.store.server.trouble(self.keys.lock())
    }
}

impl Drop for RedisAcquisition {
    fn drop(&mut self) {
        self.store.notifications.unregister(&self.claim);
    }
}
