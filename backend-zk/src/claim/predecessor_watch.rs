//! The watch of one waiting claim: on the nodes ahead that block it, and on its own node until the
//! claim ends.
//!
//! One task watches both, because the order of the events matters. A waiter whose own node was
//! deleted must not take the deletion of the node ahead for its turn, and the transport delivers
//! events in the servers' order only to a task that checks its watchers in that order.
//!
//! A hand-off to the next in line needs no request of the waiter: the deletion of the only node that
//! blocked it is its turn, and so is that of a node which had become the first itself. Without this
//! each waiter would list the lock's nodes at its turn, one more round trip
//! (docs/decisions/0008-a-session-lives-by-committed-writes.md).

use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use fencelock_core::{Claim, Mode, Moment, WatchHandle};
use futures_util::future::{BoxFuture, FutureExt, join_all, select_all};
use zookeeper_client::{EventType, OneshotWatcher, StateWatcher};

use crate::error::ZkResult;
use crate::nodes::node::{Node, is_shared, read_data, until_deleted};
use crate::queue::path::below;
use crate::sessions::budget::WatchedPaths;
use crate::sessions::deferred_watches::WATCH_DELAY;
use crate::sessions::queue_marks::QueueMark;
use crate::sessions::session::Session;

/// How long a waiter that was woken may take to attempt.
const TURN_TIMEOUT: Duration = Duration::from_secs(2);

/// What has happened to the watched nodes ahead.
#[derive(PartialEq, Eq)]
enum Change {
    OneDeleted,
    CheckAgain,
}

/// The state of the claim's turn.
#[derive(PartialEq, Eq)]
enum Turn {
    Open,
    Taken,
    /// No attempt came for so long that the node is given up.
    PassedOver,
}

/// A task that wakes the claim; dropping it removes the watches, on the servers too.
pub(crate) struct PredecessorWatch {
    _watching: WatchHandle,
    /// The names of the watched nodes ahead.
    pub(crate) watched: Vec<String>,
    /// No other node blocks the claim.
    is_sole: bool,
    /// The mark of the only node in `watched`, if that waited in the same session.
    ahead: Option<Arc<QueueMark>>,
    /// The first change of the watched nodes.
    change: Arc<OnceLock<Change>>,
    turn: Turn,
    /// When a check first found that the claim was woken and has not attempted since.
    idle_since: Option<Moment>,
    /// The last reconnect after which the watched nodes are known to exist.
    pub(crate) reconnects: u64,
}

impl PredecessorWatch {
    /// Watches for a claim whose `node` waits until one of the nodes `watch` is deleted; `is_sole`
    /// when only that one blocks it.
    pub(crate) async fn start(
        claim: &Arc<Claim>,
        node: &Arc<Node>,
        watch: Vec<String>,
        is_sole: bool,
    ) -> ZkResult<Start> {
        let (session, lock) = (node.session(), node.lock());
        // Before the watches: events after a reconnect are delivered in no order.
        let states = session.states();
        node.register_mark();
        let paths: Vec<_> = watch.iter().map(|name| below(lock, name)).collect();
        let watches = match node.slot.reservation.watch(&paths) {
            Some(watched) => watch_each(session, &paths, watched).await?,
            None => watch_all(session, lock, &watch).await?,
        };
        let Some(Watches { events, is_shared }) = watches else { return Ok(Start::Deleted) };
        if is_shared && claim.mode() == Mode::Shared {
            return Ok(Start::Shared);
        }
        let change = Arc::new(OnceLock::new());
        let reconnects = session.reconnects();
        let watching =
            watch_over(Arc::downgrade(claim), node.clone(), events, states, change.clone());
        Ok(Start::Watching(PredecessorWatch {
            _watching: claim.wake_when(watching),
            ahead: known_predecessor(session, claim.mode(), &paths),
            watched: watch,
            is_sole,
            change,
            turn: Turn::Open,
            idle_since: None,
            reconnects,
        }))
    }

    /// Whether nothing can block the claim any more: the only node that did is deleted, or one that
    /// was the first of the queue; and the claim's own node is known to exist.
    pub(crate) fn is_cleared(&self, node: &Node) -> bool {
        let was_last = self.is_sole || self.ahead.as_ref().is_some_and(|ahead| ahead.is_first());
        was_last && self.change.get() == Some(&Change::OneDeleted) && node.is_watched()
    }

    /// Whether it still waits for exactly these nodes.
    pub(crate) fn waits_for(&self, watch: &[&str]) -> bool {
        self.change.get().is_none() && self.watched == watch
    }

    /// Records that an attempt is under way. `false` when the claim was passed over before.
    pub(crate) fn note_attempt(&mut self) -> bool {
        self.idle_since = None;
        self.turn != Turn::PassedOver
    }

