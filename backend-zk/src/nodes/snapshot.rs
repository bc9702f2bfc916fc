//! Who holds a lock and who waits for it, read for people.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fencelock_core::{FencingToken, Label, Mode, Occupant, OccupantId, Removal, Result, Snapshot};
use futures_util::future::join_all;

use crate::error::RequestError;
use crate::nodes::node;
use crate::queue::path::below;
use crate::sessions::session::Session;

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
pub(crate) async fn evict(session: &Arc<Session>, lock: &str, who: &OccupantId) -> Result<Removal> {
    let seen = of(session, lock).await?;
    let Some(entry) = seen.0.iter().find(|entry| id(entry) == *who) else {
        return Ok(Removal::Absent);
    };
    match session.delete(&entry.path).await {
        Ok(()) => Ok(Removal::Removed),
        Err(error) if error.is_no_node() => Ok(Removal::Absent),
        Err(error) => Err(error.into()),
    }
}

/// No two nodes ever have the same.
fn id(entry: &QueuedNode) -> OccupantId {
    OccupantId::new(format!("{:x}", entry.czxid))
}

impl LockContents {
    /// For people.
    pub(crate) fn into_snapshot(self) -> Snapshot {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let occupant = |entry: &QueuedNode| {
            let occupant = Occupant::new(id(entry), entry.mode).labelled(entry.label.clone());
            let created = Duration::from_millis(u64::try_from(entry.created).unwrap_or_default());
            let token = FencingToken::new(u64::try_from(entry.czxid).unwrap_or_default());
            match entry.holds {
                // When it was granted is not known, and may be long after it was made.
                true => occupant.token(token),
                false => occupant.since(now.saturating_sub(created)),
            }
        };
        let (holders, waiters): (Vec<_>, Vec<_>) = self.0.iter().partition(|entry| entry.holds);
        Snapshot::new(
            holders.into_iter().map(occupant).collect(),
            waiters.into_iter().map(occupant).collect(),
        )
    }
}
