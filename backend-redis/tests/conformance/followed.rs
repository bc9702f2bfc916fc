//! Servers that name each other to their clients, shared by all behaviours, each with a prefix and
//! proxies of its own.

use std::sync::Arc;

use async_trait::async_trait;
use fencelock_conformance::{Backdoor, Harness, Params, Store};
use fencelock_core::{Locks, Result};
use fencelock_testkit::proxied::{self, cannot};
use fencelock_testkit::proxy::{Front, NetworkFault, framing};
use fencelock_testkit::servers::{ServerError, TestRedis};
use tokio::sync::OnceCell;

use crate::keys::{self, connect};

/// How servers of one kind are started and queried.
#[async_trait]
pub(crate) trait Topology: Sized + Send + Sync + 'static {
    const NAME: &'static str;

    async fn start() -> std::result::Result<Self, ServerError>;

    /// All servers that a client may connect to.
    fn servers(&self) -> Vec<&TestRedis>;

    /// The servers that have keys.
    fn nodes(&self) -> &[TestRedis];

    /// The server that has a key.
    async fn master_of(&self, key: &str) -> std::result::Result<&TestRedis, ServerError>;

    /// A client's URL, with these addresses.
    fn url(&self, front: &Front) -> String;
}

/// `host:port` of each, at which a client reaches it through `front`.
pub(crate) fn hosts(servers: &[TestRedis], front: &Front) -> String {
    let hosts = servers.iter().map(|server| front.addr_of(server.addr()).to_string());
    hosts.collect::<Vec<_>>().join(",")
}

pub(crate) struct FollowedHarness<T> {
    servers: OnceCell<Arc<T>>,
}

impl<T> Default for FollowedHarness<T> {
    fn default() -> Self {
        FollowedHarness { servers: OnceCell::new() }
    }
}

struct Followed<T> {
    servers: Arc<T>,
    front: Front,
    prefix: String,
}

#[async_trait]
impl<T: Topology> Harness for FollowedHarness<T> {
    fn name(&self) -> &str {
        T::NAME
    }

    async fn open(&self, prefix: &str) -> Result<Box<dyn Store>> {
        let start = async || {
            let servers = T::start().await;
            servers.map(Arc::new).map_err(|error| cannot("start the servers", error))
        };
        let servers = self.servers.get_or_try_init(start).await?.clone();
        let addresses = servers.servers().into_iter().map(TestRedis::addr);
        let front = Front::before(addresses.collect::<Vec<_>>(), framing::resp).await;
        let front = front.map_err(|error| cannot("start the proxies", error))?;
        Ok(Box::new(Followed { servers, front, prefix: prefix.to_owned() }))
    }

    async fn connect_peer(&self, address: &str, params: &Params) -> Result<Locks> {
        connect(address, params).await
    }
}

impl<T: Topology> Followed<T> {
    async fn master_of(&self, name: &str) -> Result<&TestRedis> {
        let master = self.servers.master_of(&keys::key(&self.prefix, name)).await;
        master.map_err(|error| cannot("find the master", error))
    }
}

#[async_trait]
impl<T: Topology> Store for Followed<T> {
    async fn connect(&self, params: &Params) -> Result<Locks> {
        connect(&self.peer_address(), params).await
    }

    fn backdoors(&self) -> &[Backdoor] {
        proxied::BACKDOORS
    }

    fn why_not(&self, _: Backdoor) -> String {
        "the servers are shared by all behaviours".to_owned()
    }

    fn connections(&self) -> Option<u64> {
        Some(proxied::connections(self.front.proxies()))
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

    async fn inject_fault(&self, fault: NetworkFault) -> Result<()> {
        proxied::inject_fault(self.front.proxies(), fault).await
    }

    async fn heal(&self) -> Result<()> {
        proxied::heal(self.front.proxies()).await
    }

    fn peer_address(&self) -> String {
        self.servers.url(&self.front)
    }
}
