//! Which requests of a fan-out have been written to their connections, and which never will be.
//!
//! A node has its time to reply from then on: what waits in this process for the requests of other claims says nothing
//! about the node. And what was never written leaves nothing there that would have to be rolled back.

use std::sync::Arc;

use fencelock_core::sync::Mutex;
use tokio::sync::Notify;
use tokio::time::{Duration, Instant, sleep_until};

use crate::redlock::node_set::NodeSet;
use crate::server::batch::Ticket;

/// The requests of one fan-out.
#[derive(Debug)]
pub(crate) struct Written {
    /// A majority of the nodes.
    needed: usize,
    state: Mutex<State>,
    /// A request was written.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Each with its node, and whether it was written.
    requests: Vec<(usize, bool)>,
    /// When so many of them were as are needed.
    since: Option<Instant>,
    /// No more are, nor is one again.
    is_over: bool,
}

/// The permission to write one request.
#[derive(Debug)]
struct OfRequest(Arc<Written>, usize);

impl Ticket for OfRequest {
    fn redeem(&self) -> bool {
        let mut state = self.0.state.lock();
        let State { requests, since, is_over } = &mut *state;
        // Also of one that was refused with others, and is to be written again.
        if *is_over {
            return false;
        }
        requests[self.1].1 = true;
        let written = requests.iter().filter(|(_, written)| *written).count();
        if since.is_none() && written >= self.0.needed.min(requests.len()) {
            *since = Some(Instant::now());
            drop(state);
            self.0.changed.notify_waiters();
        }
        true
    }
}

impl Written {
    pub(crate) fn new(needed: usize) -> Arc<Written> {
        Arc::new(Written { needed, state: Mutex::default(), changed: Notify::new() })
    }

    /// The ticket of one more request, to `node`.
    pub(crate) fn ticket(self: &Arc<Self>, node: usize) -> Arc<dyn Ticket> {
        let mut state = self.state.lock();
        state.requests.push((node, false));
        Arc::new(OfRequest(self.clone(), state.requests.len() - 1))
    }

    /// The nodes to which requests were written.
    pub(crate) fn nodes(&self) -> NodeSet {
        let state = self.state.lock();
        NodeSet::of(state.requests.iter().filter(|(_, written)| *written).map(|(node, _)| *node))
    }

    /// From now on no more is written. The nodes to which requests were.
    pub(crate) fn end(&self) -> NodeSet {
        self.state.lock().is_over = true;
        self.nodes()
    }

    /// Completes `limit` after a majority of the requests was written, but not before `limit` after `asked`.
    pub(crate) async fn overdue(&self, asked: Instant, limit: Duration) {
        loop {
            let changed = self.changed.notified();
            let since = self.state.lock().since;
            if let Some(since) = since {
                return sleep_until(since.max(asked) + limit).await;
            }
            changed.await;
        }
    }
}
