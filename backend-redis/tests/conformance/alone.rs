//! One server, or a quorum of independent ones, some of them dead: all behaviours share them, each with a prefix
//! of its own, and with proxies that break its connections.

use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_conformance::{Backdoor, Harness, Params, Store};
use fencelock_core::{Locks, Result};
use fencelock_redis::redlock;
use fencelock_testkit::proxied::{self, cannot};
use fencelock_testkit::proxy::{NetworkFault, Proxy, framing};
use fencelock_testkit::servers::{RedisOptions, TestRedis};
use futures_util::future::try_join_all;
use tokio::sync::OnceCell;

use crate::keys::{self, connect};

const PASSWORD: &str = "correct-horse-battery";

pub(crate) struct AloneHarness {
    name: &'static str,
    nodes: usize,
    dead: usize,
    servers: OnceCell<Arc<[TestRedis]>>,
}

struct Nodes {
    /// The first ones are dead.
    servers: Arc<[TestRedis]>,
    proxies: Vec<Proxy>,
    dead: usize,
    prefix: String,
    backdoors: Vec<Backdoor>,
}

impl AloneHarness {
    /// A quorum, unless there is one node.
    pub(crate) fn new(name: &'static str, nodes: usize, dead: usize) -> AloneHarness {
        AloneHarness { name, nodes, dead, servers: OnceCell::new() }
    }

    async fn start(&self) -> Result<Arc<[TestRedis]>> {
        let starting = (0..self.nodes).map(|_| RedisOptions::new().password(PASSWORD).start());
        let servers = try_join_all(starting).await;
        let servers = servers.map_err(|error| cannot("start a redis-server", error))?;
        if self.nodes > 1 {
            redlock::init(&url_of(servers.iter().map(TestRedis::addr))).await?;
        }
        for server in &servers[..self.dead] {
            server.kill().map_err(|error| cannot("kill a node", error))?;
        }
        Ok(servers.into())
    }
}

#[async_trait]
impl Harness for AloneHarness {
    fn name(&self) -> &str {
        self.name
    }

    async fn open(&self, prefix: &str) -> Result<Box<dyn Store>> {
        let servers = self.servers.get_or_try_init(|| self.start()).await?.clone();
        let proxies = servers.iter().map(|server| Proxy::framed(server.addr(), framing::resp));
        let proxies = try_join_all(proxies).await;
        let proxies = proxies.map_err(|error| cannot("start the proxies", error))?;
        let mut backdoors = proxied::BACKDOORS.to_vec();
        if self.nodes == 1 {
            backdoors.push(Backdoor::LoseData);
        }
        let (dead, prefix) = (self.dead, prefix.to_owned());
        Ok(Box::new(Nodes { servers, proxies, dead, prefix, backdoors }))
    }

    async fn connect_peer(&self, address: &str, params: &Params) -> Result<Locks> {
        connect(address, params).await
    }
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
        &self.backdoors
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
            all.extend(keys::leftovers(server, &self.prefix).await?);
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

    async fn lose_data(&self) -> Result<()> {
        keys::lose_data(&self.servers[0], &self.prefix).await
    }

    fn peer_address(&self) -> String {
        url_of(self.proxies.iter().map(Proxy::addr))
    }
}

fn url_of(hosts: impl Iterator<Item = SocketAddr>) -> String {
    let hosts: Vec<String> = hosts.map(|host| host.to_string()).collect();
    match &hosts[..] {
        [host] => format!("redis://:{PASSWORD}@{host}/0"),
        // Some behaviours delay each reply by half a second, and with as many dead as may be, a machine
        // that stands still for longer than this fails whatever it met.
        nodes => format!("redlock://:{PASSWORD}@{}/0?node_timeout=5s", nodes.join(",")),
    }
}
