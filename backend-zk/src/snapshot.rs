//! Who holds a lock and who waits for it, read for people.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fencelock_core::{
    FencingToken, Label, Mode, Participant, ParticipantId, ReleaseOutcome, Result, Snapshot,
};
use futures_util::future::join_all;

use crate::error::RequestError;
use crate::node;
use crate::path::below;
use crate::session::Session;

/// So many holders and waiters at most are shown.
const MAX_SHOWN: usize = 1000;

/// What the store has of one lock.
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
    /// A node by what the servers say of it, which may be another program's.
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

/// Asks.
pub(crate) async fn of(session: &Arc<Session>, lock: &str) -> Result<LockContents> {
    let client = session.client()?;
    // What was given back just before, with another server, is gone for whoever looks.
    session.read(client.sync(lock)).await?;
    let names = node::list(session, lock).await?;
    let queue: Vec<_> = names.in_order().take(MAX_SHOWN).collect();
    let asked = queue.into_iter().map(async |(name, mode, holds)| {
        let path = below(lock, name);
        match session.read(client.get_data(&path)).await {
            Ok((data, stat)) => {
                Ok(Some(QueuedNode::read(path, mode, holds, &data, stat.czxid, stat.ctime)))
            }
            Err(error) if error.is_no_node() => Ok(None),
            Err(error) => Err(error),
        }
    });
    let entries: Result<Vec<_>, RequestError> = join_all(asked).await.into_iter().collect();
    Ok(LockContents(entries?.into_iter().flatten().collect()))
}

/// Deletes the node of `who`.
pub(crate) async fn evict(
    session: &Arc<Session>,
    lock: &str,
    who: &ParticipantId,
) -> Result<ReleaseOutcome> {
    let seen = of(session, lock).await?;
    let Some(entry) = seen.0.iter().find(|entry| id(entry) == *who) else {
        return Ok(ReleaseOutcome::Absent);
    };
    match session.delete(&entry.path).await {
        Ok(()) => Ok(ReleaseOutcome::Removed),
        Err(error) if error.is_no_node() => Ok(ReleaseOutcome::Absent),
        Err(error) => Err(error.into()),
    }
}

/// No two nodes ever have the same.
fn id(entry: &QueuedNode) -> ParticipantId {
    ParticipantId::new(format!("{:x}", entry.czxid))
}

impl LockContents {
    /// For people.
    pub(crate) fn into_snapshot(self) -> Snapshot {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let participant = |entry: &QueuedNode| {
            let participant = Participant::new(id(entry), entry.mode).labelled(entry.label.clone());
            let created = Duration::from_millis(u64::try_from(entry.created).unwrap_or_default());
            let token = FencingToken::new(u64::try_from(entry.czxid).unwrap_or_default());
            match entry.holds {
                // When it was granted is not known, and may be long after it was made.
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
