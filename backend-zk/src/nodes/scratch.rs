//! Removes what a tool's run left on the servers: the nodes of all locks and cells under its scratch
//! names.

use std::sync::Arc;

use fencelock_core::{Result, Scratch};
use futures_util::StreamExt;
use futures_util::stream;

use crate::connection::access::Access;
use crate::error::{RequestError, ZkResult};
use crate::queue::path::{self, below};
use crate::sessions::batch;
use crate::sessions::pool::Pool;
use crate::sessions::session::Session;

/// How many locks are removed at the same time.
const CONCURRENCY: usize = 32;

/// Removes them until none is left, and then the root, if this client created it and it is empty.
pub(crate) async fn clear(pool: &Arc<Pool>, scratch: &Scratch) -> Result<()> {
    let session = pool.session().await?;
    let root = &*pool.access.root;
    // The encoding of a name begins with that of its prefix; and the node of a cell, with its name.
    let beginning = path::of_lock(root, scratch.prefix())?;
    while clear_once(&session, root, &beginning).await.map_err(RequestError::into_error)? > 0 {}
    remove_root(&pool.access, &session).await.map_err(RequestError::into_error)?;
    Ok(())
}

/// Removes the locks and cells that exist now, and returns their number.
async fn clear_once(session: &Arc<Session>, root: &str, beginning: &str) -> ZkResult<usize> {
    let client = session.client()?;
    // What another server has created just now must be listed here.
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

/// Removes a lock's node with the nodes of all claims below it, or the two of a cell.
async fn remove(session: &Arc<Session>, lock: &str) -> ZkResult<()> {
    let client = session.client()?;
    let claims = match session.read(client.list_children(lock)).await {
        Err(error) if error.is_no_node() => return Ok(()),
        claims => claims?,
    };
    for claim in claims {
        batch::delete(session, &below(lock, &claim)).await?;
    }
    // The next pass removes a lock with a new claim.
    batch::delete_if_empty(session, lock).await.map(drop)
}

/// Removes the root and the nodes above it that this client created, unless other nodes are below
/// them.
async fn remove_root(access: &Access, session: &Arc<Session>) -> ZkResult<()> {
    let created = std::mem::take(&mut *access.created.lock());
    for path in created.iter().rev() {
        if let Err(error) = batch::delete_if_empty(session, path).await {
            *access.created.lock() = created;
            return Err(error);
        }
    }
    Ok(())
}
