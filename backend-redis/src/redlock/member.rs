//! One of the nodes: its connection, and the task that looks after it.
//!
//! That reads the record and the clock when a connection is new, now and then, and when somebody
//! doubts the node. Nobody who wants a lock waits for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fencelock_core::{Clock, Error, ErrorKind, Moment, Result};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::debts::{PendingRelease, PendingReleases};
use super::incarnation::RestartTracker;
use super::monitor::{Eligibility, LOOK_AGAIN, NodeMonitor, NodeState, VoteRequest, quarantined};
use super::view::QuorumView;
use crate::connection::{ConnectOptions, HostPort, Target};
use crate::connection::{Subscription, SupervisedConnection};
use crate::protocol::identity::ClientId;
use crate::protocol::script::QUORUM;
use crate::server::batch::BatchingNode;
use crate::server::node::Node;

/// One node.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) host: HostPort,
    pub(crate) batches: Arc<BatchingNode>,
    monitor: Arc<NodeMonitor>,
    monitor_task: AbortHandle,
}

impl Member {
    /// Begins to connect to node `index`.
    pub(crate) fn start(
        index: usize,
        host: HostPort,
        options: &Arc<ConnectOptions>,
        client: ClientId,
        view: Arc<QuorumView>,
    ) -> Member {
        let known = NodeState {
            place: Eligibility::Unknown,
            run_id: String::new(),
            client_ids: Vec::new(),
            restarts: RestartTracker::default(),
        };
        let monitor = Arc::new(NodeMonitor {
            index,
            name: host.to_string(),
            view,
            known: Mutex::new(known),
            look: Notify::new(),
            debts: PendingReleases::default(),
            heard: AtomicU64::new(0),
        });
        let subscription = Subscription { channel: Some(client), handler: Some(monitor.clone()) };
        let node = Node::start_one_of_many(Target::To(host.clone()), options.clone(), subscription);
        let batches = BatchingNode::new(node, options.runtime.clone(), &QUORUM.batch);
        let monitoring = mind(monitor.clone(), batches.clone());
        let monitor_task = options.runtime.spawn(monitoring).abort_handle();
        Member { host, batches, monitor, monitor_task }
    }

    pub(crate) fn connection(&self) -> &SupervisedConnection {
        self.batches.node().connection()
    }

    /// What to ask it for a vote with; an error says why it is not asked.
    pub(crate) fn vote_request(&self) -> Result<VoteRequest> {
        self.connection().state()?;
        match &self.monitor.known().place {
            Eligibility::Unknown => {
                Err(Error::new(ErrorKind::Unreachable, "its record is not known yet"))
            }
            Eligibility::Eligible(vote_request) => Ok(vote_request.clone()),
            Eligibility::Quarantined(until) => {
                Err(quarantined(until.duration_since(self.monitor.view.clock.now())))
            }
            Eligibility::Excluded(error) => Err(error.clone()),
        }
    }

    /// Whether it is about to say if it may vote.
    pub(crate) fn is_undecided(&self) -> bool {
        match self.connection().state() {
            Ok(()) => matches!(self.monitor.known().place, Eligibility::Unknown),
            Err(_) => self.connection().is_starting(),
        }
    }

    /// It answered.
    pub(crate) fn heard(&self, now: Moment) {
        self.monitor.heard.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Others have answered, and it has not: has it fallen silent?
    pub(crate) fn suspect(&self, now: Moment) {
        let heard = Moment::from_nanos(self.monitor.heard.load(Ordering::Relaxed));
        if now.duration_since(heard) > LOOK_AGAIN {
            // Not again for each of a crowd.
            self.heard(now);
            self.monitor.look.notify_one();
        }
    }

    /// It says that it is not the node that was known: it has lost its data, or was replaced.
    /// A later look may have found that out already.
    pub(crate) fn incarnation_changed(&self, asked: &VoteRequest) {
        let mut known = self.monitor.known();
        if matches!(&known.place, Eligibility::Eligible(vote_request) if vote_request.record == asked.record)
        {
            known.place = Eligibility::Unknown;
            self.monitor.look.notify_one();
        }
    }

    /// Takes over what is to be freed there once there is a connection again.
    pub(crate) fn owe(&self, debt: PendingRelease) {
        self.monitor.debts.push(debt);
        // It may have come back meanwhile.
        self.monitor.look.notify_one();
    }

    pub(crate) fn close(&self) {
        self.monitor_task.abort();
        self.batches.node().close();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.close();
    }
}

/// Looks at a node again and again.
async fn mind(monitor: Arc<NodeMonitor>, batches: Arc<BatchingNode>) {
    let connection = batches.node().connection();
    loop {
        if connection.started().await.is_err() {
            monitor.view.publish_update();
            if connection.up().await.is_err() {
                return;
            }
        }
        monitor.debts.pay(&batches, monitor.view.clock.now()).await;
        let next = match monitor.look(connection).await {
            Ok(next) => next,
            Err(error) => {
                tracing::debug!(%error, "a node could not be looked at");
                LOOK_AGAIN
            }
        };
        monitor.view.publish_update();
        // Woken by a new connection, or by doubts.
        let _ = tokio::time::timeout(next, monitor.look.notified()).await;
    }
}
