//! Helpers of the tests: nodes, clients with their own connection to each node, and waiting for
//! events.

use std::time::Duration;

use fencelock_core::{Locks, Result, Settings, Ttl, url};
use fencelock_redis::{REDLOCK_SCHEME, RedlockStore, redlock};
pub(crate) use fencelock_testkit::helpers::*;
use fencelock_testkit::proxy::{Direction, Proxy, framing};
use fencelock_testkit::servers::{RedisOptions, TestRedis};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

/// For tests that do not wait for a restarted node: whatever a node no longer has at their end was
/// released, and did not just expire.
pub(crate) const LONG: &str = "ttl=60s&restart_delay=90s&clock_tolerance=10s&node_timeout=1s";
/// For tests that do. All nodes have one clock; the tolerance is for a machine that stalls while it is
/// read.
pub(crate) const QUICK: &str = "ttl=2s&restart_delay=3s&clock_tolerance=300ms&node_timeout=1s";
pub(crate) const QUICK_TTL: Duration = ms(2000);
pub(crate) const QUICK_DELAY: Duration = ms(3000);

/// Independent servers.
pub(crate) struct TestQuorum {
    pub(crate) nodes: Vec<TestRedis>,
}

impl TestQuorum {
    /// New nodes, which no client has connected to.
    pub(crate) async fn unknown(count: usize) -> TestQuorum {
        TestQuorum::of((0..count).map(|_| RedisOptions::new())).await
    }

    pub(crate) async fn of(options: impl IntoIterator<Item = RedisOptions>) -> TestQuorum {
        let starting = options.into_iter().map(RedisOptions::start);
        let nodes = join_all(starting).await.into_iter();
        TestQuorum { nodes: nodes.map(|node| node.expect("a redis-server starts")).collect() }
    }

    /// Nodes that are declared new, for clients with these URL parameters.
    pub(crate) async fn new(count: usize, params: &str) -> TestQuorum {
        let quorum = TestQuorum::unknown(count).await;
        quorum.declare_new(params).await;
        quorum
    }

    pub(crate) async fn declare_new(&self, params: &str) {
        redlock::init(&self.url(params)).await.expect("nodes without a record are declared new");
    }

    /// The URL of the nodes themselves, without proxies.
    pub(crate) fn url(&self, params: &str) -> String {
        url_of(self.nodes.iter().map(|node| node.port()), params)
    }

    /// A client without proxies.
    pub(crate) async fn direct(&self, params: &str) -> Locks {
        connect(&self.url(params)).await
    }

    /// A client that accepts votes from nodes that lost their data.
    pub(crate) async fn without_restart_delay(
        &self,
        lines: Option<&Lines>,
        ttl: Duration,
    ) -> Locks {
        let ports: Vec<u16> = match lines {
            Some(lines) => lines.proxies.iter().map(|proxy| proxy.addr().port()).collect(),
            None => self.nodes.iter().map(|node| node.port()).collect(),
        };
        let store = RedlockStore::nodes(ports.into_iter().map(|port| ("127.0.0.1", port)));
        let settings = Settings::default().ttl(Ttl::new(ttl).unwrap());
        let store = store.clock_tolerance(ms(300)).without_restart_delay();
        soon("the store connects", store.locks(settings)).await.expect("the store connects")
    }

    /// Proxies to all nodes, for one client or several.
    pub(crate) async fn lines(&self) -> Lines {
        let proxies = self.nodes.iter().map(|node| Proxy::framed(node.addr(), framing::resp));
        let proxies = join_all(proxies).await.into_iter();
        Lines { proxies: proxies.map(|proxy| proxy.expect("a proxy starts")).collect() }
    }

    /// Kills a node and starts it again, empty.
    pub(crate) async fn restart(&self, node: usize) {
        self.nodes[node].kill().expect("killed");
        self.nodes[node].restart().await.expect("it starts again");
    }

    /// Each with its node.
    pub(crate) async fn leftovers(&self) -> Vec<(usize, String)> {
        let mut left = Vec::new();
        for (node, server) in self.nodes.iter().enumerate() {
            let of_node = redis_leftovers(server, "").await.expect("the keys");
            left.extend(of_node.into_iter().map(|key| (node, key)));
        }
        left
    }

