use fencelock_testkit::servers::TestRedis;
use futures_util::future::join_all;
use rustix::process::Signal;

use super::{interrupt, run};
use crate::support;

/// Three nodes, declared new.
async fn quorum() -> (Vec<TestRedis>, String) {
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(TestRedis::start().await.expect("a redis-server starts"));
    }
    let hosts: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
    let url = format!("redlock://{}", hosts.join(","));
    fencelock::redlock::init(&url).await.expect("the nodes are declared new");
    (nodes, url)
}

/// The keys of each node.
async fn keys(nodes: &[TestRedis]) -> Vec<Vec<String>> {
    join_all(nodes.iter().map(support::keys)).await
}

#[tokio::test]
async fn every_node_of_a_quorum_keeps_its_marker_and_nothing_else() {
    let (nodes, url) = quorum().await;
    let before = keys(&nodes).await;
    assert!(before.iter().all(|keys| *keys == ["fencelock:redlock"]), "{before:?}");
    let (code, said) = run(&url, &["--filter", "names::"]).await;
    assert_eq!(code, 0, "{said}");
    assert_eq!(keys(&nodes).await, before, "{said}");
}

#[tokio::test]
async fn an_interrupted_run_leaves_nothing_on_a_quorum() {
    let (nodes, url) = quorum().await;
    let before = keys(&nodes).await;
    let is_in_use = async || keys(&nodes).await.iter().all(|keys| keys.len() > 50);
    let said = interrupt(&url, Signal::INT, is_in_use).await;
    assert_eq!(keys(&nodes).await, before, "{said}");
}
