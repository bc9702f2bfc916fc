//! A quorum, for the tests in `dead`.

use fencelock_core::Locks;
use fencelock_testkit::servers::TestRedis;

use crate::support::*;

/// For a busy machine, on which requests queue for long.
const NODE_TIMEOUT: &str = "node_timeout=5s";

pub(crate) struct DeadStore(TestQuorum);

impl DeadStore {
    pub(crate) async fn start() -> DeadStore {
        DeadStore(TestQuorum::new(3, &format!("{LONG}&{NODE_TIMEOUT}")).await)
    }

    pub(crate) async fn locks(&self) -> Locks {
        self.0.direct(&format!("{LONG}&{NODE_TIMEOUT}")).await
    }

    pub(crate) fn nodes(&self) -> &[TestRedis] {
        &self.0.nodes
    }

    pub(crate) async fn drained(&self) {
        self.0.drained().await;
    }
}
