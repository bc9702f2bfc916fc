//! A cluster of three masters with a replica each.

use async_trait::async_trait;
use fencelock_testkit::proxy::Front;
use fencelock_testkit::servers::{ServerError, TestCluster, TestRedis};

use crate::followed::{Topology, hosts};

#[async_trait]
impl Topology for TestCluster {
    const NAME: &'static str = "cluster";

    async fn start() -> Result<Self, ServerError> {
        TestCluster::start().await
    }

    fn servers(&self) -> Vec<&TestRedis> {
        self.nodes().iter().collect()
    }

    fn nodes(&self) -> &[TestRedis] {
        self.nodes()
    }

    async fn master_of(&self, key: &str) -> Result<&TestRedis, ServerError> {
        TestCluster::master_of(self, TestCluster::slot_of(key)).await
    }

    fn url(&self, front: &Front) -> String {
        format!("redis-cluster://{}", hosts(self.nodes(), front))
    }
}
