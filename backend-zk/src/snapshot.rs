//! Who holds a lock and who waits for it, read for people.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fencelock_core::{
    FencingToken, Label, Mode, Participant, ParticipantId, ReleaseOutcome, Result, Snapshot,
};
use futures_util::future::join_all;

use crate::error::Trouble;
use crate::node;
use crate::path::below;
use crate::session::Session;

/// So many holders and waiters at most are shown.
const MOST: usize = 1000;

/// What the store has of one lock.
pub(crate) struct Seen(pub(crate) Vec<Entry>);

pub(crate) struct Entry {
    path: String,
    mode: Mode,
    holds: bool,
    label: Label,
    czxid: i64,
    /// By the servers' clock, in ms since 1970.
    made: i64,
}

impl Entry {
    /// A node by what the servers say of it, which may be another program's.
    pub(crate) fn read(
        path: String,
        mode: Mode,
        holds: bool,
        data: &[u8],
        czxid: i64,
        made: i64,
    ) -> Entry {
        Entry { path, mode, holds, label: Label::new(&String::from_utf8_lossy(data)), czxid, made }
    }
}

/// Asks.
pub(crate) async fn of(session: &Arc<Session>, lock: &str) -> Result<Seen> {
    let client = session.client()?;
    // What was given back just before, with another server, is gone for whoever looks.
    session.read(client.sync(lock)).await?;
    let names = node::list(session, lock).await?;
    let queue: Vec<_> = names.in_order().take(MOST).collect();
    let asked = queue.into_iter().map(async |(name, mode, holds)| {
        let path = below(lock, name);
        match session.read(client.get_data(&path)).await {
            Ok((data, stat)) => {
                Ok(Some(Entry::read(path, mode, holds, &data, stat.czxid, stat.ctime)))
            }
            Err(trouble) if trouble.is_no_node() => Ok(None),
            Err(trouble) => Err(trouble),
        }
    });
    let entries: Result<Vec<_>, Trouble> = join_all(asked).await.into_iter().collect();
    Ok(Seen(entries?.into_iter().flatten().collect()))
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
        Err(trouble) if trouble.is_no_node() => Ok(ReleaseOutcome::Absent),
        Err(trouble) => Err(trouble.into()),
    }
}

/// No two nodes ever have the same.
fn id(entry: &Entry) -> ParticipantId {
    ParticipantId::new(format!("{:x}", entry.czxid))
}

impl Seen {
    /// For people.
    pub(crate) fn into_snapshot(self) -> Snapshot {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let participant = |entry: &Entry| {
            let participant = Participant::new(id(entry), entry.mode).labelled(entry.label.clone());
            let made = Duration::from_millis(u64::try_from(entry.made).unwrap_or_default());
            let token = FencingToken::new(u64::try_from(entry.czxid).unwrap_or_default());
            match entry.holds {
                // When it was granted is not known, and may be long after it was made.
                true => participant.token(token),
                false => participant.since(now.saturating_sub(made)),
            }
        };
        let (holders, waiters): (Vec<_>, Vec<_>) = self.0.iter().partition(|entry| entry.holds);
        Snapshot::new(
            holders.into_iter().map(participant).collect(),
            waiters.into_iter().map(participant).collect(),
        )
    }
}
