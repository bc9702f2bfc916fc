//! The node of one claim: made once in one session, found again when its making was unsure,
//! deleted until it is gone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use fencelock_core::{FencingToken, ReleaseOutcome, WatchHandle};
use futures_util::future::join;
use uuid::Uuid;
use zookeeper_client::{CreateMode, Stat};

use crate::access::Access;
use crate::batch::Names;
use crate::budget::Reservation;
use crate::error::{Certainty, RequestError, ZkResult};
use crate::names::{self, NodeName};
use crate::path::below;
use crate::session::Session;

/// A node that is known to have been made for a claim.
pub(crate) struct Node {
    pub(crate) session: Arc<Session>,
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) parsed: NodeName,
    czxid: i64,
    /// It was seen that it is gone.
    gone: AtomicBool,
    /// Its end would be seen.
    watched: AtomicBool,
    /// Nothing is ahead of it, and so nothing ever will be.
    first: AtomicBool,
    /// Others may look for it.
    introduced: AtomicBool,
    /// While it is held.
    watch: OnceLock<WatchHandle>,
    /// For the watches on it and for it.
    pub(crate) reservation: Arc<Reservation>,
}

impl Node {
    fn new(
        reservation: &Arc<Reservation>,
        lock: &str,
        name: String,
        stat: &Stat,
    ) -> ZkResult<Node> {
        let session = reservation.session();
        let Some(parsed) = names::read(&name) else {
            let what = "a node of ours has no sequence number".to_owned();
            return Err(zookeeper_client::Error::UnexpectedError(what).into());
        };
        if stat.ephemeral_owner != session.id() {
            // The transport came back with another session and did not say so.
            session.end();
            return Err(RequestError::SessionOver);
        }
        Ok(Node {
            session: session.clone(),
            path: below(lock, &name),
            name,
            parsed,
            czxid: stat.czxid,
            gone: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            first: AtomicBool::new(false),
            introduced: AtomicBool::new(false),
            watch: OnceLock::new(),
            reservation: reservation.clone(),
        })
    }

    /// The transaction that made it: they rise over restarts, and when the lock's node has gone
    /// and come again with new sequence numbers.
    pub(crate) fn token(&self) -> FencingToken {
        FencingToken::new(u64::try_from(self.czxid).unwrap_or_default())
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Whether it would be known that it is gone.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Acquire) && !self.is_gone()
    }

    pub(crate) fn set_watched(&self, watched: bool) {
        self.watched.store(watched, Ordering::Release);
    }

    pub(crate) fn is_first(&self) -> bool {
        self.first.load(Ordering::Acquire)
    }

    /// It was granted, which nothing ahead of it would have been beside.
    pub(crate) fn set_first(&self) {
        self.first.store(true, Ordering::Release);
    }

    /// Lets those behind it, in the same session, find it for as long as it is of use to anybody.
    pub(crate) fn introduce(self: &Arc<Self>) {
        if !self.introduced.swap(true, Ordering::AcqRel) {
            self.session.waiting().insert(self.path.clone(), Arc::downgrade(self));
        }
    }

    /// Keeps a watch on it for as long as it is wanted.
    pub(crate) fn keep(&self, watch: WatchHandle) {
        // A second one is not needed.
        let _ = self.watch.set(watch);
    }

    /// Deletes it.
    pub(crate) async fn delete(&self) -> ZkResult<ReleaseOutcome> {
        match self.session.delete(&self.path).await {
            Ok(()) => Ok(ReleaseOutcome::Removed),
            Err(error) if error.is_no_node() => Ok(ReleaseOutcome::Absent),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if !*self.introduced.get_mut() {
            return;
        }
        let mut waiting = self.session.waiting();
        waiting.remove(&self.path);
        // Not for ever as large as the largest crowd.
        if waiting.capacity() > 4096 && waiting.len() < waiting.capacity() / 8 {
            waiting.shrink_to_fit();
        }
    }
}

/// What came of making a node.
pub(crate) struct Made {
    pub(crate) node: ZkResult<Node>,
    /// The lock's nodes just after it.
    pub(crate) names: ZkResult<Names>,
}

/// Makes a node for a claim and lists the lock's, neither waiting for the other: the servers take
/// the requests of a session in turn, so the list has all that is ahead.
pub(crate) async fn make(
    reservation: &Arc<Reservation>,
    access: &Access,
    lock: &str,
    prefix: &str,
    label: &str,
) -> ZkResult<Made> {
    let session = reservation.session();
    let client = session.client()?;
    let prefix = below(lock, prefix);
    let options = CreateMode::EphemeralSequential.with_acls(access.acls);
    let sent = session.mark_sent();
    let create = client.create(&prefix, label.as_bytes(), &options);
    let (created, names) = join(session.write(sent, create), session.list(lock)).await;
    let node = created.and_then(|(stat, sequence)| {
        Node::new(reservation, lock, format!("{stem}{sequence}"), &stat)
    });
    Ok(Made { node, names })
}

/// The names of a lock's nodes; none when it has not even a node of its own.
pub(crate) async fn list(session: &Arc<Session>, lock: &str) -> ZkResult<Names> {
    none_without_lock(session.list(lock).await)
}

/// The same, with all that any session was answered before: the server of this one may be behind
/// the one that answered.
pub(crate) async fn list_in_sync(session: &Arc<Session>, lock: &str) -> ZkResult<Names> {
    let client = session.client()?;
    let sync = session.read(client.sync(lock));
    let (synced, names) = join(sync, session.list_alone(lock)).await;
    synced?;
    none_without_lock(names)
}

fn none_without_lock(listed: ZkResult<Names>) -> ZkResult<Names> {
    match listed {
        Err(error) if error.is_no_node() => Ok(Names::default()),
        listed => listed,
    }
}

/// Finds out whether a node was made for `owner` in a session, when that was unsure. That there is
/// none is final: whatever was sent before has been carried out, or never will be.
pub(crate) async fn find(
    reservation: &Arc<Reservation>,
    lock: &str,
    owner: Uuid,
) -> ZkResult<Option<Node>> {
    let session = reservation.session();
    let client = session.client()?;
    let names = list_in_sync(session, lock).await?;
    let own = names::owner_prefix(owner);
    for name in names.names().iter().filter(|name| name.starts_with(&own)) {
        let path = below(lock, name);
        match session.read(client.get_data(&path)).await {
            // One of an older session goes with that.
            Ok((_, stat)) if stat.ephemeral_owner != session.id() => {}
            Ok((_, stat)) => return Node::new(reservation, lock, name.clone(), &stat).map(Some),
            Err(error) if error.is_no_node() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Makes the node of the lock itself.
pub(crate) async fn create_lock(session: &Session, access: &Access, lock: &str) -> ZkResult<()> {
    let client = session.client()?;
    session.read(access.create_lock(&client, lock)).await
}

/// Removes the node of the lock itself, unless somebody is in its queue.
pub(crate) async fn remove_lock(session: &Arc<Session>, lock: &str) -> ZkResult<bool> {
    match session.delete(lock).await {
        Err(error) if error.is_not_empty() => Ok(false),
        Err(error) if !error.is_no_node() => Err(error),
        _ => Ok(true),
    }
}

/// Whether a request with this answer may have made a node.
pub(crate) fn may_have_created(error: &RequestError) -> bool {
    error.certainty() == Certainty::Unknown
}
