//! What the tests share: servers behind a proxy, clients, a look from behind, and waiting for
//! events.
//!
//! Bounds are generous: they tell late on a busy machine from never, and are no promises.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

pub(crate) use fencelock_conformance::acts::*;
use fencelock_conformance::proxy::{Proxy, framing};
use fencelock_conformance::servers::TestZooKeeper;
use fencelock_core::{Locks, Result, url};
use fencelock_zk::SCHEME;
use fencelock_zk::zookeeper_client::{Acls, Client, CreateMode, Error as ZkError, Stat};
use tokio::sync::Mutex;

/// The session timeout of clients that do not ask for their own.
pub(crate) const T: Duration = Duration::from_secs(2);
/// By how much a busy machine may make a timer late.
pub(crate) const SLACK: Duration = Duration::from_millis(400);

/// One server for all tests that run at the same time: it ends with the last of them.
async fn shared_server() -> Arc<TestZooKeeper> {
    static SERVER: Mutex<Weak<TestZooKeeper>> = Mutex::const_new(Weak::new());
    let mut shared = SERVER.lock().await;
    match shared.upgrade() {
        Some(server) => server,
        None => {
            let server = Arc::new(TestZooKeeper::standalone().await.expect("ZooKeeper starts"));
            *shared = Arc::downgrade(&server);
            server
        }
    }
}

/// Servers, a path to them that can be broken, and one that cannot.
pub(crate) struct Rig {
    pub(crate) servers: Arc<TestZooKeeper>,
    pub(crate) proxy: Proxy,
    /// The transport alone, past the proxy.
    pub(crate) client: Client,
    pub(crate) root: String,
}

impl Rig {
    /// On the server that others use too, under a root of its own.
    pub(crate) async fn start() -> Rig {
        Rig::on(shared_server().await, 0).await
    }

    /// On these servers; the proxy leads to one of them.
    pub(crate) async fn on(servers: Arc<TestZooKeeper>, server: usize) -> Rig {
        static ROOTS: AtomicUsize = AtomicUsize::new(0);
        let root = format!("/faults/{}", ROOTS.fetch_add(1, Ordering::Relaxed));
        let upstream = servers.servers()[server].connect_string();
        let proxy = Proxy::framed(upstream, framing::zookeeper).await.expect("a proxy starts");
        let client = Client::connect(&servers.connect_string()).await.expect("a connection");
        // Not by whoever comes first, with a login.
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        match client.create("/faults", b"", &options).await {
            Ok(_) | Err(ZkError::NodeExists) => {}
            Err(error) => panic!("no root: {error}"),
        }
        Rig { servers, proxy, client, root }
    }

    pub(crate) fn url(&self, host: &str, params: &str) -> String {
        format!("zk://{host}{}?prefix=&session=2s&{params}", self.root)
    }

    /// A client behind the proxy.
    pub(crate) async fn behind(&self) -> Locks {
        connect(&self.url(&self.proxy.addr().to_string(), "")).await
    }

    /// A client that the proxy's faults do not reach.
    pub(crate) async fn direct(&self) -> Locks {
        connect(&self.url(&self.servers.connect_string(), "")).await
    }

    /// The paths of the nodes of a lock, in the order of their numbers, seen from behind.
    pub(crate) async fn nodes(&self, lock: &str) -> Vec<String> {
        let path = format!("{}/{lock}", self.root);
        self.client.sync("/").await.expect("in step");
        let mut names = match self.client.list_children(&path).await {
            Err(ZkError::NoNode) => Vec::new(),
            names => names.expect("a list"),
        };
        names.sort_by_key(|name| name[name.len() - 10..].to_owned());
        names.into_iter().map(|name| format!("{path}/{name}")).collect()
    }

    pub(crate) async fn stat(&self, path: &str) -> Option<Stat> {
        self.client.check_stat(path).await.expect("an answer")
    }

    /// The lines of `wchp` below the root: watched paths.
    pub(crate) async fn watches(&self) -> Vec<String> {
        let mut all = Vec::new();
        for server in self.servers.servers() {
            let watches = server.four_letter("wchp").await.unwrap_or_default();
            let below = format!("{}/", self.root);
            all.extend(watches.lines().filter(|line| line.contains(&below)).map(str::to_owned));
        }
        all
    }

    /// Awaits that nothing is left of any lock in `locks`.
    pub(crate) async fn drained(&self, locks: &[&str]) {
        until("no node and no watch is left", async || {
            for lock in locks {
                if !self.nodes(lock).await.is_empty() {
                    return false;
                }
            }
            self.watches().await.is_empty()
        })
        .await;
    }

    /// Awaits that so many nodes are in the queue of a lock, its holder included.
    pub(crate) async fn queued(&self, lock: &str, count: usize) {
        let what = format!("{count} nodes for {lock}");
        until(&what, async || self.nodes(lock).await.len() == count).await;
    }
}

/// As a user's program connects.
pub(crate) async fn try_connect(url: &str) -> Result<Locks> {
    url::connect(&[SCHEME], url).await
}

pub(crate) async fn connect(url: &str) -> Locks {
    try_connect(url).await.expect("the store connects")
}

/// A request's operation, as the protocol numbers them.
#[derive(Clone, Copy)]
pub(crate) enum Op {
    Delete = 2,
    Multi = 14,
    Create = 15,
}

/// Whether the bytes of a request are of this operation.
pub(crate) fn is(op: Op) -> impl Fn(&[u8]) -> bool + Send + 'static {
    move |bytes| bytes.get(8..12) == Some(&(op as i32).to_be_bytes()[..])
}
