//! One turn of a tenure: offered to a waiter, begun, and passed on at its end.

use std::sync::Arc;

use tracing::Span;

use super::group::{Group, Offer};
use super::queue::{Accepted, TurnNumber};
use crate::claim::hold::{Hold, RunningTurn};
use crate::client::ClientInner;
use crate::client::owned_hold::{OwnedHold, not_held};
use crate::telemetry;
use crate::telemetry::metrics::GrantedBy;
use crate::time::moment::Moment;
use crate::types::error::Result;
use crate::types::token::FencingToken;

/// One acquisition of a tenure. Its end begins the next turn, or ends the tenure.
pub(crate) struct Turn {
    pub(crate) client: Arc<ClientInner>,
    pub(crate) hold: Arc<Hold>,
    pub(crate) token: FencingToken,
    pub(crate) span: Span,
    group: Arc<Group>,
    number: TurnNumber,
    is_over: bool,
}

impl Turn {
    /// Begins the turn that was offered, unless it was revoked or the hold was lost meanwhile.
    pub(super) fn accept(mut offer: Offer, caller: &Span, started: Moment) -> Option<Turn> {
        let (group, client) = (offer.group.clone(), offer.client.clone());
        let mut state = group.state.lock();
        offer.is_open = false;
        let now = client.now();
        let (hold, before) = match state.queue.accept(offer.number, |held| held.is_valid(now)) {
            Accepted::Turn(held, before) => (held.owned.hold.clone(), before),
            Accepted::Revoked => return None,
            Accepted::Lost(lost) => {
                group.serve(&mut state, &client);
                drop(state);
                drop(lost);
                return None;
            }
        };
        drop(state);
        let by = if before == 0 { GrantedBy::Store } else { GrantedBy::HandOff };
        let token = hold.grant.token.plus(before);
        // From here on its drop ends the turn, also after a panic of the program's subscriber.
        let mut turn = Turn {
            span: Span::none(),
            token,
            number: offer.number,
            is_over: false,
            client,
            hold,
            group,
        };
        let store = turn.client.store.profile().store;
        turn.span = telemetry::hold_span(caller, turn.hold.claim(), store, token);
        turn.client.metrics.granted(&turn.group.request, now.duration_since(started), by);
        turn.hold.begin_turn(RunningTurn { token, span: turn.span.clone(), since: now });
        Some(turn)
    }

    /// Ends the turn. The last one of its tenure gives back the hold, to be released.
    ///
    /// # Errors
    /// It was lost.
    pub(crate) fn finish(mut self) -> Result<Option<OwnedHold>> {
        let is_held = self.hold.is_held(self.client.now());
        match self.end() {
            Some(owned) => Ok(Some(owned)),
            None if is_held => Ok(None),
            None => Err(not_held(&self.hold)),
        }
    }

    fn end(&mut self) -> Option<OwnedHold> {
        if std::mem::replace(&mut self.is_over, true) {
            return None;
        }
        let now = self.client.now();
        // Too late, it is lost, and reported as that.
        if self.hold.is_held(now) {
            self.hold.end_turn(now);
        }
        self.group.pass_on(&self.client, self.number)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        drop(self.end());
    }
}
