//! The holders and waiters of a lock, for `inspect` and `evict`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fencelock_core::{
    FencingToken, Label, Mode, Participant, ParticipantId, ReleaseOutcome, Result, Snapshot,
};
use futures_util::future::join_all;

use crate::error::RequestError;
use crate::nodes::node;
use crate::queue::path::below;
use crate::sessions::batch;
use crate::sessions::session::Session;

/// The most holders and waiters that are shown.
const MAX_SHOWN: usize = 1000;

/// The queue of one lock, as the servers have it.
pub(crate) struct LockContents(pub(crate) Vec<QueuedNode>);

pub(crate) struct QueuedNode {
    path: String,
    mode: Mode,
    holds: bool,
    label: Label,
    czxid: i64,
    /// By the servers' clock, in ms since 1970.
    created: i64,
}

impl QueuedNode {
    /// A node by its data and its `Stat`; another program may have created it.
    pub(crate) fn read(
        path: String,
        mode: Mode,
        holds: bool,
        data: &[u8],
        czxid: i64,
        created: i64,
    ) -> QueuedNode {
        QueuedNode {
            path,
            mode,
            holds,
            label: Label::new(&String::from_utf8_lossy(data)),
            czxid,
            created,
        }
    }
}

/// Reads the queue of `lock`.
pub(crate) async fn read(session: &Arc<Session>, lock: &str) -> Result<LockContents> {
    let client = session.client()?;
    // A lock that was released just before, at another server, must not be shown as held.
    session.read(client.sync(lock)).await?;
    let listing = node::list(session, lock).await?;
    let queue: Vec<_> = listing.in_order().take(MAX_SHOWN).collect();
    let reads = queue.into_iter().map(async |(name, mode, holds)| {
        let path = below(lock, name);
        match session.read(client.get_data(&path)).await {
            Ok((data, stat)) => {
                Ok(Some(QueuedNode::read(path, mode, holds, &data, stat.czxid, stat.ctime)))
            }
            Err(error) if error.is_no_node() => Ok(None),
            Err(error) => Err(error),
        }
    });
    let entries: Result<Vec<_>, RequestError> = join_all(reads).await.into_iter().collect();
    Ok(LockContents(entries?.into_iter().flatten().collect()))
}

/// Deletes the node of `who`.
pub(crate) async fn evict(
    session: &Arc<Session>,
    lock: &str,
    who: &ParticipantId,
) -> Result<ReleaseOutcome> {
    let contents = read(session, lock).await?;
    let Some(entry) = contents.0.iter().find(|entry| id(entry) == *who) else {
        return Ok(ReleaseOutcome::Absent);
    };
    match batch::delete(session, &entry.path).await {
        Ok(()) => Ok(ReleaseOutcome::Removed),
        Err(error) if error.is_no_node() => Ok(ReleaseOutcome::Absent),
        Err(error) => Err(error.into()),
    }
}

/// The id of a participant: no two nodes ever have the same czxid.
fn id(entry: &QueuedNode) -> ParticipantId {
    ParticipantId::new(format!("{:x}", entry.czxid))
}

impl LockContents {
    /// The holders and waiters as users see them.
    pub(crate) fn into_snapshot(self) -> Snapshot {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let participant = |entry: &QueuedNode| {
            let participant = Participant::new(id(entry), entry.mode).labelled(entry.label.clone());
            let created = Duration::from_millis(u64::try_from(entry.created).unwrap_or_default());
            let token = FencingToken::new(u64::try_from(entry.czxid).unwrap_or_default());
            match entry.holds {
                // When it was granted is unknown, and may be long after its creation.
                true => participant.token(token),
                false => participant.since(now.saturating_sub(created)),
            }
        };
        let (holders, waiters): (Vec<_>, Vec<_>) = self.0.iter().partition(|entry| entry.holds);
        Snapshot::new(
            holders.into_iter().map(participant).collect(),
            waiters.into_iter().map(participant).collect(),
        )
    }
}
