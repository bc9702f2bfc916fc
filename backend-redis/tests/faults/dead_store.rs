//! One server, for the tests in `dead`.

use fencelock_core::Locks;
use fencelock_testkit::servers::TestRedis;

use crate::support::*;

/// Enough for minutes, if they were passed over at the pace of safety checks.
pub(crate) const WAITERS: usize = 3000;

pub(crate) struct DeadStore(TestRedis);

impl DeadStore {
    pub(crate) async fn start() -> DeadStore {
        DeadStore(TestRedis::start().await.expect("a server starts"))
    }

    pub(crate) async fn locks(&self) -> Locks {
        direct(&self.0, "ttl=60s").await
    }

    /// For the process that ends: a lock that it was granted at its end is soon free.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}/0?ttl=5s", self.0.addr())
    }

    pub(crate) fn nodes(&self) -> &[TestRedis] {
        std::slice::from_ref(&self.0)
    }

    pub(crate) async fn drained(&self) {
        drained(&self.0).await;
    }
}
