//! One server for each behaviour, with a proxy that breaks connections.

use std::slice;

use async_trait::async_trait;
use fencelock_conformance::{Backdoor, Harness, Params, Store};
use fencelock_core::{Locks, Result};
use fencelock_testkit::proxied::{self, cannot};
use fencelock_testkit::proxy::{NetworkFault, Proxy, framing};
use fencelock_testkit::servers::{RedisOptions, TestRedis};

use crate::keys::{self, connect};

const PASSWORD: &str = "correct-horse-battery";

pub(crate) struct SingleHarness;

pub(crate) struct Single {
    server: TestRedis,
    proxy: Proxy,
    prefix: String,
    backdoors: Vec<Backdoor>,
}

#[async_trait]
impl Harness for SingleHarness {
    fn name(&self) -> &str {
        "redis"
    }

    async fn open(&self, prefix: &str) -> Result<Box<dyn Store>> {
        let server = RedisOptions::new().password(PASSWORD).start().await;
        let server = server.map_err(|error| cannot("start a redis-server", error))?;
        let proxy = Proxy::framed(server.addr(), framing::resp).await;
        let proxy = proxy.map_err(|error| cannot("start the proxy", error))?;
        // The server belongs to one behaviour.
        let backdoors = [proxied::BACKDOORS, &[Backdoor::LoseData]].concat();
        Ok(Box::new(Single { server, proxy, prefix: prefix.to_owned(), backdoors }))
    }

    async fn connect_peer(&self, address: &str, params: &Params) -> Result<Locks> {
        connect(address, params).await
    }
}

#[async_trait]
impl Store for Single {
    async fn connect(&self, params: &Params) -> Result<Locks> {
        connect(&self.peer_address(), params).await
    }

    fn backdoors(&self) -> &[Backdoor] {
        &self.backdoors
    }

    fn secrets(&self) -> Vec<String> {
        vec![PASSWORD.to_owned()]
    }

    fn connections(&self) -> Option<u64> {
        Some(self.proxy.stats().open)
    }

    async fn leftovers(&self) -> Result<Vec<String>> {
        keys::leftovers(&self.server, "").await
    }

    async fn is_locked(&self, name: &str) -> Result<bool> {
        keys::is_locked(&self.server, &self.prefix, name).await
    }

    async fn expire(&self, name: &str) -> Result<()> {
        keys::expire(&self.server, &self.prefix, name).await
    }

    async fn inject_fault(&self, fault: NetworkFault) -> Result<()> {
        proxied::inject_fault(slice::from_ref(&self.proxy), fault).await
    }

    async fn heal(&self) -> Result<()> {
        proxied::heal(slice::from_ref(&self.proxy)).await
    }

    async fn lose_data(&self) -> Result<()> {
        keys::lose_data(&self.server).await
    }

    fn peer_address(&self) -> String {
        format!("redis://:{PASSWORD}@{}/0", self.proxy.addr())
    }
}
