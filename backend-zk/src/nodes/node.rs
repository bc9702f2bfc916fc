//! The node of one claim: created once in one session, looked up when its creation is in doubt, and
//! deleted until it is gone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use fencelock_core::{Claim, FencingToken, ReleaseOutcome, WatchHandle};
use futures_util::future::{join, join3};
use uuid::Uuid;
use zookeeper_client::{CreateMode, EventType, Stat};

use crate::connection::access::Access;
use crate::error::{RequestError, ZkResult};
use crate::nodes::token;
use crate::queue::names::{self, NodeName};
use crate::queue::order::Listing;
use crate::queue::path::below;
use crate::sessions::batch;
use crate::sessions::deferred_watches::WATCH_DELAY;
use crate::sessions::pool::Slot;
use crate::sessions::queue_marks::QueueMark;
use crate::sessions::session::Session;

/// A node that is known to have been created for a claim.
pub(crate) struct Node {
    pub(crate) slot: Slot,
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) parsed: NodeName,
    /// The number of the transaction that created it.
    czxid: i64,
    /// Nobody but this login may change its lock's node, which stays for as long as this one.
    in_own_lock: AtomicBool,
    /// The node is known to be deleted.
    gone: AtomicBool,
    /// A watch would report its deletion.
    watched: AtomicBool,
    /// Set when the claim waits.
    mark: OnceLock<Arc<QueueMark>>,
    /// The watch on the node while it is held.
    watch: OnceLock<WatchHandle>,
}

impl Node {
    fn new(slot: &Slot, lock: &str, name: String, stat: &Stat) -> ZkResult<Node> {
        let Some(parsed) = names::read(&name) else {
            let what = "a node of this client has no sequence number".to_owned();
            return Err(zookeeper_client::Error::UnexpectedError(what).into());
        };
        if stat.ephemeral_owner != slot.session.id {
            // The transport has reconnected with another session and did not report it.
            slot.session.end();
            return Err(RequestError::SessionOver);
        }
        Ok(Node {
            slot: slot.clone(),
            path: below(lock, &name),
            name,
            parsed,
            czxid: stat.czxid,
            in_own_lock: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            mark: OnceLock::new(),
            watch: OnceLock::new(),
        })
    }

    /// The token of its claim.
    pub(crate) fn token(&self) -> ZkResult<FencingToken> {
        token::first_of(self.czxid)
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.slot.session
    }

    /// The path of its lock.
    pub(crate) fn lock(&self) -> &str {
        &self.path[..self.path.len() - self.name.len() - 1]
    }

