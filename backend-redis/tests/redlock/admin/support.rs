//! Sets of servers, and their incarnation records.

use fencelock_redis::redlock::incarnation::KEY;
use fencelock_testkit::servers::TestRedis;

pub(crate) use crate::support::try_connect as connect;
use crate::support::{TestQuorum, record, url_of};

/// A short delay, and a TTL nearly as long as it covers.
pub(crate) const SHORT: &str = "restart_delay=3s&clock_tolerance=1s&ttl=900ms&node_timeout=1s";

/// Servers, some of which are a set.
pub(crate) struct Nodes(TestQuorum);

impl Nodes {
    pub(crate) async fn start(count: usize) -> Nodes {
        Nodes(TestQuorum::unknown(count).await)
    }

    pub(crate) fn node(&self, node: usize) -> &TestRedis {
        &self.0.nodes[node]
    }

    /// The set of these nodes.
    pub(crate) fn url(&self, nodes: &[usize], params: &str) -> String {
        url_of(nodes.iter().map(|node| self.node(*node).port()), params)
    }

    /// The record's text, empty without one.
    pub(crate) async fn record(&self, node: usize) -> String {
        record(self.node(node)).await
    }

    pub(crate) async fn records(&self) -> Vec<String> {
        let mut records = Vec::new();
        for node in 0..self.0.nodes.len() {
            records.push(self.record(node).await);
        }
        records
    }

    pub(crate) async fn set_record(&self, node: usize, text: &str) {
        self.node(node).command(&["SET", KEY, text]).await.unwrap();
    }

    /// Writes a record of the node's current run that is `age` seconds old.
    pub(crate) async fn mark(&self, node: usize, state: &str, age: u64, set: &str) {
        let info = self.node(node).command(&["INFO", "server"]).await.unwrap();
        let run_id = info.lines().find_map(|line| line.trim_end().strip_prefix("run_id:"));
        let time = self.node(node).command(&["TIME"]).await.unwrap();
        let seconds: u64 = time.lines().next().unwrap().parse().unwrap();
        let born = (seconds - age) * 1_000_000;
        self.set_record(node, &format!("{} {state} {born} {set}", run_id.unwrap())).await;
    }
}

/// A field of a record: 1 is its state, 2 its birth, 4 its epoch.
pub(crate) fn word(record: &str, index: usize) -> &str {
    record.split(' ').nth(index).unwrap_or_default()
}
