//! The nodes of a cell: one whose data is the stamp and the content, and below it an empty one that
//! is named by the stamp.
//!
//! Each write replaces the lower node and sets the data in one transaction, so a write from a stamp
//! that is not there any more is refused as a whole. The version of the upper node would not do: it
//! starts again when a cell is removed and written anew. Both nodes exist as long as the cell does.

use fencelock_core::{Content, Stamp};
use futures_util::future::join;
use zookeeper_client::{
    CreateMode, Error as ZkError, MultiWriter, OneshotWatcher, SessionState, StateWatcher,
};

use crate::connection::access::Access;
use crate::error::{RequestError, ZkResult};
use crate::queue::path::{self, below};
use crate::sessions::session::Session;

/// How often a cell that is removed and written again meanwhile is looked at.
const MAX_LOOKS: usize = 5;

/// What is in the cell at `path`, including all writes that any client has an answer to.
pub(crate) async fn read(session: &Session, path: &str) -> ZkResult<Option<Content>> {
    let client = session.client()?;
    let sync = session.read(client.sync(path));
    let (synced, there) = join(sync, session.read(client.get_data(path))).await;
    synced?;
    match there {
        Ok((data, stat)) => {
            session.require_own(path, Some(&stat)).await?;
            decode(path, &data).map(Some)
        }
        Err(error) if error.is_no_node() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The names of the cells under the root that begin with `prefix`.
pub(crate) async fn list(session: &Session, root: &str, prefix: &str) -> ZkResult<Vec<String>> {
    let client = session.client()?;
    let sync = session.read(client.sync(root));
    let (synced, nodes) = join(sync, session.read(client.list_children(root))).await;
    let nodes = match synced.and(nodes) {
        Err(error) if error.is_no_node() => return Ok(Vec::new()),
        nodes => nodes?,
    };
    let keys = nodes.iter().filter_map(|node| path::cell_of(node));
    Ok(keys.filter(|key| key.starts_with(prefix)).collect())
}

/// What is in the cell, and a watch that began with the reading.
pub(crate) async fn read_and_watch(
    session: &Session,
    path: &str,
) -> ZkResult<(Option<Content>, OneshotWatcher)> {
    let client = session.client()?;
    for _ in 0..MAX_LOOKS {
        let sync = session.read(client.sync(path));
        let (synced, there) = join(sync, session.read(client.get_and_watch_data(path))).await;
        synced?;
        match there {
            Ok((data, stat, watcher)) => {
                session.require_own(path, Some(&stat)).await?;
                return Ok((Some(decode(path, &data)?), watcher));
            }
            Err(error) if error.is_no_node() => {}
            Err(error) => return Err(error),
        }
        // Of a node that does not exist only this request watches the creation.
        if let (None, watcher) = session.read(client.check_and_watch_stat(path)).await? {
            return Ok((None, watcher));
        }
    }
    Err(ZkError::NodeExists.into())
}

/// Completes when the watch reports a change, and when one may have been missed: the session has been
/// connected again, or is over. `states` must be older than the watch.
pub(crate) async fn until_changed(watcher: OneshotWatcher, mut states: StateWatcher) {
    let interrupted = async {
        // Nothing can be read before the connection is back.
        while states.changed().await == SessionState::Disconnected {}
    };
    tokio::select! {
        _ = watcher.changed() => {}
        () = interrupted => {}
    }
}

/// Writes `to` into the cell, or removes it, if its stamp is `from`. `true` also when `to` is there
/// already.
///
/// Not sent as a write that extends the session's validity: one that is refused would stay pending,
/// and a session with such a write is given up when its connection breaks.
pub(crate) async fn swap(
    session: &Session,
    access: &Access,
    path: &str,
    from: Option<Stamp>,
    to: Option<&Content>,
) -> ZkResult<bool> {
    if from.is_none() && to.is_none() {
        return Ok(read(session, path).await?.is_none());
    }
    let client = session.client()?;
    let write = async || {
        let mut writer = client.new_multi_writer();
        add_operations(&mut writer, access, path, from, to)?;
        session.read(writer.commit()).await
    };
    let mut written = write().await;
    if from.is_none() && written.as_ref().is_err_and(RequestError::is_no_node) {
        // The root was removed.
        session.read(access.create_root(&client)).await?;
        written = write().await;
    }
    match written {
        Ok(_) => return Ok(true),
        Err(error) if error.is_no_node() || error.is_node_exists() => {}
        Err(error) => return Err(error),
    }
    match read(session, path).await?.map(|content| content.stamp) {
        Some(stamp) if to.is_some_and(|to| to.stamp == stamp) => Ok(true),
        // Refused although nothing has changed: the lower node is missing, and would be for ever.
        there @ Some(_) if there == from => Err(not_a_cell(path)),
        _ => Ok(false),
    }
}

fn add_operations(
    writer: &mut MultiWriter<'_>,
    access: &Access,
    path: &str,
    from: Option<Stamp>,
    to: Option<&Content>,
) -> Result<(), ZkError> {
    let options = CreateMode::Persistent.with_acls(access.acls());
    let child = |stamp: Stamp| below(path, &stamp.to_string());
    // First, so that it is what a refusal is about.
    match from {
        Some(from) => writer.add_delete(&child(from), None)?,
        None => writer.add_create(path, &to.map(encode).unwrap_or_default(), &options)?,
    }
    match (from, to) {
        (_, None) => writer.add_delete(path, None),
        (None, Some(to)) => writer.add_create(&child(to.stamp), b"", &options),
        (Some(_), Some(to)) => {
            writer.add_create(&child(to.stamp), b"", &options)?;
            writer.add_set_data(path, &encode(to), None)
        }
    }
}

fn encode(content: &Content) -> Vec<u8> {
    [content.stamp.as_bytes(), &content.bytes[..]].concat()
}

fn decode(path: &str, data: &[u8]) -> ZkResult<Content> {
    let (stamp, bytes) = data.split_first_chunk().ok_or_else(|| not_a_cell(path))?;
    Ok(Content { stamp: Stamp::from_bytes(*stamp), bytes: bytes.to_vec() })
}

fn not_a_cell(path: &str) -> RequestError {
    RequestError::NotACell { path: path.to_owned() }
}
