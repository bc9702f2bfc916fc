//! Servers that all behaviours share, each with a prefix and proxies of its own.

use std::error::Error as Cause;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_conformance::{Backdoor, Harness, Params, Store};
use fencelock_core::{Locks, Result};
use fencelock_testkit::helpers::redis_leftovers;
use fencelock_testkit::proxied::{self, cannot};
use fencelock_testkit::proxy::{Front, NetworkFault, Proxy, framing};
use fencelock_testkit::servers::{ServerError, TestRedis};
use tokio::sync::OnceCell;

use crate::keys::{self, connect};

/// How servers of one kind are queried.
#[async_trait]
pub(crate) trait Deployment: Send + Sync + 'static {
    /// All servers that a client may connect to.
    fn servers(&self) -> Vec<&TestRedis>;

    /// The servers that are alive and have keys.
    fn nodes(&self) -> &[TestRedis];

    /// The nodes that should have a key.
    async fn nodes_of(&self, key: &str) -> std::result::Result<Vec<&TestRedis>, ServerError>;

    /// How many nodes have the key of a lock that is held.
    fn majority(&self) -> usize {
        1
    }

    /// A client's URL, with these addresses.
    fn url(&self, front: &Front) -> String;

    /// The proxies before the servers that are alive, by what is asked at once: of each group one reply is lost.
    fn proxies<'a>(&self, front: &'a Front) -> Vec<&'a [Proxy]> {
        vec![front.proxies()]
    }

    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }
}

/// `host:port` of each, at which a client reaches it through `front`.
pub(crate) fn hosts(servers: &[TestRedis], front: &Front) -> String {
    let hosts = servers.iter().map(|server| front.addr_of(server.addr()).to_string());
    hosts.collect::<Vec<_>>().join(",")
}

/// `start` is called once.
pub(crate) struct SharedHarness<T, S> {
    name: &'static str,
    backdoors: Vec<Backdoor>,
    start: S,
    servers: OnceCell<Arc<T>>,
}

impl<T, S> SharedHarness<T, S> {
    /// With these backdoors besides the usual ones.
    pub(crate) fn new(name: &'static str, more: &[Backdoor], start: S) -> SharedHarness<T, S> {
        let backdoors = [proxied::BACKDOORS, more].concat();
        SharedHarness { name, backdoors, start, servers: OnceCell::new() }
    }
}

struct SharedStore<T> {
    servers: Arc<T>,
    front: Front,
    prefix: String,
    backdoors: Vec<Backdoor>,
}

#[async_trait]
impl<T, S, F, E> Harness for SharedHarness<T, S>
where
    T: Deployment,
    S: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = std::result::Result<T, E>> + Send,
    E: Into<Box<dyn Cause + Send + Sync>>,
{
    fn name(&self) -> &str {
        self.name
    }

    async fn open(&self, prefix: &str) -> Result<Box<dyn Store>> {
        let start = async || {
            let servers = (self.start)().await;
            servers.map(Arc::new).map_err(|error| cannot("start the servers", error))
        };
        let servers = self.servers.get_or_try_init(start).await?.clone();
        let addresses = servers.servers().into_iter().map(|node| node.addr());
        let front = Front::before(addresses.collect::<Vec<_>>(), framing::resp).await;
        let front = front.map_err(|error| cannot("start the proxies", error))?;
        let (prefix, backdoors) = (prefix.to_owned(), self.backdoors.clone());
        Ok(Box::new(SharedStore { servers, front, prefix, backdoors }))
    }

    async fn connect_peer(&self, address: &str, params: &Params) -> Result<Locks> {
        connect(address, params).await
    }
}

impl<T: Deployment> SharedStore<T> {
    async fn nodes_of(&self, name: &str) -> Result<Vec<&TestRedis>> {
        let nodes = self.servers.nodes_of(&keys::key(&self.prefix, name)).await;
        nodes.map_err(|error| cannot("find the master", error))
    }

    fn proxies(&self) -> Vec<&[Proxy]> {
        self.servers.proxies(&self.front)
    }
}

#[async_trait]
impl<T: Deployment> Store for SharedStore<T> {
    async fn connect(&self, params: &Params) -> Result<Locks> {
        connect(&self.peer_address(), params).await
    }

    fn backdoors(&self) -> &[Backdoor] {
        &self.backdoors
    }

    fn why_not(&self, _: Backdoor) -> String {
        "the servers are shared, and nodes without their data take no part for long".to_owned()
    }

    fn secrets(&self) -> Vec<String> {
        self.servers.secrets()
    }

    fn connections(&self) -> Option<u64> {
        Some(self.proxies().into_iter().map(proxied::connections).sum())
    }

    async fn leftovers(&self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for node in self.servers.nodes() {
            let of_node = redis_leftovers(node, &self.prefix).await;
            all.extend(of_node.map_err(|cause| cannot("ask the server", cause))?);
        }
        Ok(all)
    }

    async fn is_locked(&self, name: &str) -> Result<bool> {
        let mut locked = 0;
        for node in self.nodes_of(name).await? {
            locked += usize::from(keys::is_locked(node, &self.prefix, name).await?);
        }
        Ok(locked >= self.servers.majority())
    }

    async fn expire(&self, name: &str) -> Result<()> {
        for node in self.nodes_of(name).await? {
            keys::expire(node, &self.prefix, name).await?;
        }
        Ok(())
    }

    async fn inject_fault(&self, fault: NetworkFault) -> Result<()> {
        for proxies in self.proxies() {
            proxied::inject_fault(proxies, fault).await?;
        }
        Ok(())
    }

    async fn heal(&self) -> Result<()> {
        for proxies in self.proxies() {
            proxied::heal(proxies).await?;
        }
        Ok(())
    }

    async fn lose_data(&self) -> Result<()> {
        keys::lose_data(&self.servers.nodes()[0], &self.prefix).await
    }

    fn peer_address(&self) -> String {
        self.servers.url(&self.front)
    }
}
