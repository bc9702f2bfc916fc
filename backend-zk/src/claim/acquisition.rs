//! One claim: the state of its node, the watch while it waits, and the steps that change both.

use std::collections::HashSet;
use std::sync::{Arc, MutexGuard};

use fencelock_core::sync::Mutex;
use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, Error, IfBusy, Mode, Moment, ReleaseOutcome, Residue,
    Result,
};

use crate::claim::held_node_watch;
use crate::claim::predecessor_watch::PredecessorWatch;
use crate::error::{Certainty, RequestError, unsettled};
use crate::nodes::node::{self, Created, Node};
use crate::queue::names;
use crate::queue::order::{Listing, Standing};
use crate::queue::path::below;
use crate::sessions::budget::Reservation;
use crate::sessions::pool::Pool;
use crate::sessions::session::Session;

/// How often the lock's nodes may change during one attempt before it fails.
const MAX_ROUNDS: usize = 16;

pub(crate) struct ZkAcquisition {
    pool: Arc<Pool>,
    claim: Arc<Claim>,
    /// The path of the lock, unless its name is invalid.
    lock: Result<String>,
    state: Mutex<ClaimState>,
}

#[derive(Default)]
struct ClaimState {
    // Dropped in this order: the watches before what was reserved for them.
    watch: Option<PredecessorWatch>,
    node: NodeState,
}

#[derive(Clone, Default)]
enum NodeState {
    #[default]
    Absent,
    /// A node was requested in this session, and it is unknown whether it was created.
    InDoubt(Arc<Session>, Arc<Reservation>),
    Created(Arc<Node>),
}

impl NodeState {
    fn session(&self) -> Option<&Arc<Session>> {
        match self {
            NodeState::Absent => None,
            NodeState::InDoubt(session, _) => Some(session),
            NodeState::Created(node) => Some(&node.session),
        }
    }
}

