use fencelock_testkit::servers::TestRedis;
use futures_util::future::join_all;

use super::run;
use crate::support;

/// The keys of each node.
async fn keys(nodes: &[TestRedis]) -> Vec<Vec<String>> {
    join_all(nodes.iter().map(support::keys)).await
}

#[tokio::test]
async fn every_node_of_a_quorum_keeps_its_marker_and_nothing_else() {
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(TestRedis::start().await.expect("a redis-server starts"));
    }
    let hosts: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
    let url = format!("redlock://{}", hosts.join(","));
    fencelock::redlock::init(&url).await.expect("the nodes are declared new");
    let before = keys(&nodes).await;
    assert!(before.iter().all(|keys| *keys == ["fencelock:redlock"]), "{before:?}");
    let (code, said) = run(&url, &["--filter", "names::"]).await;
    assert_eq!(code, 0, "{said}");
    assert_eq!(keys(&nodes).await, before, "{said}");
}
