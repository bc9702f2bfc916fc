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
use crate::batch::Batches;
use crate::identity::Process;
use crate::link::{Audience, Link};
use crate::node::Node;
use crate::route::{Caller, Host, Route};
use crate::script::QUORUM;

/// One node.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) host: Host,
    pub(crate) batches: Arc<Batches>,
    sight: Arc<Sight>,
    minder: AbortHandle,
}

impl Member {
    /// Begins to connect to node `index`.
    pub(crate) fn start(
        index: usize,
        host: Host,
        caller: &Arc<Caller>,
        process: Process,
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
        let audience = Audience { channel: Some(process), ear: Some(sight.clone()) };
        let node = Node::start_one_of_many(Route::To(host.clone()), caller.clone(), audience);
        let batches = Batches::new(node, caller.runtime.clone(), &QUORUM.batch);
        let minding = mind(sight.clone(), batches.clone());
        let minder = caller.runtime.spawn(minding).abort_handle();
        Member { host, batches, sight, minder }
    }

    pub(crate) fn link(&self) -> &Link {
        self.batches.node().link()
    }

    /// What to ask it for a vote with; an error says why it is not asked.
    pub(crate) fn ballot(&self) -> Result<Ballot> {
        self.link().state()?;
        match &self.sight.known().place {
            Place::Unseen => Err(Error::new(ErrorKind::Unreachable, "its marker is not known yet")),
            Place::Votes(ballot) => Ok(ballot.clone()),
            Place::Young(until) => Err(young(until.duration_since(self.sight.circle.clock.now()))),
            Place::Out(error) => Err(error.clone()),
        }
    }

    /// Whether it is about to say if it may vote.
    pub(crate) fn is_being_met(&self) -> bool {
        match self.link().state() {
            Ok(()) => matches!(self.sight.known().place, Place::Unseen),
            Err(_) => self.link().is_starting(),
        }
    }

    /// It answered.
    pub(crate) fn heard(&self, now: Moment) {
        self.sight.heard.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Others have answered, and it has not: has it fallen silent?
    pub(crate) fn doubt(&self, now: Moment) {
        let heard = Moment::from_nanos(self.sight.heard.load(Ordering::Relaxed));
        if now.duration_since(heard) > LOOK_AGAIN {
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
async fn mind(sight: Arc<Sight>, batches: Arc<Batches>) {
    let link = batches.node().link();
    loop {
        if link.started().await.is_err() {
            sight.circle.tell_news();
            if link.up().await.is_err() {
                return;
            }
        }
        sight.debts.pay(&batches, sight.circle.clock.now()).await;
        let next = match sight.look(link).await {
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
