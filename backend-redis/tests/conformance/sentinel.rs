//! One master with two replicas under three sentinels.

use async_trait::async_trait;
use fencelock_testkit::proxy::Front;
use fencelock_testkit::servers::{ServerError, TestRedis, TestSentinel};

use crate::followed::{Topology, hosts};

#[async_trait]
impl Topology for TestSentinel {
    const NAME: &'static str = "sentinel";

    async fn start() -> Result<Self, ServerError> {
        TestSentinel::start().await
    }

    fn servers(&self) -> Vec<&TestRedis> {
        self.sentinels().iter().chain(self.nodes()).collect()
    }

    fn nodes(&self) -> &[TestRedis] {
        self.nodes()
    }

    async fn master_of(&self, _key: &str) -> Result<&TestRedis, ServerError> {
        self.master().await
    }

    fn url(&self, front: &Front) -> String {
        format!("redis+sentinel://{}/{}/0", hosts(self.sentinels(), front), self.service())
    }
}
