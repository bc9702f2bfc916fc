//! The watches on the nodes of what is held: an end that nobody asked for is a loss, known at once.
//!
//! They are armed late and together. Most locks are given back before, and a watch costs the
//! servers more than a list, and the client a task.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fencelock_core::{BootClock, Claim, Clock, Moment};
use tokio::sync::Notify;
use zookeeper_client::EventType;

use crate::node::Node;
use crate::session::Session;

/// How long a node has been there before it is watched.
pub(crate) const WATCH_DELAY: Duration = Duration::from_millis(50);

/// What was granted a moment ago.
#[derive(Default)]
pub(crate) struct HeldNodeWatcher {
    recent: Mutex<VecDeque<Recent>>,
    filled: Notify,
}

struct Recent {
    since: Moment,
    node: Weak<Node>,
    claim: Weak<Claim>,
}

impl HeldNodeWatcher {
    fn recent(&self) -> MutexGuard<'_, VecDeque<Recent>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the node of a holder watched, if it is still wanted [`LATER`].
    pub(crate) fn schedule(&self, claim: &Arc<Claim>, node: &Arc<Node>, since: Moment) {
        let entry = Recent { since, node: Arc::downgrade(node), claim: Arc::downgrade(claim) };
        let mut recent = self.recent();
        recent.push_back(entry);
        if recent.len() == 1 {
            self.filled.notify_one();
        }
    }

    /// Arms the watches, for ever.
    pub(crate) async fn run(&self, clock: &BootClock) {
        loop {
            self.filled.notified().await;
            loop {
                tokio::time::sleep(WATCH_DELAY).await;
                let due = clock.now() - WATCH_DELAY;
                let mut recent = self.recent();
                while recent.front().is_some_and(|first| first.since <= due) {
                    recent.pop_front().as_ref().and_then(Recent::watch);
                }
                if recent.is_empty() {
                    // Not for ever as large as the largest crowd.
                    recent.shrink_to(64);
                    break;
                }
            }
        }
    }
}

impl Recent {
    /// Rings the claim when its node is gone; `None` when neither is wanted any more.
    fn watch(&self) -> Option<()> {
        let (node, claim) = (self.node.upgrade()?, self.claim.upgrade()?);
        let (session, path, held) = (node.session.clone(), node.path.clone(), self.node.clone());
        let reservation = node.reservation.clone();
        node.run(claim.wake_when(async move {
            until_deleted(&session, &path, |_| ()).await;
            // The node may have gone while it was still watched.
            drop(reservation);
            if let Some(node) = held.upgrade() {
                node.set_gone();
            }
        }));
        Some(())
    }
}

/// Watches a node to its end, or that of the session; says when it is watched, and when it is not.
pub(crate) async fn until_deleted(session: &Session, path: &str, watched: impl Fn(bool)) {
    while let Ok(client) = session.client() {
        match session.read(client.get_and_watch_data(path)).await {
            Ok((_, _, watcher)) => {
                drop(client);
                watched(true);
                if watcher.changed().await.event_type == EventType::NodeDeleted {
                    return;
                }
                // Somebody wrote into it.
                watched(false);
            }
            Err(error) if error.is_no_node() => return,
            Err(_) => {}
        }
        tokio::time::sleep(WATCH_DELAY).await;
    }
}
