//! The waiters that may have missed the event they wait for: watches are lost when a connection is
//! established again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fencelock_core::Acquisition;
use futures_util::future::join_all;

use crate::claim::acquisition::ZkAcquisition;
use crate::nodes::node;
use crate::sessions::session::Session;

/// The result of checking waiters: empty, unless the connection came back since the last check.
#[derive(Default)]
pub(crate) struct MissedWatches {
    /// The ids of the claims.
    claims: HashSet<u64>,
}

impl MissedWatches {
    /// Checks `waiters` in `session`, by one list for each lock.
    pub(crate) async fn find<'a>(
        session: &Arc<Session>,
        waiters: impl Iterator<Item = &'a ZkAcquisition>,
    ) -> MissedWatches {
        let mut locks: HashMap<&str, Vec<&ZkAcquisition>> = HashMap::new();
        for waiter in waiters.filter(|waiter| waiter.may_have_missed_events(session)) {
            if let Ok(lock) = waiter.lock() {
                locks.entry(lock).or_default().push(waiter);
            }
        }
        let mut missed = MissedWatches::default();
        let reconnects = session.reconnects();
        let checks = locks
            .into_iter()
            .map(async |(lock, waiters)| (node::list(session, lock).await, waiters));
        for (listing, waiters) in join_all(checks).await {
            // Without a list they are checked again next time.
            let Ok(listing) = listing else { continue };
            let names = listing.names().iter().map(String::as_str).collect();
            let found = waiters.iter().filter(|waiter| !waiter.confirm_watches(&names, reconnects));
            missed.claims.extend(found.map(|waiter| waiter.claim().id()));
        }
        missed
    }

    /// Whether `waiter` has to attempt, since it may have missed its turn or lost its node.
    pub(crate) fn must_attempt(&self, waiter: &ZkAcquisition) -> bool {
        waiter.live_session().is_none() || self.claims.contains(&waiter.claim().id())
    }
}
