//! All `tracing` spans and the events of a lock.

pub(crate) mod metrics;
pub mod program;

use tracing::Span;

use crate::store::claim::Claim;
use crate::types::error::{Error, LostReason};
use crate::types::mode::Mode;
use crate::types::name::LockName;
use crate::types::token::FencingToken;

/// The span of an acquisition, from the call to the answer.
pub(crate) fn acquire_span(lock: &LockName, store: &'static str, mode: Mode) -> Span {
    tracing::debug_span!(
        target: "fencelock", "acquire", %lock, store, %mode, token = tracing::field::Empty)
}

/// The span of a hold, from the grant to its end. `within` is the caller's span, not the
/// acquisition's.
/// [`Guard::run`](crate::Guard::run) works inside it.
pub(crate) fn hold_span(
    within: &Span,
    claim: &Claim,
    store: &'static str,
    token: FencingToken,
) -> Span {
    let (lock, mode, token) = (claim.name(), claim.mode(), token.get());
    tracing::debug_span!(target: "fencelock", parent: within, "hold", %lock, store, %mode, token)
}

/// The span of a release, from the call to the answer.
pub(crate) fn release_span(claim: &Claim, store: &'static str, token: FencingToken) -> Span {
    let (lock, token) = (claim.name(), token.get());
    tracing::debug_span!(target: "fencelock", "release", %lock, store, token)
}

/// Logs a loss, within the span of the hold.
pub(crate) fn lost(hold: &Span, claim: &Claim, token: FencingToken, reason: LostReason) {
    let (lock, token, reason) = (claim.name(), token.get(), reason.as_str());
    program::call(|| {
        hold.in_scope(|| tracing::warn!(target: "fencelock", %lock, token, reason, "lock lost"));
    });
}

/// Logs a lock that may stay in the store.
pub(crate) fn left_behind(claim: &Claim, why: &Error) {
    let lock = claim.name();
    program::call(|| tracing::warn!(target: "fencelock", %lock, %why, "gave up releasing"));
}
