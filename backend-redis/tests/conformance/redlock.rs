//! Independent servers for each behaviour, each behind a proxy that breaks connections; some of them
//! may be dead.

use std::time::Duration;

use async_trait::async_trait;
use fencelock_conformance::{Backdoor, Harness, Params, Store};
use fencelock_core::{Locks, Result, url};
use fencelock_redis::{REDLOCK_SCHEME, redlock};
use fencelock_testkit::proxy::{AfterDrop, Direction, DropReply, NetworkFault, Proxy, framing};
use fencelock_testkit::servers::{RedisOptions, TestRedis};
use futures_util::future::try_join_all;

use crate::keys::{self, cannot};

const PASSWORD: &str = "correct-horse-battery";

pub(crate) struct RedlockHarness {
    pub(crate) name: &'static str,
    pub(crate) nodes: usize,
    /// How many of them are dead.
    pub(crate) dead: usize,
}

struct Node {
    server: TestRedis,
    proxy: Proxy,
}

struct Nodes {
    /// The first ones are dead.
    nodes: Vec<Node>,
    dead: usize,
    prefix: String,
}

async fn start_node() -> Result<Node> {
    let server = RedisOptions::new().password(PASSWORD).start().await;
    let server = server.map_err(|error| cannot("start a redis-server", error))?;
    let proxy = Proxy::framed(server.addr(), framing::resp).await;
    let proxy = proxy.map_err(|error| cannot("start the proxy", error))?;
    Ok(Node { server, proxy })
}

#[async_trait]
impl Harness for RedlockHarness {
    fn name(&self) -> &str {
        self.name
    }

    async fn open(&self, prefix: &str) -> Result<Box<dyn Store>> {
        let nodes = try_join_all((0..self.nodes).map(|_| start_node())).await?;
        let nodes = Nodes { nodes, dead: self.dead, prefix: prefix.to_owned() };
        redlock::init(&nodes.peer_address()).await?;
        for node in &nodes.nodes[..self.dead] {
            node.server.kill().map_err(|error| cannot("kill a node", error))?;
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
    fn alive(&self) -> &[Node] {
        &self.nodes[self.dead..]
    }
}

#[async_trait]
impl Store for Nodes {
    async fn connect(&self, params: &Params) -> Result<Locks> {
        connect(&self.peer_address(), params).await
    }

    fn backdoors(&self) -> &[Backdoor] {
        &[
            Backdoor::Inspect,
            Backdoor::Expire,
            Backdoor::CutOff,
            Backdoor::SlowReplies,
            Backdoor::LoseReply,
            Backdoor::NetworkFaults,
            Backdoor::Processes,
        ]
    }

    fn why_not(&self, _door: Backdoor) -> String {
        "nodes that lost their data take no part for longer than the behaviour waits".to_owned()
    }

    fn secrets(&self) -> Vec<String> {
        vec![PASSWORD.to_owned()]
    }

    fn connections(&self) -> Option<u64> {
        Some(self.alive().iter().map(|node| node.proxy.stats().open).sum())
    }

    async fn leftovers(&self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for node in self.alive() {
            let keys = keys::leftovers(&node.server, "").await?;
            all.extend(keys.into_iter().filter(|key| key != "fencelock:redlock"));
        }
        Ok(all)
    }

    /// Where it counts: at a majority.
    async fn is_locked(&self, name: &str) -> Result<bool> {
        let mut locked = 0;
        for node in self.alive() {
            locked += usize::from(keys::is_locked(&node.server, &self.prefix, name).await?);
        }
        Ok(locked > self.nodes.len() / 2)
    }

    async fn expire(&self, name: &str) -> Result<()> {
        for node in self.alive() {
            keys::expire(&node.server, &self.prefix, name).await?;
        }
        Ok(())
    }

    async fn cut_off(&self) -> Result<()> {
        for node in self.alive() {
            node.proxy.black_hole(Direction::ToServer);
            node.proxy.black_hole(Direction::ToClient);
        }
        Ok(())
    }

    async fn heal(&self) -> Result<()> {
        for node in self.alive() {
            node.proxy.heal().await.map_err(|error| cannot("heal", error))?;
        }
        Ok(())
    }

    async fn delay_replies(&self, by: Duration) -> Result<()> {
        self.alive().iter().for_each(|node| node.proxy.delay(Direction::ToClient, by));
        Ok(())
    }

    async fn lose_next_reply(&self) -> Result<()> {
        for node in self.alive() {
            let next = DropReply::first(AfterDrop::Reset);
            node.proxy.drop_reply(next).map_err(|error| cannot("lose a reply", error))?;
        }
        Ok(())
    }

    async fn inject_fault(&self, fault: NetworkFault) -> Result<()> {
        for node in self.alive() {
            let met = node.proxy.apply(fault).await;
            met.map_err(|error| cannot("break connections", error))?;
        }
        Ok(())
    }

    fn peer_address(&self) -> String {
        let hosts: Vec<String> =
            self.nodes.iter().map(|node| node.proxy.addr().to_string()).collect();
        // Some behaviours delay each reply by half a second, and with as many dead as may be, a machine
        // that stands still for longer than this fails whatever it met.
        format!("redlock://:{PASSWORD}@{}/0?node_timeout=5s", hosts.join(","))
    }
}