    /// Requires that what is beside this node in its lock can be believed.
    pub(crate) async fn require_own_lock(&self) -> ZkResult<()> {
        if !self.in_own_lock.load(Ordering::Acquire) {
            self.session().require_own(self.lock(), None).await?;
            self.in_own_lock.store(true, Ordering::Release);
        }
        Ok(())
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Whether the node exists and its deletion would be reported.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Acquire) && !self.is_gone()
    }

    pub(crate) fn set_watched(&self, watched: bool) {
        self.watched.store(watched, Ordering::Release);
    }

    /// Marks the node as first in the queue (it was granted exclusively).
    pub(crate) fn set_first(&self) {
        // A claim that has not waited has no mark, and no waiter asks for it.
        if let Some(mark) = self.mark.get() {
            mark.set_first();
        }
    }

    /// Lets the next waiter in the same session find its mark.
    pub(crate) fn register_mark(&self) {
        self.mark.get_or_init(|| self.session().queue_marks.register(&self.path));
    }

    /// Marks the node of a writer as a reader's. `false` when the node is gone.
    ///
    /// The node stays, and with it the token: a reader's node of a new number would be behind the
    /// writers that wait, and one of the same number would be a second node that others may take for
    /// the first.
    pub(crate) async fn share(&self, label: &str) -> ZkResult<bool> {
        let session = self.session();
        let client = session.client()?;
        let data = shared_data(label);
        let sent = session.mark_sent();
        match session.write(sent, client.set_data(&self.path, data.as_bytes(), None)).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_no_node() => {
                self.set_gone();
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn delete(&self) -> ZkResult<ReleaseOutcome> {
        batch::delete(self.session(), &self.path).await
    }

    /// Has the node of a holder watched, if it is still held after the delay of such watches: a
    /// deletion that the holder did not ask for is a loss, reported at once.
    pub(crate) fn watch_later(self: &Arc<Node>, claim: &Arc<Claim>) {
        let (node, claim) = (Arc::downgrade(self), Arc::downgrade(claim));
        self.session().deferred_watches.defer(move || {
            if let (Some(node), Some(claim)) = (node.upgrade(), claim.upgrade()) {
                node.watch(&claim);
            }
        });
    }

    /// Wakes `claim` when the node is gone.
    fn watch(self: &Arc<Node>, claim: &Arc<Claim>) {
        // The `Node` may be dropped while it is still watched, and needs its reservation until then.
        let (slot, path, node) = (self.slot.clone(), self.path.clone(), Arc::downgrade(self));
        let watch = claim.wake_when(async move {
            until_deleted(&slot.session, &path, |_| ()).await;
            drop(slot);
            if let Some(node) = node.upgrade() {
                node.set_gone();
            }
        });
        // A second one is not needed.
        let _ = self.watch.set(watch);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.mark.get().is_some() {
            self.session().queue_marks.remove(&self.path);
        }
    }
}

/// What follows the label in the data of a node that was downgraded; labels have no line breaks.
const SHARED: &str = "\nshared";

fn shared_data(label: &str) -> String {
    [label, SHARED].concat()
}

/// The label in a node's data, and whether the node is a writer's that has become a reader.
pub(crate) fn read_data(data: &[u8]) -> (&[u8], bool) {
    match data.strip_suffix(SHARED.as_bytes()) {
        Some(label) => (label, true),
        None => (data, false),
    }
}

/// Whether the writer at `path`, which blocks a reader, has become a reader itself.
pub(crate) async fn is_shared(session: &Session, path: &str) -> ZkResult<bool> {
    let client = session.client()?;
    match session.read(client.get_data(path)).await {
        Ok((data, _)) => Ok(read_data(&data).1),
        Err(error) if error.is_no_node() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Creates a node for a claim, lists those of the lock and asks whose that is, none waiting for the other:
/// the servers carry out the requests of a session in order, so the list has all nodes that are ahead.
pub(crate) async fn create(
    slot: &Slot,
    access: &Access,
    lock: &str,
    prefix: &str,
    label: &str,
) -> ZkResult<(Node, ZkResult<Arc<Listing>>)> {
    let session = &slot.session;
    let client = session.client()?;
    let path_prefix = below(lock, prefix);
    let options = CreateMode::EphemeralSequential.with_acls(access.acls());
    let sent = session.mark_sent();
    let create = client.create(&path_prefix, label.as_bytes(), &options);
    let (create, list) = (session.write(sent, create), batch::list(session, lock));
    let (created, listing, own) = join3(create, list, session.require_own(lock, None)).await;
    let (stat, sequence) = created?;
    let node = Node::new(slot, lock, format!("{prefix}{sequence}"), &stat)?;
    node.in_own_lock.store(own.is_ok(), Ordering::Release);
    Ok((node, own.and(listing)))
}

/// Lists a lock's nodes; none when the lock's own node does not exist.
pub(crate) async fn list(session: &Arc<Session>, lock: &str) -> ZkResult<Arc<Listing>> {
    empty_without_lock(batch::list(session, lock).await)
}

/// Lists a lock's nodes after all that any session was answered before: the server of this session
/// may be behind the one that answered.
pub(crate) async fn list_in_sync(session: &Session, lock: &str) -> ZkResult<Arc<Listing>> {
    let client = session.client()?;
    let sync = session.read(client.sync(lock));
    let (synced, listing) = join(sync, batch::list_directly(session, lock)).await;
    synced?;
    empty_without_lock(listing)
}

fn empty_without_lock(listed: ZkResult<Arc<Listing>>) -> ZkResult<Arc<Listing>> {
    match listed {
        Err(error) if error.is_no_node() => Ok(Arc::default()),
        listed => listed,
    }
}

/// Looks up whether a node was created for `owner` in a session, when that is in doubt. `None` is
/// final: whatever was sent before has been carried out, or never will be.
pub(crate) async fn find(slot: &Slot, lock: &str, owner: Uuid) -> ZkResult<Option<Node>> {
    let session = &slot.session;
    let client = session.client()?;
    let listing = list_in_sync(session, lock).await?;
    let own = names::owner_prefix(owner);
    for name in listing.names().iter().filter(|name| name.starts_with(&own)) {
        let path = below(lock, name);
        match session.read(client.get_data(&path)).await {
            // The node of an older session is deleted with that session.
            Ok((_, stat)) if stat.ephemeral_owner != session.id => {}
            Ok((_, stat)) => {
                return Node::new(slot, lock, name.clone(), &stat).map(Some);
            }
            Err(error) if error.is_no_node() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Waits until a node is deleted, or its session is over; calls `on_watched` when the node is
/// watched, and when it is not any more.
pub(crate) async fn until_deleted(session: &Session, path: &str, on_watched: impl Fn(bool)) {
    while let Ok(client) = session.client() {
        match session.read(client.get_and_watch_data(path)).await {
            Ok((_, _, watcher)) => {
                drop(client);
                on_watched(true);
                if watcher.changed().await.event_type == EventType::NodeDeleted {
                    return;
                }
                // Another program has written to it.
                on_watched(false);
            }
            Err(error) if error.is_no_node() => return,
            Err(_) => {}
        }
        tokio::time::sleep(WATCH_DELAY).await;
    }
}
