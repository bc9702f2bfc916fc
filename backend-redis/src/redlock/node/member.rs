//! One node of the set: its connection, and the task that monitors it.
//!
//! No acquisition waits for that task.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fencelock_core::{Clock, Error, ErrorKind, Moment, Result};
use tokio::task::AbortHandle;

use super::monitor::{Eligibility, NodeMonitor, RECHECK, VoteRequest};
use super::pending_releases::PendingRelease;
use super::record::quarantined;
use super::view::QuorumView;
use crate::connection::{ConnectOptions, HostPort, Subscription, SupervisedConnection, Target};
use crate::protocol::identity::ClientId;
use crate::redlock::scripts::QUORUM;
use crate::server::batch::BatchingNode;
use crate::server::node::Node;

#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) host: HostPort,
    pub(crate) batches: Arc<BatchingNode>,
    monitor: Arc<NodeMonitor>,
    monitor_task: AbortHandle,
}

impl Member {
    /// Starts to connect to node `index`.
    pub(crate) fn start(
        index: usize,
        host: HostPort,
        options: &Arc<ConnectOptions>,
        client: ClientId,
        view: Arc<QuorumView>,
    ) -> Member {
        let monitor = Arc::new(NodeMonitor::new(index, host.to_string(), view));
        let subscription = Subscription { channel: Some(client), handler: Some(monitor.clone()) };
        let node = Node::start_one_of_many(Target::To(host.clone()), options.clone(), subscription);
        let batches = BatchingNode::new(node, options.runtime.clone(), &QUORUM.batch);
        let running = monitor.clone().run(batches.clone());
        let monitor_task = options.runtime.spawn(running).abort_handle();
        Member { host, batches, monitor, monitor_task }
    }

    pub(crate) fn connection(&self) -> &SupervisedConnection {
        self.batches.node().connection()
    }

    /// What to request its vote with; an error says why it is not asked.
    pub(crate) fn vote_request(&self) -> Result<VoteRequest> {
        self.connection().state()?;
        match &self.monitor.state().eligibility {
            Eligibility::Unknown => {
                let message = "its incarnation record has not been read yet";
                Err(Error::new(ErrorKind::Unreachable, message))
            }
            Eligibility::Eligible(request) => Ok(request.clone()),
            Eligibility::Quarantined(until) => {
                Err(quarantined(until.duration_since(self.monitor.view.clock.now())))
            }
            Eligibility::Excluded(error) => Err(error.clone()),
        }
    }

    /// Whether it may soon be known if the node votes.
    pub(crate) fn is_undecided(&self) -> bool {
        match self.connection().state() {
            Ok(()) => matches!(self.monitor.state().eligibility, Eligibility::Unknown),
            Err(_) => self.connection().is_starting(),
        }
    }

    /// Records that it replied.
    pub(crate) fn record_reply(&self, now: Moment) {
        self.monitor.last_reply.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Suspects that it has failed, since others have replied and it has not.
    pub(crate) fn suspect(&self, now: Moment) {
        let last_reply = Moment::from_nanos(self.monitor.last_reply.load(Ordering::Relaxed));
        if now.duration_since(last_reply) > RECHECK {
            // One check for all requests that suspect it.
            self.record_reply(now);
            self.monitor.recheck.notify_one();
        }
    }

    /// The node has another incarnation than it was asked in: it has lost its data, or was
    /// replaced. A later check may have found that already.
    pub(crate) fn incarnation_changed(&self, asked: &VoteRequest) {
        let mut state = self.monitor.state();
        let is_current = matches!(
            &state.eligibility,
            Eligibility::Eligible(request) if request.record == asked.record
        );
        if is_current {
            state.eligibility = Eligibility::Unknown;
            self.monitor.recheck.notify_one();
        }
    }

    /// Defers a release until the node can be reached again.
    pub(crate) fn defer_release(&self, release: PendingRelease) {
        self.monitor.pending.push(release);
        // It may be back already.
        self.monitor.recheck.notify_one();
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
