//! A quorum, for the tests in `dead`.

use fencelock_core::Locks;
use fencelock_testkit::servers::TestRedis;

use crate::support::*;

/// The number for which the bound is promised.
pub(crate) const WAITERS: usize = 10_000;

/// A busy machine queues for long.
const NODE_TIMEOUT: &str = "node_timeout=5s";

pub(crate) struct DeadStore(Testbed);

impl DeadStore {
    pub(crate) async fn start() -> DeadStore {
        DeadStore(Testbed::new(3, &format!("{LONG}&{NODE_TIMEOUT}")).await)
    }

    pub(crate) async fn locks(&self) -> Locks {
        self.0.direct(&format!("{LONG}&{NODE_TIMEOUT}")).await
    }

    /// For the process that ends: a lock that it was granted at its end is soon free.
    pub(crate) fn url(&self) -> String {
        self.0.url(&format!("ttl=5s&restart_delay=90s&clock_tolerance=10s&{NODE_TIMEOUT}"))
    }

    pub(crate) fn nodes(&self) -> &[TestRedis] {
        &self.0.nodes
    }

    pub(crate) async fn drained(&self) {
        self.0.drained().await;
    }
}
