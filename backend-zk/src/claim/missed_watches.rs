//! The waiters that may have missed the event they wait for: watches are lost when a connection is
//! established again.

use std::collections::HashSet;
use std::sync::Arc;

use fencelock_core::Acquisition;

use crate::claim::acquisition::ZkAcquisition;
use crate::nodes::node;
use crate::sessions::session::Session;

/// The result of checking the waiters of a lock: empty, unless the connection came back since the
/// last check.
#[derive(Default)]
pub(crate) struct MissedWatches {
    /// The ids of the claims.
    claims: HashSet<u64>,
}

impl MissedWatches {
    /// Checks `waiters`, which wait in `session` for the same lock, by one list.
    pub(crate) async fn find(session: &Arc<Session>, waiters: &[&ZkAcquisition]) -> MissedWatches {
        let mut missed = MissedWatches::default();
        let affected = || waiters.iter().filter(|waiter| waiter.may_have_missed_events(session));
        let Some(Ok(lock)) = affected().next().map(|waiter| waiter.lock()) else { return missed };
        let reconnects = session.reconnects();
        // Without a list they are checked again next time.
        let Ok(listing) = node::list(session, lock).await else { return missed };
        let names = listing.names().iter().map(String::as_str).collect();
        let found = affected().filter(|waiter| !waiter.confirm_watches(&names, reconnects));
        missed.claims = found.map(|waiter| waiter.claim().id()).collect();
        missed
    }

    /// Whether `waiter` has to attempt, since it may have missed its turn or lost its node.
    pub(crate) fn must_attempt(&self, waiter: &ZkAcquisition) -> bool {
        waiter.live_session().is_none() || self.claims.contains(&waiter.claim().id())
    }
}
