//! One master with two replicas under three sentinels, shared by all behaviours, each under its
//! own prefix.

use std::sync::Arc;

use async_trait::async_trait;
use fencelock_conformance::servers::TestSentinel;
use fencelock_conformance::{Door, Harness, Params, Store};
use fencelock_core::{Locks, Result};
use tokio::sync::OnceCell;

use crate::keys::{self, cannot, connect};

#[derive(Default)]
pub(crate) struct SentinelHarness {
    servers: OnceCell<Arc<TestSentinel>>,
}

struct Watched {
    servers: Arc<TestSentinel>,
    prefix: String,
}

#[async_trait]
impl Harness for SentinelHarness {
    fn name(&self) -> &str {
        "sentinel"
    }

    async fn open(&self, prefix: &str) -> Result<Box<dyn Store>> {
        let start = async || {
            let servers = TestSentinel::start().await;
            servers.map(Arc::new).map_err(|error| cannot("start Redis under Sentinel", error))
        };
        let servers = self.servers.get_or_try_init(start).await?.clone();
        Ok(Box::new(Watched { servers, prefix: prefix.to_owned() }))
    }

    async fn connect_peer(&self, address: &str, params: &Params) -> Result<Locks> {
        connect(address, params).await
    }
}

impl Watched {
    async fn master(&self) -> Result<&fencelock_conformance::servers::TestRedis> {
        self.servers.master().await.map_err(|error| cannot("find the master", error))
    }
}

#[async_trait]
impl Store for Watched {
    async fn connect(&self, params: &Params) -> Result<Locks> {
        connect(&self.peer_address(), params).await
    }

    fn doors(&self) -> &[Door] {
        &[Door::Look, Door::Expire, Door::Processes]
    }

    fn why_not(&self, door: Door) -> String {
        match door {
            Door::LoseData => "the servers are shared by all behaviours",
            _ => "clients connect to the address that the sentinels name, past any proxy",
        }
        .to_owned()
    }

    async fn leftovers(&self) -> Result<Vec<String>> {
        keys::leftovers(self.master().await?, &self.prefix).await
    }

    async fn is_locked(&self, name: &str) -> Result<bool> {
        keys::is_locked(self.master().await?, &self.prefix, name).await
    }

    async fn expire(&self, name: &str) -> Result<()> {
        keys::expire(self.master().await?, &self.prefix, name).await
    }

    fn peer_address(&self) -> String {
        let sentinels = self.servers.sentinels().iter().map(|server| server.addr().to_string());
        let sentinels = sentinels.collect::<Vec<_>>().join(",");
        format!("redis+sentinel://{sentinels}/{}/0", self.servers.service())
    }
}
