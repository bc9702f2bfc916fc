//! Routes the server's notifications to the live claims of this client, and to its watches of cells.

use fencelock_core::backend::{CellWatches, ClaimRegistry};
use uuid::Uuid;

use crate::connection::PushHandler;

/// Those whom notifications wake.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    /// The channel of changed cells; every other notification is for a claim.
    pub(crate) cells_channel: String,
    /// All claims, by their owner; core releases them.
    pub(crate) claims: ClaimRegistry<Uuid>,
    /// Those who watch cells.
    pub(crate) cells: CellWatches,
}

impl PushHandler for Notifications {
    /// Anybody may send one: it is a hint, and the claim asks.
    fn on_notification(&self, channel: &str, payload: &str) {
        if channel == self.cells_channel {
            self.cells.changed(payload);
        } else if let Ok(owner) = Uuid::try_parse(payload) {
            self.claims.wake(&owner);
        }
    }

    /// Wakes all: hand-overs may be lost, and places in queues, too. So may changes of cells.
    fn on_gap(&self) {
        self.claims.wake_all();
        self.cells.all_may_have_changed();
    }
}
