//! One of the nodes: its connection, and the task that looks after it.
//!
//! That reads the marker and the clock when a connection is new, now and then, and when somebody
//! doubts the node. Nobody who wants a lock waits for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fencelock_core::{Clock, Error, ErrorKind, Moment, Result};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::circle::Circle;
use super::debts::{Debt, Debts};
use super::marker::Acquaintance;
use super::sight::{Ballot, Known, LOOK_AGAIN, Place, Sight, young};
use crate::server::batch::BatchingNode;
use crate::protocol::identity::ClientId;
use crate::connection::{Subscription, SupervisedConnection};
use crate::server::node::Node;
use crate::connection::{ConnectOptions, HostPort, Target};
use crate::protocol::script::QUORUM;

/// One node.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) host: HostPort,
    pub(crate) batches: Arc<BatchingNode>,
    sight: Arc<Sight>,
    minder: AbortHandle,
}

impl Member {
    /// Begins to connect to node `index`.
    pub(crate) fn start(
        index: usize,
        host: HostPort,
        options: &Arc<ConnectOptions>,
        client: ClientId,
        circle: Arc<Circle>,
    ) -> Member {
        let known = Known {
            place: Place::Unseen,
            run_id: String::new(),
            client_ids: Vec::new(),
            acquaintance: Acquaintance::default(),
        };
        let sight = Arc::new(Sight {
            index,
            name: host.to_string(),
            circle,
            known: Mutex::new(known),
            look: Notify::new(),
            debts: Debts::default(),
            heard: AtomicU64::new(0),
        });
        let subscription = Subscription { channel: Some(client), handler: Some(sight.clone()) };
        let node = Node::start_one_of_many(Target::To(host.clone()), options.clone(), subscription);
        let batches = BatchingNode::new(node, options.runtime.clone(), &QUORUM.batch);
        let minding = mind(sight.clone(), batches.clone());
        let minder = options.runtime.spawn(minding).abort_handle();
        Member { host, batches, sight, minder }
    }

    pub(crate) fn connection(&self) -> &SupervisedConnection {
        self.batches.node().connection()
    }

    /// What to ask it for a vote with; an error says why it is not asked.
    pub(crate) fn ballot(&self) -> Result<Ballot> {
        self.connection().state()?;
        match &self.sight.known().place {
            Place::Unseen => Err(Error::new(ErrorKind::Unreachable, "its marker is not known yet")),
            Place::Votes(ballot) => Ok(ballot.clone()),
            Place::Young(until) => Err(young(until.since(self.sight.circle.clock.now()))),
            Place::Out(error) => Err(error.clone()),
        }
    }

    /// Whether it is about to say if it may vote.
    pub(crate) fn is_being_met(&self) -> bool {
        match self.connection().state() {
            Ok(()) => matches!(self.sight.known().place, Place::Unseen),
            Err(_) => self.connection().is_starting(),
        }
    }

    /// It answered.
    pub(crate) fn heard(&self, now: Moment) {
        self.sight.heard.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Others have answered, and it has not: has it fallen silent?
    pub(crate) fn doubt(&self, now: Moment) {
        let heard = Moment::from_nanos(self.sight.heard.load(Ordering::Relaxed));
        if now.since(heard) > LOOK_AGAIN {
            // Not again for each of a crowd.
            self.heard(now);
            self.sight.look.notify_one();
        }
    }

    /// It says that it is not the node that was known: it has lost its data, or was replaced.
    /// A later look may have found that out already.
    pub(crate) fn is_not(&self, asked: &Ballot) {
        let mut known = self.sight.known();
        if matches!(&known.place, Place::Votes(ballot) if ballot.marker == asked.marker) {
            known.place = Place::Unseen;
            self.sight.look.notify_one();
        }
    }

    /// Takes over what is to be freed there once there is a connection again.
    pub(crate) fn owe(&self, debt: Debt) {
        self.sight.debts.push(debt);
        // It may have come back meanwhile.
        self.sight.look.notify_one();
    }

    pub(crate) fn close(&self) {
        self.minder.abort();
        self.batches.node().close();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.close();
    }
}

/// Looks at a node again and again.
async fn mind(sight: Arc<Sight>, batches: Arc<BatchingNode>) {
    let connection = batches.node().connection();
    loop {
        if connection.started().await.is_err() {
            sight.circle.tell_news();
            if connection.up().await.is_err() {
                return;
            }
        }
        sight.debts.pay(&batches, sight.circle.clock.now()).await;
        let next = match sight.look(connection).await {
            Ok(next) => next,
            Err(error) => {
                tracing::debug!(%error, "a node could not be looked at");
                LOOK_AGAIN
            }
        };
        sight.circle.tell_news();
        // Woken by a new connection, or by doubts.
        let _ = tokio::time::timeout(next, sight.look.notified()).await;
    }
}
