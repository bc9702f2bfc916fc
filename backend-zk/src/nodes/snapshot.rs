//! The holders and waiters of a lock, for `inspect` and `evict`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fencelock_core::{Label, Mode, Participant, ParticipantId, ReleaseOutcome, Snapshot};
use futures_util::future::join_all;

use crate::error::ZkResult;
use crate::nodes::{node, token};
use crate::queue::order::Listing;
use crate::queue::path::below;
use crate::sessions::batch;
use crate::sessions::session::Session;

/// The most holders and waiters that are shown: together as many as on Redis, which shows 1000 of each.
const MAX_SHOWN: usize = 2000;

/// A node in the queue of a lock, and the holder or waiter whose it is.
pub(crate) struct QueuedNode {
    path: String,
    is_granted: bool,
    participant: Participant,
}

impl QueuedNode {
    /// A node by its label and its `Stat`, whose `ctime` is in ms since 1970 by the servers' clock;
    /// another program may have created it.
    pub(crate) fn new(
        path: String,
        mode: Mode,
        is_granted: bool,
        label: &[u8],
        czxid: i64,
        ctime: i64,
    ) -> QueuedNode {
        // No two nodes ever have the same czxid.
        let id = ParticipantId::new(format!("{czxid:x}"));
        let label = Label::new(&String::from_utf8_lossy(label));
        let participant = Participant::new(id, mode).labelled(label);
        let participant = match (is_granted, token::first_of(czxid)) {
            // When it was granted is unknown, and may be long after its creation.
            (true, Ok(token)) => participant.token(token),
            (true, Err(_)) => participant,
            (false, _) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let created = Duration::from_millis(u64::try_from(ctime).unwrap_or_default());
                participant.since(now.saturating_sub(created))
            }
        };
        QueuedNode { path, is_granted, participant }
    }
}

/// Reads the queue of `lock`.
pub(crate) async fn read(session: &Arc<Session>, lock: &str) -> ZkResult<Vec<QueuedNode>> {
    let listing = list(session, lock).await?;
    let mut joins = true;
    read_nodes(session, lock, listing.in_order().take(MAX_SHOWN).collect(), &mut joins).await
}

/// Reads those of its nodes that hold.
pub(crate) async fn read_holders(session: &Arc<Session>, lock: &str) -> ZkResult<Vec<QueuedNode>> {
    let listing = list(session, lock).await?;
    let (held, queued): (Vec<_>, Vec<_>) =
        listing.in_order().take(MAX_SHOWN).partition(|(_, _, is_granted)| *is_granted);
    let mut joins = true;
    let mut nodes = read_nodes(session, lock, held, &mut joins).await?;
    if joins {
        let next = queued.into_iter().take_while(|(_, mode, _)| *mode == Mode::Shared).collect();
        nodes.extend(read_nodes(session, lock, next, &mut joins).await?);
    }
    Ok(nodes)
}

async fn list(session: &Arc<Session>, lock: &str) -> ZkResult<Arc<Listing>> {
    // A lock that was released just before, at another server, must not be shown as held.
    session.read(session.client()?.sync(lock)).await?;
    let listing = node::list(session, lock).await?;
    if !listing.names().is_empty() {
        // Also a leader's words are read of it.
        session.require_own(lock, None).await?;
    }
    Ok(listing)
}

/// `joins`: all nodes before these are readers, also as a writer that has become one: then the readers that come next
/// hold the lock too.
async fn read_nodes(
    session: &Arc<Session>,
    lock: &str,
    nodes: Vec<(&str, Mode, bool)>,
    joins: &mut bool,
) -> ZkResult<Vec<QueuedNode>> {
    let client = session.client()?;
    let reads = nodes.into_iter().map(async |(name, mode, is_granted)| {
        let path = below(lock, name);
        match session.read(client.get_data(&path)).await {
            Ok((data, stat)) => Ok(Some((path, mode, is_granted, data, stat))),
            Err(error) if error.is_no_node() => Ok(None),
            Err(error) => Err(error),
        }
    });
    let nodes: ZkResult<Vec<_>> = join_all(reads).await.into_iter().collect();
    let nodes = nodes?.into_iter().flatten().map(|(path, mode, is_granted, data, stat)| {
        let (label, is_shared) = node::read_data(&data);
        let mode = if is_shared { Mode::Shared } else { mode };
        *joins &= mode == Mode::Shared;
        QueuedNode::new(path, mode, is_granted || *joins, label, stat.czxid, stat.ctime)
    });
    Ok(nodes.collect())
}

/// Deletes the node of `who`.
pub(crate) async fn evict(
    session: &Arc<Session>,
    lock: &str,
    who: &ParticipantId,
) -> ZkResult<ReleaseOutcome> {
    let nodes = read(session, lock).await?;
    match nodes.iter().find(|node| node.participant.id == *who) {
        Some(node) => batch::delete(session, &node.path).await,
        None => Ok(ReleaseOutcome::Absent),
    }
}

/// The holders and waiters as users see them.
pub(crate) fn of_nodes(nodes: Vec<QueuedNode>) -> Snapshot {
    let (holders, waiters): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| node.is_granted);
    let participants =
        |nodes: Vec<QueuedNode>| nodes.into_iter().map(|node| node.participant).collect();
    Snapshot::new(participants(holders), participants(waiters))
}
