//! Sets of servers, and their incarnation records.

use fencelock_core::{Locks, Result, url};
use fencelock_redis::REDLOCK_SCHEME;
use fencelock_redis::redlock::incarnation::KEY;
use fencelock_testkit::servers::{RedisOptions, TestRedis};

/// A short delay, and a TTL nearly as long as it covers.
pub(crate) const SHORT: &str = "restart_delay=3s&clock_tolerance=1s&ttl=900ms";

pub(crate) async fn connect(url: &str) -> Result<Locks> {
    url::connect(&[REDLOCK_SCHEME], url).await
}

/// Servers, some of which are a set.
pub(crate) struct Nodes(Vec<TestRedis>);

impl Nodes {
    pub(crate) async fn start(count: usize) -> Nodes {
        let starting = (0..count).map(|_| RedisOptions::new().start());
        let servers = futures_util::future::join_all(starting).await;
        Nodes(servers.into_iter().map(|server| server.expect("a redis-server starts")).collect())
    }

    pub(crate) fn node(&self, node: usize) -> &TestRedis {
        &self.0[node]
    }

    /// The set of these nodes.
    pub(crate) fn url(&self, nodes: &[usize], params: &str) -> String {
        let hosts: Vec<String> =
            nodes.iter().map(|node| self.0[*node].addr().to_string()).collect();
        format!("redlock://{}?{params}", hosts.join(","))
    }

    /// The record's text, empty without one.
    pub(crate) async fn record(&self, node: usize) -> String {
        self.0[node].command(&["GET", KEY]).await.unwrap()
    }

    pub(crate) async fn records(&self) -> Vec<String> {
        let mut records = Vec::new();
        for node in 0..self.0.len() {
            records.push(self.record(node).await);
        }
        records
    }

    pub(crate) async fn set_record(&self, node: usize, text: &str) {
        self.0[node].command(&["SET", KEY, text]).await.unwrap();
    }

    /// Writes a record of the node's current run that is `age` seconds old.
    pub(crate) async fn mark(&self, node: usize, state: &str, age: u64, set: &str) {
        let info = self.0[node].command(&["INFO", "server"]).await.unwrap();
        let run_id = info.lines().find_map(|line| line.trim_end().strip_prefix("run_id:"));
        let time = self.0[node].command(&["TIME"]).await.unwrap();
        let seconds: u64 = time.lines().next().unwrap().parse().unwrap();
        let born = (seconds - age) * 1_000_000;
        self.set_record(node, &format!("{} {state} {born} {set}", run_id.unwrap())).await;
    }
}

/// A field of a record: 1 is its state, 2 its birth, 4 its epoch.
pub(crate) fn word(record: &str, index: usize) -> &str {
    record.split(' ').nth(index).unwrap_or_default()
}