    /// Awaits that nothing of any claim is left on any node.
    pub(crate) async fn drained(&self) {
        self.drained_but(&[]).await;
    }

    /// The same, except for these locks.
    pub(crate) async fn drained_but(&self, names: &[&str]) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut left = self.leftovers().await;
            left.retain(|(_, left)| !names.iter().any(|name| key(name) == *left));
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "still there: {left:?}");
            sleep(ms(10)).await;
        }
    }

    /// Changes what users without a login may do at each node.
    pub(crate) async fn rule(&self, rule: &str) {
        for node in &self.nodes {
            redis_command(node, &["ACL", "SETUSER", "default", rule]).await;
        }
    }

    /// The value of the lock's key by node, empty for none.
    pub(crate) async fn values(&self, name: &str) -> Vec<String> {
        join_all(self.nodes.iter().map(async |node| value(node, name).await)).await
    }

    /// Awaits that `name` is held on all nodes except these.
    pub(crate) async fn held_everywhere(&self, name: &str, but: &[usize]) {
        let what = format!("{name} is held on all nodes but {but:?}");
        // A node that was too busy to vote gets it at the first renewal.
        let is_so = async || {
            let values = self.values(name).await;
            values.iter().enumerate().all(|(node, value)| value.is_empty() == but.contains(&node))
        };
        within(Duration::from_secs(45), &what, async {
            while !is_so().await {
                sleep(ms(5)).await;
            }
        })
        .await;
    }

    /// Awaits that a node takes part again.
    pub(crate) async fn open(&self, node: usize) {
        until(&format!("node {node} takes part"), async || {
            record(&self.nodes[node]).await.contains(" open ")
        })
        .await;
    }
}

/// A node's incarnation record.
pub(crate) async fn record(node: &TestRedis) -> String {
    redis_command(node, &["GET", redlock::incarnation::KEY]).await
}

/// A lock's key.
pub(crate) fn key(name: &str) -> String {
    format!("lock:{name}")
}

pub(crate) fn token_key(name: &str) -> String {
    format!("{{lock:{name}}}:f")
}

/// The value of the lock's key, empty for none.
pub(crate) async fn value(node: &TestRedis, name: &str) -> String {
    redis_command(node, &["GET", &key(name)]).await
}

/// The node's clock, in µs.
pub(crate) async fn time_us(node: &TestRedis) -> u64 {
    let time = redis_command(node, &["TIME"]).await;
    let mut words = time.lines().map(|word| word.parse::<u64>().expect("a number"));
    words.next().unwrap() * 1_000_000 + words.next().unwrap()
}

/// One proxy for each node: a fault of one affects only the clients that use it.
pub(crate) struct Lines {
    pub(crate) proxies: Vec<Proxy>,
}

impl Lines {
    pub(crate) fn url(&self, params: &str) -> String {
        url_of(self.proxies.iter().map(|proxy| proxy.addr().port()), params)
    }

    pub(crate) async fn connect(&self, params: &str) -> Locks {
        connect(&self.url(params)).await
    }

    /// Drops everything that is sent to or by these nodes.
    pub(crate) fn lose(&self, nodes: &[usize]) {
        for node in nodes {
            self.proxies[*node].black_hole(Direction::ToServer);
            self.proxies[*node].black_hole(Direction::ToClient);
        }
    }

    pub(crate) async fn heal(&self) {
        for proxy in &self.proxies {
            proxy.heal().await.expect("healed");
        }
    }
}

pub(crate) fn url_of(ports: impl Iterator<Item = u16>, params: &str) -> String {
    let hosts: Vec<String> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redlock://{}/0?{params}", hosts.join(","))
}

/// Connects like a user's program.
pub(crate) async fn try_connect(url: &str) -> Result<Locks> {
    soon("connecting ends", url::connect(&[REDLOCK_SCHEME], url)).await
}

pub(crate) async fn connect(url: &str) -> Locks {
    connect_retrying(|| try_connect(url)).await
}
