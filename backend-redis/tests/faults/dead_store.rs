//! One server, for the tests in `dead`.

use fencelock_core::Locks;
use fencelock_testkit::servers::TestRedis;

use crate::support::*;

pub(crate) struct DeadStore(TestRedis);

impl DeadStore {
    pub(crate) async fn start() -> DeadStore {
        DeadStore(TestRedis::start().await.expect("a server starts"))
    }

    pub(crate) async fn locks(&self) -> Locks {
        direct(&self.0, "ttl=60s").await
    }

    pub(crate) fn nodes(&self) -> &[TestRedis] {
        std::slice::from_ref(&self.0)
    }

    pub(crate) async fn drained(&self) {
        drained(&self.0).await;
    }
}
