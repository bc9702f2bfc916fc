//! Removes what a tool's run left in the servers: the nodes of all locks under its scratch names.

use std::sync::Arc;

use fencelock_core::{Result, Scratch};
use futures_util::StreamExt;
use futures_util::stream;

use crate::error::ZkResult;
use crate::path::{self, below};
use crate::pool::Pool;
use crate::session::Session;

/// So many locks are removed at a time.
const CONCURRENCY: usize = 32;

/// Removes them until there are none, and then the root, if this client made it and it is empty.
pub(crate) async fn clear(pool: &Arc<Pool>, scratch: &Scratch) -> Result<()> {
    let session = pool.session().await?;
    let root = &*pool.access.root;
    // No name that is encoded begins otherwise than its prefix does.
    let beginning = path::of_lock(root, scratch.prefix())?;
    while clear_once(&session, root, &beginning).await? > 0 {}
    pool.access.remove_root(&session).await?;
    Ok(())
}

/// Removes those that are there; how many there were.
async fn clear_once(session: &Arc<Session>, root: &str, beginning: &str) -> ZkResult<usize> {
    let client = session.client()?;
    // What was made last, by way of another server, is to be seen here.
    session.read(client.sync(root)).await?;
    let names = session.read(client.list_children(root)).await?;
    let parent = root.trim_end_matches('/');
    let locks = names.iter().map(|name| below(parent, name));
    let locks: Vec<String> = locks.filter(|lock| lock.starts_with(beginning)).collect();
    let found = locks.len();
    let removing = stream::iter(locks).map(async |lock: String| remove(session, &lock).await);
    let removed: Vec<ZkResult<()>> = removing.buffer_unordered(CONCURRENCY).collect().await;
    removed.into_iter().collect::<ZkResult<()>>()?;
    Ok(found)
}

/// Removes a lock's node with all claims below it.
async fn remove(session: &Arc<Session>, lock: &str) -> ZkResult<()> {
    let client = session.client()?;
    let claims = match session.read(client.list_children(lock)).await {
        Err(error) if error.is_no_node() => return Ok(()),
        claims => claims?,
    };
    for claim in claims {
        ignore_absent(session.delete(&below(lock, &claim)).await)?;
    }
    ignore_absent(session.delete(lock).await)
}

/// The servers remove nodes by themselves, too; and a late claim is for the next pass.
fn ignore_absent(deleted: ZkResult<()>) -> ZkResult<()> {
    match deleted {
        Err(error) if error.is_no_node() || error.is_not_empty() => Ok(()),
        deleted => deleted,
    }
}
