//! The node by which a lock is held, for users who write to the same servers under it.

use fencelock_core::{Error, ErrorKind, Guard, Result};
use zookeeper_client::{Client, Error as ZkError};

use crate::error::explained;
use crate::nodes::token;
use crate::queue::names;
use crate::queue::path::below;

/// The path of the node of `guard`, found by its token: the transaction that created it.
pub(crate) async fn held_node(client: &Client, lock: &str, guard: &Guard) -> Result<String> {
    let czxid = token::transaction_of(guard.fencing_token());
    let lost = || Error::new(ErrorKind::Lost, "the node by which the lock was held is gone");
    if !guard.is_held() {
        return Err(lost());
    }
    // The client's server may be behind the one that created the node.
    client.sync(lock).await.map_err(explained)?;
    let children = match client.list_children(lock).await {
        Err(ZkError::NoNode) => return Err(lost()),
        children => children.map_err(explained)?,
    };
    for name in children.iter().filter(|name| names::read(name).is_some()) {
        let path = below(lock, name);
        let stat = client.check_stat(&path).await.map_err(explained)?;
        if stat.is_some_and(|stat| stat.czxid == czxid) {
            return Ok(path);
        }
    }
    Err(lost())
}
