//! Servers shared by all behaviours. Each behaviour has its own path to them, through proxies that
//! break connections.

use std::sync::Arc;

use async_trait::async_trait;
use fencelock_conformance::{Backdoor, Harness, Params, Store};
use fencelock_core::{Locks, Result, url};
use fencelock_testkit::proxied::{self, cannot};
use fencelock_testkit::proxy::{NetworkFault, Proxy, framing};
use fencelock_testkit::servers::{TestZooKeeper, ZooKeeperOptions};
use fencelock_zk::SCHEME;
use fencelock_zk::zookeeper_client::Client;
use tokio::sync::OnceCell;

use crate::look::{self, ROOT};

const LOGIN: &str = "digest:suite:correct-horse-battery";

pub(crate) struct Servers {
    name: &'static str,
    count: usize,
    servers: OnceCell<Arc<TestZooKeeper>>,
}

impl Servers {
    pub(crate) fn new(name: &'static str, count: usize) -> Servers {
        Servers { name, count, servers: OnceCell::new() }
    }
}

struct Namespace {
    servers: Arc<TestZooKeeper>,
    proxies: Vec<Proxy>,
    client: Client,
    prefix: String,
}

/// Connects as a user's program does.
async fn connect(address: &str, params: &Params) -> Result<Locks> {
    url::connect(&[SCHEME], &params.on_url(address)).await
}

#[async_trait]
impl Harness for Servers {
    fn name(&self) -> &str {
        self.name
    }

    async fn open(&self, prefix: &str) -> Result<Box<dyn Store>> {
        let start = async || {
            let servers = ZooKeeperOptions::new().ensemble(self.count).await;
            servers.map(Arc::new).map_err(|error| cannot("start ZooKeeper", error))
        };
        let servers = self.servers.get_or_try_init(start).await?.clone();
        let mut proxies = Vec::new();
        for server in servers.servers() {
            let proxy = Proxy::framed(server.connect_string(), framing::zookeeper).await;
            proxies.push(proxy.map_err(|error| cannot("start a proxy", error))?);
        }
        let (scheme, secret) = LOGIN.split_once(':').expect("a scheme");
        let client = Client::connector().with_auth(scheme, secret.as_bytes());
        let client = client.connect(&servers.connect_string()).await;
        let client = client.map_err(|error| cannot("connect", error))?;
        Ok(Box::new(Namespace { servers, proxies, client, prefix: prefix.to_owned() }))
    }

    async fn connect_peer(&self, address: &str, params: &Params) -> Result<Locks> {
        connect(address, params).await
    }
}

#[async_trait]
impl Store for Namespace {
    async fn connect(&self, params: &Params) -> Result<Locks> {
        connect(&self.peer_address(), params).await
    }

    fn backdoors(&self) -> &[Backdoor] {
        proxied::BACKDOORS
    }

    fn why_not(&self, _: Backdoor) -> String {
        "the servers are shared by all behaviours".to_owned()
    }

    fn secrets(&self) -> Vec<String> {
        vec!["correct-horse-battery".to_owned()]
    }

    fn connections(&self) -> Option<u64> {
        Some(proxied::connections(&self.proxies))
    }

    async fn leftovers(&self) -> Result<Vec<String>> {
        look::leftovers(&self.client, &self.servers, &self.prefix).await
    }

    async fn is_locked(&self, name: &str) -> Result<bool> {
        Ok(!look::nodes(&self.client, &self.prefix, name).await?.is_empty())
    }

    async fn expire(&self, name: &str) -> Result<()> {
        look::expire(&self.client, &self.prefix, name).await
    }

    async fn inject_fault(&self, fault: NetworkFault) -> Result<()> {
        proxied::inject_fault(&self.proxies, fault).await
    }

    async fn heal(&self) -> Result<()> {
        proxied::heal(&self.proxies).await
    }

    fn peer_address(&self) -> String {
        let hosts: Vec<_> = self.proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
        format!("zk://{}{ROOT}?session=4s&auth={LOGIN}", hosts.join(","))
    }
}
