use fencelock_testkit::servers::TestZooKeeper;

use super::{leaves_nothing, run};

/// How many nodes there are in the whole tree.
async fn nodes(servers: &TestZooKeeper) -> usize {
    let said = servers.servers()[0].four_letter("srvr").await.expect("it answers");
    let count = said.lines().find_map(|line| line.strip_prefix("Node count: "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or_else(|| panic!("{said}"))
}

#[tokio::test]
async fn the_tree_of_zookeeper_is_as_before_with_the_root_or_without() {
    let servers = TestZooKeeper::standalone().await.expect("a ZooKeeper server starts");
    let url = format!("zk://{}", servers.connect_string());
    // The root of others, and a lock of theirs, which is held.
    let others = fencelock::connect(&format!("{url}/app")).await.expect("connected");
    let held = others.lock("orders").acquire().await.expect("granted");
    let before = nodes(&servers).await;
    for root in ["/app", "/new/root", ""] {
        let (code, said) = run(&format!("{url}{root}"), &["--filter", "names::"]).await;
        assert_eq!(code, 0, "{said}");
        assert_eq!(nodes(&servers).await, before, "under {root:?}: {said}");
    }
    assert!(held.is_held());
    held.release().await.expect("it was still held");
    others.close().await.expect("closed");
}

#[tokio::test]
async fn an_interrupted_run_leaves_nothing_in_zookeeper() {
    let servers = TestZooKeeper::standalone().await.expect("a ZooKeeper server starts");
    let url = format!("zk://{}/locks", servers.connect_string());
    leaves_nothing(&url, async || nodes(&servers).await, |nodes| *nodes > 60).await;
}
