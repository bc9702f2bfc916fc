//! Watching for one waiting claim: the nodes in its way, and its own node, from then on to its end.
//!
//! Both in one task, because their order matters. A waiter whose own node was deleted must not take
//! the end of the node before it for its turn, and the transport tells in the servers' order only
//! what one task looks at in that order.

use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use fencelock_core::{Claim, Mode, Moment, WatchHandle};
use futures_util::future::{BoxFuture, FutureExt, join_all, select_all};
use zookeeper_client::{EventType, OneshotWatcher, StateWatcher};

use crate::budget::WatchedPaths;
use crate::error::ZkResult;
use crate::lookout::{WATCH_DELAY, until_deleted};
use crate::node::Node;
use crate::path::below;
use crate::session::Session;

/// How long a waiter that was rung may take to come.
const TURN_TIMEOUT: Duration = Duration::from_secs(2);

/// What happened to the nodes in the way.
const PENDING: u8 = 0;
const ONE_DELETED: u8 = 1;
const CHECK_AGAIN: u8 = 2;

/// Its turn.
const OPEN: u8 = 0;
const TAKEN: u8 = 1;
/// Nobody came for so long that the node is given up.
const PASSED_OVER: u8 = 2;

/// A task that rings the claim; dropping it ends the watching, on the servers too.
pub(crate) struct PredecessorWatch {
    _armed: WatchHandle,
    /// The names of the nodes in the way.
    pub(crate) watched: Vec<String>,
    is_sole: bool,
    /// The one in the way, if it waited in the same session.
    ahead: Option<Arc<Node>>,
    event: Arc<AtomicU8>,
    turn: AtomicU8,
    /// Since when looks have found that it was rung and did not come.
    idle_since: AtomicU64,
    /// Up to which return of the connection it is known to watch what is there.
    reconnects: AtomicU64,
}

impl PredecessorWatch {
    /// Over a node that waits for one of `watch` to go; `alone` when only one is in its way.
    /// `None` when one of them has gone already.
    pub(crate) async fn start(
        claim: &Arc<Claim>,
        node: &Arc<Node>,
        lock: &str,
        watch: Vec<String>,
        is_sole: bool,
    ) -> ZkResult<Option<PredecessorWatch>> {
        let session = &node.session;
        // Before the watches: what is told after a return of the connection is told in no order.
        let states = session.states();
        node.introduce();
        let paths: Vec<_> = watch.iter().map(|name| below(lock, name)).collect();
        let watches = match node.reservation.watch(&paths) {
            Some(watched) => watch_each(session, &paths, watched).await?,
            None => watch_all(session, lock, &watch).await?,
        };
        let Some(events) = watches else { return Ok(None) };
        let event = Arc::new(AtomicU8::new(PENDING));
        let reconnects = AtomicU64::new(session.reconnects());
        let watching =
            watch_over(Arc::downgrade(claim), node.clone(), events, states, event.clone());
        Ok(Some(PredecessorWatch {
            _armed: claim.wake_when(watching),
            ahead: known_predecessor(session, claim.mode(), &paths),
            watched: watch,
            is_sole,
            event,
            turn: AtomicU8::new(OPEN),
            idle_since: AtomicU64::new(Moment::NEVER.as_nanos()),
            reconnects,
        }))
    }

    /// Whether nothing can be in the way any more: the only node that was has gone, or one that had
    /// nothing ahead of it, and the own one is known to be there.
    pub(crate) fn is_cleared(&self, node: &Node) -> bool {
        let was_last = self.is_sole || self.ahead.as_ref().is_some_and(|ahead| ahead.is_first());
        was_last && self.event.load(Ordering::Acquire) == ONE_DELETED && node.is_watched()
    }

    /// Whether it still waits for just these.
    pub(crate) fn waits_for(&self, watch: &[&str]) -> bool {
        self.event.load(Ordering::Acquire) == PENDING && self.watched == watch
    }

    /// An attempt looks after it.
    pub(crate) fn note_attempt(&self) {
        self.idle_since.store(Moment::NEVER.as_nanos(), Ordering::Release);
    }

    /// Takes the turn that may have come. `false` when it was passed over before.
    pub(crate) fn take_turn(&self) -> bool {
        let taken = self.turn.compare_exchange(OPEN, TAKEN, Ordering::AcqRel, Ordering::Acquire);
        taken != Err(PASSED_OVER)
    }

