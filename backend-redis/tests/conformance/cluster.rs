//! A cluster of three masters with a replica each, shared by all behaviours, each under its own
//! prefix.

use std::sync::Arc;

use async_trait::async_trait;
use fencelock_conformance::servers::{TestCluster, TestRedis};
use fencelock_conformance::{Door, Harness, Params, Store};
use fencelock_core::{Locks, Result};
use tokio::sync::OnceCell;

use crate::keys::{self, cannot, connect};

#[derive(Default)]
pub(crate) struct ClusterHarness {
    servers: OnceCell<Arc<TestCluster>>,
}

struct Nodes {
    servers: Arc<TestCluster>,
    prefix: String,
}

#[async_trait]
impl Harness for ClusterHarness {
    fn name(&self) -> &str {
        "cluster"
    }

    async fn open(&self, prefix: &str) -> Result<Box<dyn Store>> {
        let start = async || {
            let servers = TestCluster::start().await;
            servers.map(Arc::new).map_err(|error| cannot("start a Redis cluster", error))
        };
        let servers = self.servers.get_or_try_init(start).await?.clone();
        Ok(Box::new(Nodes { servers, prefix: prefix.to_owned() }))
    }

    async fn connect_peer(&self, address: &str, params: &Params) -> Result<Locks> {
        connect(address, params).await
    }
}

impl Nodes {
    async fn master_of(&self, name: &str) -> Result<&TestRedis> {
        let slot = TestCluster::slot_of(&keys::key(&self.prefix, name));
        self.servers.master_of(slot).await.map_err(|error| cannot("find the master", error))
    }
}

#[async_trait]
impl Store for Nodes {
    async fn connect(&self, params: &Params) -> Result<Locks> {
        connect(&self.peer_address(), params).await
    }

    fn doors(&self) -> &[Door] {
        &[Door::Look, Door::Expire, Door::Processes]
    }

    fn why_not(&self, door: Door) -> String {
        match door {
            Door::LoseData => "the servers are shared by all behaviours",
            _ => "clients connect to the addresses that the nodes name, past any proxy",
        }
        .to_owned()
    }

    async fn leftovers(&self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for node in self.servers.nodes() {
            all.extend(keys::leftovers(node, &self.prefix).await?);
        }
        Ok(all)
    }

    async fn is_locked(&self, name: &str) -> Result<bool> {
        keys::is_locked(self.master_of(name).await?, &self.prefix, name).await
    }

    async fn expire(&self, name: &str) -> Result<()> {
        keys::expire(self.master_of(name).await?, &self.prefix, name).await
    }

    fn peer_address(&self) -> String {
        let nodes = self.servers.nodes().iter().map(|server| server.addr().to_string());
        format!("redis-cluster://{}", nodes.collect::<Vec<_>>().join(","))
    }
}
