//! One turn of a tenure: offered to a waiter, begun, and passed on at its end.

use std::sync::Arc;

use tracing::Span;

use super::group::Group;
use crate::engine::client::ClientInner;
use crate::engine::hold::{Hold, RunningTurn};
use crate::engine::metrics::GrantedBy;
use crate::engine::owned_hold::{OwnedHold, not_held};
use crate::engine::telemetry;
use crate::time::moment::Moment;
use crate::types::error::Result;
use crate::types::token::FencingToken;

/// A turn that a waiter may begin. Dropped without that, it goes to the next one.
pub(super) struct Offer {
    pub(super) group: Arc<Group>,
    pub(super) client: Arc<ClientInner>,
    pub(super) number: TurnNumber,
    pub(super) is_open: bool,
}

/// Which turn of which tenure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct TurnNumber {
    pub(super) tenure: u64,
    pub(super) offer: u64,
}

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

impl Offer {
    /// Begins the turn, unless it was revoked or the hold was lost meanwhile.
    pub(super) fn accept(mut self, caller: &Span, started: Moment) -> Option<Turn> {
        let (group, client) = (self.group.clone(), self.client.clone());
        let mut state = group.state.lock();
        self.is_open = false;
        let now = client.now();
        let tenure = state.tenure.as_mut().filter(|tenure| tenure.number() == self.number)?;
        if !tenure.owned.hold.is_valid(now) {
            let ended = group.end_tenure(&mut state, &client);
            drop(state);
            drop(ended);
            return None;
        }
        tenure.is_running = true;
        let by = if tenure.used == 0 { GrantedBy::Store } else { GrantedBy::HandOff };
        let token = tenure.first.plus(tenure.used);
        tenure.used += 1;
        let hold = tenure.owned.hold.clone();
        drop(state);
        // From here on its drop ends the turn, also after a panic of the program's subscriber.
        let mut turn = Turn {
            span: Span::none(),
            token,
            number: self.number,
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
}

impl Drop for Offer {
    fn drop(&mut self) {
        if self.is_open {
            drop(self.group.pass_on(&self.client, self.number));
        }
    }
}

impl Turn {
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
