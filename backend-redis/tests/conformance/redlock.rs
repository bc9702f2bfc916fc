//! Independent servers for each behaviour, each behind a proxy that breaks connections; some of them
//! may be dead.

use std::slice;

use async_trait::async_trait;
use fencelock_conformance::{Backdoor, Harness, Params, Store};
use fencelock_core::{Locks, Result, url};
use fencelock_redis::{REDLOCK_SCHEME, redlock};
use fencelock_testkit::proxied::{self, cannot};
use fencelock_testkit::proxy::{NetworkFault, Proxy, framing};
use fencelock_testkit::servers::{RedisOptions, TestRedis};
use futures_util::future::try_join_all;

use crate::keys;

const PASSWORD: &str = "correct-horse-battery";

pub(crate) struct RedlockHarness {
    pub(crate) name: &'static str,
    pub(crate) nodes: usize,
    /// How many of them are dead.
    pub(crate) dead: usize,
}

struct Nodes {
    /// The first ones are dead.
    servers: Vec<TestRedis>,
    proxies: Vec<Proxy>,
    dead: usize,
    prefix: String,
}

async fn start_node() -> Result<(TestRedis, Proxy)> {
    let server = RedisOptions::new().password(PASSWORD).start().await;
    let server = server.map_err(|error| cannot("start a redis-server", error))?;
    let proxy = Proxy::framed(server.addr(), framing::resp).await;
    let proxy = proxy.map_err(|error| cannot("start the proxy", error))?;
    Ok((server, proxy))
}

#[async_trait]
impl Harness for RedlockHarness {
    fn name(&self) -> &str {
        self.name
    }

    async fn open(&self, prefix: &str) -> Result<Box<dyn Store>> {
        let nodes = try_join_all((0..self.nodes).map(|_| start_node())).await?;
        let (servers, proxies) = nodes.into_iter().unzip();
        let nodes = Nodes { servers, proxies, dead: self.dead, prefix: prefix.to_owned() };
        redlock::init(&nodes.peer_address()).await?;
        for server in &nodes.servers[..self.dead] {
            server.kill().map_err(|error| cannot("kill a node", error))?;
        }
        Ok(Box::new(nodes))
    }

    async fn connect_peer(&self, address: &str, params: &Params) -> Result<Locks> {
        connect(address, params).await
    }
}

async fn connect(address: &str, params: &Params) -> Result<Locks> {
    url::connect(&[REDLOCK_SCHEME], &params.on_url(address)).await
}

impl Nodes {
    fn alive(&self) -> &[TestRedis] {
        &self.servers[self.dead..]
    }
}

#[async_trait]
impl Store for Nodes {
    async fn connect(&self, params: &Params) -> Result<Locks> {
        connect(&self.peer_address(), params).await
    }

    fn backdoors(&self) -> &[Backdoor] {
        proxied::BACKDOORS
    }

    fn why_not(&self, _: Backdoor) -> String {
        "nodes that lost their data take no part for longer than the behaviour waits".to_owned()
    }

    fn secrets(&self) -> Vec<String> {
        vec![PASSWORD.to_owned()]
    }

    fn connections(&self) -> Option<u64> {
        Some(proxied::connections(&self.proxies[self.dead..]))
    }

    async fn leftovers(&self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for server in self.alive() {
            let keys = keys::leftovers(server, "").await?;
            all.extend(keys.into_iter().filter(|key| key != "fencelock:redlock"));
        }
        Ok(all)
    }

    /// Where it counts: at a majority.
    async fn is_locked(&self, name: &str) -> Result<bool> {
        let mut locked = 0;
        for server in self.alive() {
            locked += usize::from(keys::is_locked(server, &self.prefix, name).await?);
        }
        Ok(locked > self.servers.len() / 2)
    }

    async fn expire(&self, name: &str) -> Result<()> {
        for server in self.alive() {
            keys::expire(server, &self.prefix, name).await?;
        }
        Ok(())
    }

    /// Each node breaks by itself: of a round to all of them, each reply is lost.
    async fn inject_fault(&self, fault: NetworkFault) -> Result<()> {
        for proxy in &self.proxies[self.dead..] {
            proxied::inject_fault(slice::from_ref(proxy), fault).await?;
        }
        Ok(())
    }

    async fn heal(&self) -> Result<()> {
        proxied::heal(&self.proxies[self.dead..]).await
    }

    fn peer_address(&self) -> String {
        let hosts: Vec<String> =
            self.proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
        // Some behaviours delay each reply by half a second, and with as many dead as may be, a machine
        // that stands still for longer than this fails whatever it met.
        format!("redlock://:{PASSWORD}@{}/0?node_timeout=5s", hosts.join(","))
    }
}
