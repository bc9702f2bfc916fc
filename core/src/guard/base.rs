//! What an acquisition was granted, by the store or by a local hand-off: all that a guard, or several that share
//! it, have in common.

use std::sync::Arc;

use tracing::Span;

use crate::acquire::{WaitLimit, acquire};
use crate::claim::hold::Hold;
use crate::client::ClientInner;
use crate::client::owned_hold::OwnedHold;
use crate::handoff::{self, Handoffs, Turn, acquire_in_turn};
use crate::store::claim::AcquireRequest;
use crate::time::moment::Moment;
use crate::types::error::{Error, ErrorKind, Operation, Result};
use crate::types::token::FencingToken;

/// Dropping it releases it in the background.
pub(crate) enum Base {
    /// A hold.
    Whole(OwnedHold),
    /// A turn of one.
    Turn(Box<Turn>),
}

impl Base {
    pub(crate) fn client(&self) -> &Arc<ClientInner> {
        match self {
            Base::Whole(owned) => &owned.client,
            Base::Turn(turn) => &turn.client,
        }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        match self {
            Base::Whole(owned) => &owned.hold,
            Base::Turn(turn) => &turn.hold,
        }
    }

    pub(crate) fn token(&self) -> FencingToken {
        match self {
            Base::Whole(owned) => owned.hold.grant.token,
            Base::Turn(turn) => turn.token,
        }
    }

    pub(crate) fn span(&self) -> &Span {
        match self {
            Base::Whole(owned) => &owned.hold.span,
            Base::Turn(turn) => &turn.span,
        }
    }

    /// Releases it and waits until the store has confirmed it, unless the hold is handed on.
    pub(crate) async fn release(self) -> Result<()> {
        let owned = match self {
            Base::Whole(owned) => Some(owned),
            Base::Turn(turn) => turn.finish()?,
        };
        match owned {
            Some(owned) => owned.release().await,
            None => Ok(()),
        }
    }
}

/// Acquires a lock from the store, or by a local hand-off, and until when the guard may have it at most. (A hold
/// of its own ends itself then.)
pub(crate) async fn acquire_base(
    client: &Arc<ClientInner>,
    request: &AcquireRequest,
    wait_limit: WaitLimit,
) -> Result<(Base, Moment)> {
    if request.local_handoffs == 1 {
        let owned = acquire(client, request, wait_limit, None).await?;
        return Ok((Base::Whole(owned), Moment::NEVER));
    }
    let explained = |error| client.explain(error, Operation::Acquire, &request.name);
    handoff::require(request).map_err(explained)?;
    let most = request.local_handoffs.min(client.store.profile().max_local_handoffs);
    let request = AcquireRequest { local_handoffs: most, ..request.clone() };
    let is_try = wait_limit.limit.is_zero();
    if is_try && client.registry::<Handoffs>().are_busy(&request) {
        let message = "held by this process, or others of it wait for it";
        return Err(explained(Error::new(ErrorKind::Busy, message)));
    }
    if is_try || most == 1 {
        let request = AcquireRequest { local_handoffs: 1, ..request };
        let owned = acquire(client, &request, wait_limit, None).await?;
        return Ok((Base::Whole(owned), Moment::NEVER));
    }
    let turn = acquire_in_turn(client, &request, wait_limit).await?;
    let limit = request.hold_at_most.map_or(Moment::NEVER, |limit| client.now() + limit);
    Ok((Base::Turn(Box::new(turn)), limit))
}