    pub(crate) fn is_passed_over(&self) -> bool {
        self.turn.load(Ordering::Acquire) == PASSED_OVER
    }

    /// Whether it was rung [`PATIENCE`] ago and nobody came: a future that is not polled must not
    /// keep a lock that it does not use. True once, and no attempt has it from then on.
    pub(crate) fn pass_over(&self, now: Moment) -> bool {
        if self.event.load(Ordering::Acquire) == PENDING {
            return false;
        }
        let since = self.idle_since.fetch_min(now.as_nanos(), Ordering::AcqRel).min(now.as_nanos());
        now.duration_since(Moment::from_nanos(since)) >= TURN_TIMEOUT
            && self
                .turn
                .compare_exchange(OPEN, PASSED_OVER, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
    }

    pub(crate) fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Acquire)
    }

    pub(crate) fn set_reconnects(&self, reconnects: u64) {
        self.reconnects.store(reconnects, Ordering::Release);
    }
}

/// The ends of the nodes that a claim waits for.
type Events = Vec<BoxFuture<'static, EventType>>;

/// Watches each of these nodes; `None` when one of them has gone already.
async fn watch_each(
    session: &Session,
    paths: &[String],
    watched: WatchedPaths,
) -> ZkResult<Option<Events>> {
    let client = session.client()?;
    let watched = Arc::new(watched);
    let requests = paths.iter().map(|path| session.read(client.get_and_watch_data(path)));
    let mut events = Vec::new();
    for answer in join_all(requests).await {
        match answer {
            Ok((_, _, watcher)) => events.push(event_of(watcher, Some(watched.clone()))),
            Err(error) if error.is_no_node() => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(events))
}

/// Watches the list of the lock's nodes, by one watch whose path is shorter than that of any of
/// them: for a claim that waits for more nodes than the session has room to watch. `None` when one
/// of `names` has gone already.
async fn watch_all(session: &Session, lock: &str, names: &[String]) -> ZkResult<Option<Events>> {
    let client = session.client()?;
    match session.read(client.list_and_watch_children(lock)).await {
        Ok((listed, watcher)) => {
            let listed: HashSet<String> = listed.into_iter().collect();
            let are_there = names.iter().all(|name| listed.contains(name));
            Ok(are_there.then(|| vec![event_of(watcher, None)]))
        }
        Err(error) if error.is_no_node() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Keeps `watched` reserved for as long as the watch lasts.
fn event_of(
    watcher: OneshotWatcher,
    watched: Option<Arc<WatchedPaths>>,
) -> BoxFuture<'static, EventType> {
    let changed = watcher.changed();
    changed.map(move |event| (event.event_type, drop(watched)).0).boxed()
}

/// The one node in the way of a claim in `mode`, if it is known, and if nothing behind it can be in
/// the way: permits may be, for permits.
fn known_predecessor(session: &Session, mode: Mode, paths: &[String]) -> Option<Arc<Node>> {
    match (mode, paths) {
        (Mode::Exclusive | Mode::Shared, [path]) => session.waiting().get(path)?.upgrade(),
        _ => None,
    }
}

/// Ends when the own node is gone; rings when something in the way is.
async fn watch_over(
    claim: Weak<Claim>,
    node: Arc<Node>,
    ahead: Events,
    mut states: StateWatcher,
    event: Arc<AtomicU8>,
) {
    let mut own = pin!(async {
        tokio::time::sleep(WATCH_DELAY).await;
        until_deleted(&node.session, &node.path, |watched| node.set_watched(watched)).await;
        node.set_gone();
    });
    let first_event = tokio::select! {
        biased;
        () = &mut own => return,
        (first_event, ..) = select_all(ahead) => first_event,
    };
    // The end of the own node was told before, if it was; look whether it has been.
    if is_ready(own.as_mut()).await {
        return;
    }
    let is_in_order = !is_ready(pin!(states.changed())).await;
    let what = match first_event == EventType::NodeDeleted && is_in_order {
        true => ONE_DELETED,
        false => CHECK_AGAIN,
    };
    event.store(what, Ordering::Release);
    if let Some(claim) = claim.upgrade() {
        claim.wake();
    }
    own.await;
}

async fn is_ready<T>(mut future: Pin<&mut impl Future<Output = T>>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}