    /// Takes the turn that may have come. `false` when the claim was passed over before.
    pub(crate) fn take_turn(&mut self) -> bool {
        if self.turn == Turn::Open {
            self.turn = Turn::Taken;
        }
        self.turn == Turn::Taken
    }

    /// Passes the claim over if it was woken [`TURN_TIMEOUT`] ago and has not attempted since: a
    /// future that is not polled must not block a lock that it does not use. True once; from then on
    /// no attempt can take the turn.
    pub(crate) fn pass_over(&mut self, now: Moment) -> bool {
        if self.change.get().is_none() || self.turn != Turn::Open {
            return false;
        }
        let since = *self.idle_since.get_or_insert(now);
        let is_late = now.duration_since(since) >= TURN_TIMEOUT;
        if is_late {
            self.turn = Turn::PassedOver;
        }
        is_late
    }
}

/// The beginning of a watch.
pub(crate) enum Start {
    Watching(PredecessorWatch),
    /// One of the nodes is deleted already.
    Deleted,
    /// For a reader: the writer that blocked it has become a reader.
    Shared,
}

/// The events of the nodes that a claim waits for.
type Events = Vec<BoxFuture<'static, EventType>>;

struct Watches {
    events: Events,
    /// The only one of the nodes is a writer's that has become a reader.
    is_shared: bool,
}

/// Watches each of these nodes; `None` when one of them is deleted already.
async fn watch_each(
    session: &Session,
    paths: &[String],
    watched: WatchedPaths,
) -> ZkResult<Option<Watches>> {
    let client = session.client()?;
    let watched = Arc::new(watched);
    let requests = paths.iter().map(|path| session.read(client.get_and_watch_data(path)));
    let (mut events, mut is_shared) = (Vec::new(), false);
    for answer in join_all(requests).await {
        match answer {
            Ok((data, _, watcher)) => {
                is_shared = paths.len() == 1 && read_data(&data).1;
                events.push(event_of(watcher, Some(watched.clone())));
            }
            Err(error) if error.is_no_node() => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(Watches { events, is_shared }))
}

/// Watches the list of the lock's nodes, by one watch whose path is shorter than that of any of
/// them: for a claim that waits for more nodes than the session has room to watch. `None` when one
/// of `names` is deleted already. Only deletions matter here: a writer that can become a reader has a
/// node whose path is as long as a reader's own, for which every reader that waits has reserved room.
async fn watch_all(session: &Session, lock: &str, names: &[String]) -> ZkResult<Option<Watches>> {
    let client = session.client()?;
    match session.read(client.list_and_watch_children(lock)).await {
        Ok((listed, watcher)) => {
            let listed: HashSet<String> = listed.into_iter().collect();
            if !names.iter().all(|name| listed.contains(name)) {
                return Ok(None);
            }
            let is_shared = match names {
                [nearest] => is_shared(session, &below(lock, nearest)).await?,
                _ => false,
            };
            Ok(Some(Watches { events: vec![event_of(watcher, None)], is_shared }))
        }
        Err(error) if error.is_no_node() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The event of a watch, which keeps `watched` reserved until it has come.
fn event_of(
    watcher: OneshotWatcher,
    watched: Option<Arc<WatchedPaths>>,
) -> BoxFuture<'static, EventType> {
    let changed = watcher.changed();
    changed.map(move |event| (event.event_type, drop(watched)).0).boxed()
}

/// The mark of the only node that a claim in `mode` watches, if it has one, and if no node between
/// the two can block the claim: other permits can, for permits.
fn known_predecessor(session: &Session, mode: Mode, paths: &[String]) -> Option<Arc<QueueMark>> {
    match (mode, paths) {
        (Mode::Exclusive | Mode::Shared, [path]) => session.queue_marks.find(path),
        _ => None,
    }
}

/// Wakes the claim when a watched node ahead is deleted or changed. Ends when the own node is gone.
async fn watch_over(
    claim: Weak<Claim>,
    node: Arc<Node>,
    ahead: Events,
    mut states: StateWatcher,
    change: Arc<OnceLock<Change>>,
) {
    let mut own = pin!(async {
        tokio::time::sleep(WATCH_DELAY).await;
        until_deleted(node.session(), &node.path, |watched| node.set_watched(watched)).await;
        node.set_gone();
    });
    let first_event = tokio::select! {
        biased;
        () = &mut own => return,
        (first_event, ..) = select_all(ahead) => first_event,
    };
    // If the own node was deleted before that one, its event was delivered before: check for it.
    if own.as_mut().now_or_never().is_some() {
        return;
    }
    let is_in_order = states.changed().now_or_never().is_none();
    let _ = change.set(if first_event == EventType::NodeDeleted && is_in_order {
        Change::OneDeleted
    } else {
        Change::CheckAgain
    });
    if let Some(claim) = claim.upgrade() {
        claim.wake();
    }
    own.await;
}
