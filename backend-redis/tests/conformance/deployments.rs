//! One server, or a quorum of independent ones, some of them dead; one master with two replicas under three
//! sentinels; a cluster of three masters with a replica each.

use std::error::Error;

use async_trait::async_trait;
use fencelock_redis::redlock;
use fencelock_testkit::proxy::{Front, Proxy};
use fencelock_testkit::servers::{RedisOptions, ServerError, TestCluster, TestRedis, TestSentinel};
use futures_util::future::try_join_all;

use crate::harness::{Deployment, hosts};

const PASSWORD: &str = "correct-horse-battery";

pub(crate) struct Nodes {
    /// The first ones are dead.
    servers: Vec<TestRedis>,
    dead: usize,
}

impl Nodes {
    /// A quorum, unless there is one node.
    pub(crate) async fn start(
        count: usize,
        dead: usize,
    ) -> Result<Nodes, Box<dyn Error + Send + Sync>> {
        let starting = (0..count).map(|_| RedisOptions::new().password(PASSWORD).start());
        let servers = try_join_all(starting).await?;
        if count > 1 {
            let hosts: Vec<_> = servers.iter().map(|server| server.addr().to_string()).collect();
            redlock::init(&quorum_url(&hosts.join(","))).await?;
        }
        for server in &servers[..dead] {
            server.kill()?;
        }
        Ok(Nodes { servers, dead })
    }
}

/// Some behaviours delay each reply by half a second, and with as many dead as may be, a machine
/// that stands still for longer than this fails whatever it met.
fn quorum_url(hosts: &str) -> String {
    format!("redlock://:{PASSWORD}@{hosts}/0?node_timeout=5s")
}

#[async_trait]
impl Deployment for Nodes {
    fn servers(&self) -> Vec<&TestRedis> {
        self.servers.iter().collect()
    }

    fn nodes(&self) -> &[TestRedis] {
        &self.servers[self.dead..]
    }

    async fn nodes_of(&self, _key: &str) -> Result<Vec<&TestRedis>, ServerError> {
        Ok(self.nodes().iter().collect())
    }

    fn majority(&self) -> usize {
        self.servers.len() / 2 + 1
    }

    fn url(&self, front: &Front) -> String {
        match hosts(&self.servers, front) {
            host if self.servers.len() == 1 => format!("redis://:{PASSWORD}@{host}/0"),
            hosts => quorum_url(&hosts),
        }
    }

    /// Each node breaks by itself: of a round to all of them, each reply is lost.
    fn proxies<'a>(&self, front: &'a Front) -> Vec<&'a [Proxy]> {
        front.proxies()[self.dead..].chunks(1).collect()
    }

    fn secrets(&self) -> Vec<String> {
        vec![PASSWORD.to_owned()]
    }
}

#[async_trait]
impl Deployment for TestCluster {
    fn servers(&self) -> Vec<&TestRedis> {
        self.nodes().iter().collect()
    }

    fn nodes(&self) -> &[TestRedis] {
        self.nodes()
    }

    async fn nodes_of(&self, key: &str) -> Result<Vec<&TestRedis>, ServerError> {
        Ok(vec![self.master_of(TestCluster::slot_of(key)).await?])
    }

    fn url(&self, front: &Front) -> String {
        format!("redis-cluster://{}", hosts(self.nodes(), front))
    }
}

#[async_trait]
impl Deployment for TestSentinel {
    fn servers(&self) -> Vec<&TestRedis> {
        self.sentinels().iter().chain(self.nodes()).collect()
    }

    fn nodes(&self) -> &[TestRedis] {
        self.nodes()
    }

    async fn nodes_of(&self, _key: &str) -> Result<Vec<&TestRedis>, ServerError> {
        Ok(vec![self.master().await?])
    }

    fn url(&self, front: &Front) -> String {
        format!("redis+sentinel://{}/{}/0", hosts(self.sentinels(), front), self.service())
    }
}
