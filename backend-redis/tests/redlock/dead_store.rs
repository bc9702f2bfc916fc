//! A quorum, for the tests in `dead`.

use fencelock_core::Locks;
use fencelock_testkit::servers::TestRedis;

use crate::support::*;

/// For a busy machine, on which requests queue for long.
const PARAMS: &str = "ttl=60s&restart_delay=90s&clock_tolerance=10s&node_timeout=5s";

pub(crate) struct DeadStore(TestQuorum);

impl DeadStore {
    pub(crate) async fn start() -> DeadStore {
        DeadStore(TestQuorum::new(3, PARAMS).await)
    }

    pub(crate) async fn locks(&self) -> Locks {
        self.0.direct(PARAMS).await
    }

    pub(crate) fn nodes(&self) -> &[TestRedis] {
        &self.0.nodes
    }

    pub(crate) async fn drained(&self) {
        self.0.drained().await;
    }
}
