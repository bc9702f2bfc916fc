//! What the control side and the connections of one proxy share.
//!
//! Faults are read at the proxy's exit, when bytes are about to be passed on, so that a switch
//! also reaches what is still on its way. Switching is a write under the lock that every decision
//! to pass or swallow reads under: after a switch has returned, no byte goes by the old rules.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use fencelock_core::BootClock;
use tokio::sync::{mpsc, watch};

use super::framing::Framing;
use super::kinds::{AfterDrop, Close, Direction, Item};
use super::stats::{Stats, Traffic};

#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    pub(super) delay: [Duration; 2],
    /// In each direction, besides any delay; stays when the proxy is healed.
    pub(super) distance: Duration,
    /// Bytes a second, for each connection; 0 for no limit.
    pub(super) rate: [usize; 2],
    pub(super) path: [Path; 2],
    /// How often the proxy was healed: ends what was switched on for single connections.
    pub(super) heals: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Path {
    #[default]
    Open,
    Stalled,
    BlackHole,
}

/// The faults that strike once.
#[derive(Default)]
pub(super) struct Armed {
    pub(super) drop: Option<DropReply>,
    pub(super) mangle: Option<Mangle>,
    pub(super) tear: bool,
}

pub(super) type Mangle = Box<dyn FnOnce(&mut Vec<u8>) + Send>;

impl Armed {
    /// Whether the reply to this request is the one to be dropped.
    pub(super) fn doom(&mut self, request: &[u8]) -> Option<AfterDrop> {
        let drop = self.drop.as_mut()?;
        if !drop.matching.as_ref().is_none_or(|matching| matching(request)) {
            return None;
        }
        drop.to_go = drop.to_go.saturating_sub(1);
        if drop.to_go > 0 {
            return None;
        }
        self.drop.take().map(|drop| drop.then)
    }
}

type Matching = Box<dyn Fn(&[u8]) -> bool + Send>;

/// Which reply [`Proxy::drop_reply`](super::Proxy::drop_reply) swallows, and what follows.
pub struct DropReply {
    pub(super) to_go: u64,
    matching: Option<Matching>,
    then: AfterDrop,
}

impl DropReply {
    /// The reply to the first request from now on.
    #[must_use]
    pub fn first(then: AfterDrop) -> Self {
        Self::nth(1, then)
    }

    /// The reply to the `n`-th request from now on, where 1 is the first.
    #[must_use]
    pub fn nth(n: u64, then: AfterDrop) -> Self {
        Self { to_go: n, matching: None, then }
    }

    /// Counts only the requests whose bytes satisfy this, so that other traffic of the client
    /// does not move the target. It is given the whole request, or its first MiB.
    #[must_use]
    pub fn matching(mut self, wanted: impl Fn(&[u8]) -> bool + Send + 'static) -> Self {
        self.matching = Some(Box::new(wanted));
        self
    }
}

impl fmt::Debug for DropReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DropReply")
            .field("to_go", &self.to_go)
            .field("then", &self.then)
            .finish_non_exhaustive()
    }
}

/// One connection, as the control side sees it.
pub(super) struct Link {
    pub(super) id: u64,
    /// Asks the connection to end.
    pub(super) end: watch::Sender<Option<Close>>,
    /// The queue towards the client, for injected bytes.
    pub(super) to_client: mpsc::UnboundedSender<Item>,
    /// Whether bytes (or the end) of a direction were swallowed. Such a stream must not continue.
    pub(super) torn: [AtomicBool; 2],
    /// A black hole for this connection alone, until the next heal: `heals + 1`, or 0 for none.
    pub(super) cut_off: AtomicU64,
    /// The requests without a reply so far; some of them are doomed to get none.
    pub(super) outstanding: Mutex<VecDeque<Option<AfterDrop>>>,
    /// The number of directions that have come to their regular end.
    pub(super) finished: AtomicUsize,
}

impl Link {
    pub(super) fn tear(&self, direction: Direction) {
        self.torn[direction as usize].store(true, Ordering::SeqCst);
    }

    pub(super) fn is_torn(&self) -> bool {
        self.torn.iter().any(|torn| torn.load(Ordering::SeqCst))
    }
}

pub(super) struct Shared {
    upstream: Mutex<String>,
    pub(super) framing: Option<Framing>,
    /// Where the servers of 127.0.0.1 are, as clients see it.
    pub(super) host: Option<Ipv4Addr>,
    pub(super) settings: watch::Sender<Settings>,
    pub(super) stats: watch::Sender<Stats>,
    pub(super) armed: Mutex<Armed>,
    /// With a distance: tokio's timer wakes up at whole milliseconds, and a round trip within a
    /// data centre is shorter.
    pub(super) clock: OnceLock<BootClock>,
    links: Mutex<HashMap<u64, Arc<Link>>>,
}

impl Shared {
    pub(super) fn new(
        upstream: String,
        framing: Option<Framing>,
        host: Option<Ipv4Addr>,
    ) -> Arc<Self> {
        Arc::new(Self {
            upstream: Mutex::new(upstream),
            framing,
            host,
            settings: watch::Sender::new(Settings::default()),
            stats: watch::Sender::new(Stats::default()),
            armed: Mutex::default(),
            clock: OnceLock::new(),
            links: Mutex::default(),
        })
    }

    pub(super) fn upstream(&self) -> String {
        lock(&self.upstream).clone()
    }

    pub(super) fn lead_to(&self, upstream: String) {
        *lock(&self.upstream) = upstream;
    }

    pub(super) fn links(&self) -> Vec<Arc<Link>> {
        lock(&self.links).values().cloned().collect()
    }

    pub(super) fn enter(self: &Arc<Self>, link: &Arc<Link>) -> Registered {
        lock(&self.links).insert(link.id, Arc::clone(link));
        self.stats.send_modify(|stats| stats.accepted += 1);
        Registered { shared: Arc::clone(self), id: link.id, open: false }
    }

    /// Waits until all of these connections have ended.
    pub(super) async fn gone(&self, ids: &[u64]) {
        // The sender is part of `self`: waiting cannot fail.
        let _ = self
            .stats
            .subscribe()
            .wait_for(|_| {
                let links = lock(&self.links);
                !ids.iter().any(|id| links.contains_key(id))
            })
            .await;
    }

    pub(super) fn count(&self, direction: Direction, count: impl FnOnce(&mut Traffic)) {
        self.stats.send_modify(|stats| {
            count(match direction {
                Direction::ToServer => &mut stats.to_server,
                Direction::ToClient => &mut stats.to_client,
            });
        });
    }
}

/// A connection's place in the register. Dropped last, once its sockets are closed.
pub(super) struct Registered {
    shared: Arc<Shared>,
    id: u64,
    open: bool,
}

impl Registered {
    pub(super) fn opened(&mut self) {
        self.open = true;
        self.shared.stats.send_modify(|stats| stats.open += 1);
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        lock(&self.shared.links).remove(&self.id);
        self.shared.stats.send_modify(|stats| stats.open -= u64::from(self.open));
    }
}

/// A panic in a user's closure must not turn into one in every later call.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