impl ZkAcquisition {
    pub(crate) fn new(pool: Arc<Pool>, claim: Arc<Claim>) -> ZkAcquisition {
        let lock = pool.path_of(claim.name());
        ZkAcquisition { pool, claim, lock, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, ClaimState> {
        self.state.lock()
    }

    /// The path of the lock.
    pub(crate) fn lock(&self) -> Result<&str> {
        match &self.lock {
            Ok(lock) => Ok(lock),
            Err(error) => Err(error.clone()),
        }
    }

    /// The session that has, or may have, the claim's node; `None` once either is known to be gone.
    pub(crate) fn live_session(&self) -> Option<Arc<Session>> {
        let state = self.state();
        if let NodeState::Created(node) = &state.node
            && node.is_gone()
        {
            return None;
        }
        state.node.session().filter(|session| !session.is_over()).cloned()
    }

    /// The state of the node. A node is gone with its session, and is never adopted by another.
    fn node_state(&self) -> NodeState {
        let state = self.state().node.clone();
        let is_gone = match &state {
            NodeState::Absent => false,
            NodeState::InDoubt(session, _) => session.is_over(),
            NodeState::Created(node) => node.is_gone() || node.session.is_over(),
        };
        if is_gone {
            self.clear();
            return NodeState::Absent;
        }
        state
    }

    /// Drops the node and the watch, when nothing of the claim is left on the servers.
    fn clear(&self) {
        // Dropped outside of the lock: dropping a watch sends requests.
        let _before = std::mem::take(&mut *self.state());
    }

    fn set_node_state(&self, node: NodeState) {
        self.state().node = node;
    }

    fn set_watch(&self, watch: PredecessorWatch) {
        // Dropped outside of the lock: dropping a watch sends requests.
        let _before = self.state().watch.replace(watch);
    }

    /// Creates a node. `None`: the attempt has to check again.
    async fn enqueue(&self, lock: &str) -> Result<Option<AttemptOutcome>> {
        let claim = &self.claim;
        let prefix = names::prefix(claim);
        let longest = below(lock, &prefix).len() + names::LONGEST_SEQUENCE;
        let may_wait = claim.if_busy() == IfBusy::Queue;
        let (session, reservation) = self.pool.reserve(claim, longest, may_wait).await?;
        if !may_wait {
            let mut listing = node::list(&session, lock).await?;
            // A server may not know yet what another one has confirmed: a lock that was released
            // before this attempt began must not be reported as busy.
            if !listing.is_free(claim.mode()) && self.pool.may_lag() {
                listing = node::list_in_sync(&session, lock).await?;
            }
            if !listing.is_free(claim.mode()) {
                return Ok(Some(AttemptOutcome::Busy { rest: Residue::Nothing }));
            }
        }
        let access = &self.pool.access;
        // Before the request is sent: from here on a release has to look for the node.
        self.set_node_state(NodeState::InDoubt(session.clone(), reservation.clone()));
        let label = claim.label().as_str();
        let created = node::create(&session, &reservation, access, lock, &prefix, label).await;
        let Created { node, listing } = match created {
            Ok(created) => created,
            Err(error) => {
                self.clear();
                return Err(error.into());
            }
        };
        let node = match node {
            Ok(node) => Arc::new(node),
            Err(error) => {
                if !node::may_have_created(&error) {
                    self.clear();
                }
                if error.is_no_node() {
                    node::create_lock(&session, access, lock).await?;
                    return Ok(None);
                }
                return Err(error.into());
            }
        };
        self.set_node_state(NodeState::Created(node.clone()));
        let listing = listing?;
        self.act_on_standing(&node, lock, &listing).await
    }

    /// Finds out whether a node in doubt was created.
    async fn resolve(
        &self,
        session: &Arc<Session>,
        reservation: &Arc<Reservation>,
        lock: &str,
    ) -> Result<Option<Arc<Node>>> {
        let owner = self.claim.owner().reveal();
        let found = node::find(session, reservation, lock, owner).await?.map(Arc::new);
        match &found {
            Some(node) => self.set_node_state(NodeState::Created(node.clone())),
            None => self.clear(),
        }
        Ok(found)
    }

    /// Checks whether it is the turn of `node`, which has waited or may be granted already.
    async fn check_turn(&self, node: &Arc<Node>, lock: &str) -> Result<Option<AttemptOutcome>> {
        let is_passed_over = self.state().watch.as_ref().is_some_and(|watch| {
            watch.note_attempt();
            watch.is_passed_over()
        });
        if is_passed_over {
            node.delete().await?;
            self.clear();
            return Ok(None);
        }
        let is_cleared = self.state().watch.as_ref().is_some_and(|watch| watch.is_cleared(node));
        if is_cleared {
            return self.grant(node).await;
        }
        let listing = node::list(&node.session, lock).await?;
        self.act_on_standing(node, lock, &listing).await
    }

    /// Grants, waits or gives up by where `node` stands. `None`: the attempt has to check again.
    async fn act_on_standing(
        &self,
        node: &Arc<Node>,
        lock: &str,
        listing: &Listing,
    ) -> Result<Option<AttemptOutcome>> {
        if names::is_exhausted(node.parsed.sequence) {
            return self.restart_numbering(node, lock).await;
        }
        match listing.standing(&node.name, node.parsed) {
            Standing::Free => self.grant(node).await,
            // Another client has deleted it.
            Standing::Missing => {
                node.set_gone();
                Ok(None)
            }
            Standing::Blocked { .. } if self.claim.if_busy() == IfBusy::Refuse => {
                Ok(Some(AttemptOutcome::Busy { rest: Residue::Perhaps }))
            }
            Standing::Blocked { by, is_sole } => {
                let waiting =
                    AttemptOutcome::Waiting { check_after: node.session.heartbeat_interval() };
                if self.state().watch.as_ref().is_some_and(|watch| watch.waits_for(&by)) {
                    return Ok(Some(waiting));
                }
                let by = by.into_iter().map(str::to_owned).collect();
                match PredecessorWatch::start(&self.claim, node, lock, by, is_sole).await? {
                    Some(watch) => {
                        self.set_watch(watch);
                        Ok(Some(waiting))
                    }
                    None => Ok(None),
                }
            }
        }
    }

    /// Deletes a node whose number other nodes may have too, and has the numbers begin again as
    /// soon as no claim is in the queue.
    async fn restart_numbering(
        &self,
        node: &Arc<Node>,
        lock: &str,
    ) -> Result<Option<AttemptOutcome>> {
        tracing::warn!(claim = ?self.claim, "the lock has no sequence numbers left");
        node.delete().await?;
        self.clear();
        if node::remove_lock(&node.session, lock).await? {
            return Ok(None);
        }
        Ok(Some(match self.claim.if_busy() {
            IfBusy::Refuse => AttemptOutcome::Busy { rest: Residue::Nothing },
            // Without a node, the next check has it attempt again.
            IfBusy::Queue => {
                AttemptOutcome::Waiting { check_after: node.session.heartbeat_interval() }
            }
        }))
    }

    /// Grants the lock. `None`: the claim was passed over just now.
    async fn grant(&self, node: &Arc<Node>) -> Result<Option<AttemptOutcome>> {
        if self.claim.mode() == Mode::Exclusive {
            node.set_first();
        }
        node.session.ensure_fresh().await?;
        let taken = self.state().watch.as_ref().map(PredecessorWatch::take_turn);
        match taken {
            Some(true) => {}
            Some(false) => return Ok(None),
            None => held_node_watch::watch_later(&self.claim, node),
        }
        // `None` in a session that was given up meanwhile, whatever it has committed last.
        let valid_until = node.session.deadline().ok_or(RequestError::SessionOver)?;
        node.reservation.stop_waiting();
        Ok(Some(AttemptOutcome::Granted { token: node.token(), valid_until }))
    }

    /// Gives up a place in the queue whose turn may have come while no attempt is made. The claim
    /// queues again at its next attempt.
    pub(crate) async fn pass_over(&self, now: Moment) {
        let node = match &*self.state() {
            ClaimState { node: NodeState::Created(node), watch: Some(watch) }
                if watch.pass_over(now) =>
            {
                node.clone()
            }
            _ => return,
        };
        tracing::debug!(claim = ?self.claim, "the claim was woken and made no attempt: passed over");
        // If that fails, the next attempt or the release deletes it.
        if node.delete().await.is_ok() {
            node.set_gone();
        }
    }

    /// Whether events of the watched nodes may have been missed since the last reconnect.
    pub(crate) fn may_have_missed_events(&self, session: &Session) -> bool {
        let state = self.state();
        state.watch.as_ref().is_some_and(|watch| watch.reconnects() != session.reconnects())
    }

    /// Whether the watched nodes, and the claim's own, are among `names`, which were listed after
    /// the `reconnects`-th reconnect; if so, nothing was missed up to then.
    pub(crate) fn confirm_watches(&self, names: &HashSet<&str>, reconnects: u64) -> bool {
        let state = self.state();
        let (NodeState::Created(node), Some(watch)) = (&state.node, &state.watch) else {
            return false;
        };
        let all_exist = names.contains(node.name.as_str())
            && watch.watched.iter().all(|name| names.contains(name.as_str()));
        if all_exist {
            watch.set_reconnects(reconnects);
        }
        all_exist
    }
}

impl Acquisition for ZkAcquisition {
    fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    async fn attempt(&self) -> Result<AttemptOutcome> {
        let lock = self.lock()?;
        for _ in 0..MAX_ROUNDS {
            let answer = match self.node_state() {
                NodeState::Absent => self.enqueue(lock).await?,
                NodeState::InDoubt(session, reservation) => {
                    self.resolve(&session, &reservation, lock).await.map(|_| None)?
                }
                NodeState::Created(node) => self.check_turn(&node, lock).await?,
            };
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
        Err(unsettled())
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        let state = self.state().node.clone();
        let node = match state {
            NodeState::Absent => return Ok(ReleaseOutcome::Absent),
            state if state.session().is_some_and(|session| session.is_over()) => {
                // The session's nodes are gone with it.
                self.clear();
                return Ok(ReleaseOutcome::Absent);
            }
            NodeState::InDoubt(session, reservation) => {
                match self.resolve(&session, &reservation, self.lock()?).await? {
                    Some(node) => node,
                    None => return Ok(ReleaseOutcome::Absent),
                }
            }
            NodeState::Created(node) => node,
        };
        match node.delete().await {
            // The watches are dropped only now: the deletion has removed that on the own node.
            Ok(removal) => {
                self.clear();
                Ok(removal)
            }
            Err(error) if error.certainty() == Certainty::SessionOver => {
                self.clear();
                Ok(ReleaseOutcome::Absent)
            }
            Err(error) => Err(Error::from(error)),
        }
    }
}
