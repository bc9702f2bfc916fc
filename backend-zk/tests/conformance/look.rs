//! What is on the servers, read without the library under test.

use fencelock_core::Result;
use fencelock_testkit::proxied::cannot;
use fencelock_testkit::servers::TestZooKeeper;
use fencelock_zk::zookeeper_client::{Client, Error as ZkError};

/// The path below which all locks of the suite are.
pub(crate) const ROOT: &str = "/suite/locks";

/// The node's name for a lock's prefix and name.
fn encode(key: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
    let write = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    key.bytes().map(write).collect()
}

async fn children(client: &Client, path: &str) -> Result<Vec<String>> {
    // The server of this client may be behind.
    client.sync("/").await.map_err(|error| cannot("catch up", error))?;
    match client.list_children(path).await {
        Err(ZkError::NoNode) => Ok(Vec::new()),
        children => children.map_err(|error| cannot("list nodes", error)),
    }
}

/// Nodes of claims and of cells, and watches on them. A lock's own node stays until the servers remove
/// it.
pub(crate) async fn leftovers(
    client: &Client,
    servers: &TestZooKeeper,
    prefix: &str,
) -> Result<Vec<String>> {
    let prefix = encode(prefix);
    let mut all = Vec::new();
    for lock in children(client, ROOT).await?.iter().filter(|lock| lock.starts_with(&prefix)) {
        let lock = format!("{ROOT}/{lock}");
        all.extend(children(client, &lock).await?.iter().map(|node| format!("{lock}/{node}")));
    }
    for server in servers.servers() {
        let watches = server.four_letter("wchp").await;
        let watches = watches.map_err(|error| cannot("ask for watches", error))?;
        let ours = watches.lines().filter(|line| line.contains(&prefix));
        all.extend(ours.map(|line| format!("a watch on {line}")));
    }
    Ok(all)
}

pub(crate) async fn nodes(client: &Client, prefix: &str, name: &str) -> Result<Vec<String>> {
    let lock = format!("{ROOT}/{}", encode(&format!("{prefix}{name}")));
    let mut nodes = children(client, &lock).await?;
    nodes.sort_by_key(|node| node[node.len() - 10..].to_owned());
    Ok(nodes.into_iter().map(|node| format!("{lock}/{node}")).collect())
}

/// Deletes the first node, and those that hold together with it.
pub(crate) async fn expire(client: &Client, prefix: &str, name: &str) -> Result<()> {
    let nodes = nodes(client, prefix, name).await?;
    let kind =
        |node: &String| ["__READ__", "permits-"].into_iter().find(|kind| node.contains(kind));
    let first = nodes.first().and_then(kind);
    let count = match first {
        Some(_) => nodes.iter().take_while(|node| kind(node) == first).count(),
        None => nodes.len().min(1),
    };
    for node in &nodes[..count] {
        client.delete(node, None).await.map_err(|error| cannot("delete a node", error))?;
    }
    Ok(())
}
