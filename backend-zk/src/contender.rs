//! One claim's seat: where its node is, what it waits for, and the steps that change that.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, Error, IfBusy, Mode, Moment, ReleaseOutcome, Residue,
    Result,
};

use crate::budget::Reservation;
use crate::error::{Certainty, RequestError, unsettled};
use crate::names;
use crate::node::{self, Made, Node};
use crate::order::{Listing, Standing};
use crate::path::below;
use crate::pool::Pool;
use crate::session::Session;
use crate::vigil::PredecessorWatch;

/// How often the lock's nodes may change under one attempt before it is put off.
const MAX_ROUNDS: usize = 16;

pub(crate) struct ZkAcquisition {
    pool: Arc<Pool>,
    claim: Arc<Claim>,
    /// The path of the lock, unless it has none.
    lock: Result<String>,
    state: Mutex<ClaimState>,
}

#[derive(Default)]
struct ClaimState {
    // In this order they end: the watches before what was reserved for them.
    watch: Option<PredecessorWatch>,
    node_state: NodeState,
}

#[derive(Clone, Default)]
enum NodeState {
    #[default]
    Absent,
    /// A node was asked for in the session of this reservation, and it is not known whether it was
    /// made.
    InDoubt(Arc<Reservation>),
    Created(Arc<Node>),
}

impl NodeState {
    fn session(&self) -> Option<&Arc<Session>> {
        match self {
            NodeState::Absent => None,
            NodeState::InDoubt(reservation) => Some(reservation.session()),
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> Result<&str> {
        match &self.lock {
            Ok(lock) => Ok(lock),
            Err(error) => Err(error.clone()),
        }
    }

    /// The session that has, or may have, its node; none once either is known to be gone.
    pub(crate) fn live_session(&self) -> Option<Arc<Session>> {
        let state = self.state();
        if let NodeState::Created(node) = &state.node_state
            && node.is_gone()
        {
            return None;
        }
        state.node_state.session().filter(|session| !session.is_over()).cloned()
    }

    /// Where it is. What a session had that is over is gone with it, and is never taken over.
    fn node_state(&self) -> NodeState {
        let node_state = self.state().node_state.clone();
        let is_gone = match &node_state {
            NodeState::Absent => false,
            NodeState::InDoubt(reservation) => reservation.session().is_over(),
            NodeState::Created(node) => node.is_gone() || node.session.is_over(),
        };
        if is_gone {
            self.clear();
            return NodeState::Absent;
        }
        node_state
    }

    /// Nothing is left of it.
    fn clear(&self) {
        // Outside of the lock: its end sends requests.
        let _before = std::mem::take(&mut *self.state());
    }

    fn set_node_state(&self, node_state: NodeState) {
        self.state().node_state = node_state;
    }

    fn set_watch(&self, watch: PredecessorWatch) {
        // Outside of the lock: its end sends requests.
        let _before = self.state().watch.replace(watch);
    }

    /// Makes a node. `None`: look again.
    async fn enqueue(&self, lock: &str) -> Result<Option<AttemptOutcome>> {
        let claim = &self.claim;
        let prefix = names::prefix(claim);
        let longest = below(lock, &prefix).len() + names::LONGEST_SEQUENCE;
        let may_wait = claim.if_busy() == IfBusy::Queue;
        let reservation = self.pool.reserve(claim, longest, may_wait).await?;
        let session = reservation.session();
        if !may_wait {
            let mut names = node::list(session, lock).await?;
            // A server may not have heard yet of what another one has confirmed: a lock that was
            // released before this try began must not be called busy.
            if !names.is_free(claim.mode()) && self.pool.may_lag() {
                names = node::list_in_sync(session, lock).await?;
            }
            if !names.is_free(claim.mode()) {
                return Ok(Some(AttemptOutcome::Busy { rest: Residue::Nothing }));
            }
        }
        let access = &self.pool.access;
        // Before it is sent: from here on a release has to look for it.
        self.set_node_state(NodeState::InDoubt(reservation.clone()));
        let created = node::make(&reservation, access, lock, &prefix, claim.label().as_str()).await;
        let Made { node, names } = match created {
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
                    node::create_lock(session, access, lock).await?;
                    return Ok(None);
                }
                return Err(error.into());
            }
        };
        self.set_node_state(NodeState::Created(node.clone()));
        let names = names?;
        self.act_on_standing(&node, lock, &names).await
    }

    /// Finds out what became of an unsure node.
    async fn resolve(
        &self,
        reservation: &Arc<Reservation>,
        lock: &str,
    ) -> Result<Option<Arc<Node>>> {
        let owner = self.claim.owner().reveal();
        let found = node::find(reservation, lock, owner).await?.map(Arc::new);
        match &found {
            Some(node) => self.set_node_state(NodeState::Created(node.clone())),
            None => self.clear(),
        }
        Ok(found)
    }

    /// Whether it is the turn of `node`, which has waited or may be granted already.
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
        let names = node::list(&node.session, lock).await?;
        self.act_on_standing(node, lock, &names).await
    }

    /// Where `node` stands among `names`. `None`: look again.
    async fn act_on_standing(
        &self,
        node: &Arc<Node>,
        lock: &str,
        names: &Listing,
    ) -> Result<Option<AttemptOutcome>> {
        if names::is_exhausted(node.parsed.sequence) {
            return self.restart_numbering(node, lock).await;
        }
        match names.standing(&node.name, node.parsed) {
            Standing::Free => self.grant(node).await,
            // Somebody has deleted it.
            Standing::Missing => {
                node.set_gone();
                Ok(None)
            }
            Standing::Blocked { .. } if self.claim.if_busy() == IfBusy::Refuse => {
                Ok(Some(AttemptOutcome::Busy { rest: Residue::Perhaps }))
            }
            Standing::Blocked { watch, is_sole } => {
                let waiting =
                    AttemptOutcome::Waiting { check_after: node.session.heartbeat_interval() };
                if self.state().watch.as_ref().is_some_and(|watch| watch.waits_for(&watch)) {
                    return Ok(Some(waiting));
                }
                let watch = watch.into_iter().map(str::to_owned).collect();
                match PredecessorWatch::start(&self.claim, node, lock, watch, is_sole).await? {
                    Some(watch) => {
                        self.set_watch(watch);
                        Ok(Some(waiting))
                    }
                    None => Ok(None),
                }
            }
        }
    }

    /// Gives back a place whose number others may have too, and has the numbers begin again, unless
    /// somebody is still in the queue.
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
            // Without a node it is told to attempt again.
            IfBusy::Queue => {
                AttemptOutcome::Waiting { check_after: node.session.heartbeat_interval() }
            }
        }))
    }

    /// `None`: it was passed over just now.
    async fn grant(&self, node: &Arc<Node>) -> Result<Option<AttemptOutcome>> {
        if self.claim.mode() == Mode::Exclusive {
            node.set_first();
        }
        node.session.ensure_fresh().await?;
        let taken = self.state().watch.as_ref().map(PredecessorWatch::take_turn);
        match taken {
            Some(true) => {}
            Some(false) => return Ok(None),
            None => node.session.watch_later(&self.claim, node),
        }
        // Not in a session that was given up meanwhile, whatever it has committed last.
        let valid_until = node.session.deadline().ok_or(RequestError::SessionOver)?;
        node.reservation.stop_waiting();
        Ok(Some(AttemptOutcome::Granted { token: node.token(), valid_until }))
    }

    /// Gives up a place whose turn may have come and that nobody looks after. It queues again when
    /// somebody does.
    pub(crate) async fn pass_over(&self, now: Moment) {
        let node = match &*self.state() {
            ClaimState { node_state: NodeState::Created(node), watch: Some(watch) }
                if watch.pass_over(now) =>
            {
                node.clone()
            }
            _ => return,
        };
        tracing::debug!(claim = ?self.claim, "it was rung and did not come: it is passed over");
        // If that fails, the next attempt does it, or the release.
        if node.delete().await.is_ok() {
            node.set_gone();
        }
    }

    /// Whether it watches nodes that may have gone without a word since the connection came back.
    fn may_have_missed_events(&self, session: &Session) -> bool {
        let state = self.state();
        state.watch.as_ref().is_some_and(|watch| watch.reconnects() != session.reconnects())
    }

    /// Whether what it watches, and its own node, are among these, as of a return of the
    /// connection.
    fn confirm_watches(&self, names: &HashSet<&str>, reconnects: u64) -> bool {
        let state = self.state();
        let (NodeState::Created(node), Some(watch)) = (&state.node_state, &state.watch) else {
            return false;
        };
        let all_there = names.contains(node.name.as_str())
            && watch.watched.iter().all(|name| names.contains(name.as_str()));
        if all_there {
            watch.set_reconnects(reconnects);
        }
        all_there
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
                NodeState::InDoubt(reservation) => {
                    self.resolve(&reservation, lock).await.map(|_| None)?
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
        let node_state = self.state().node_state.clone();
        let node = match node_state {
            NodeState::Absent => return Ok(ReleaseOutcome::Absent),
            node_state if node_state.session().is_some_and(|session| session.is_over()) => {
                // With the session goes everything that it had.
                self.clear();
                return Ok(ReleaseOutcome::Absent);
            }
            NodeState::InDoubt(reservation) => {
                match self.resolve(&reservation, self.lock()?).await? {
                    Some(node) => node,
                    None => return Ok(ReleaseOutcome::Absent),
                }
            }
            NodeState::Created(node) => node,
        };
        match node.delete().await {
            // Only now the watches: the event of this has taken the one on the own node along.
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

/// What a look at a lock's waiters has found: nothing, unless the connection has come back since
/// the last.
#[derive(Default)]
pub(crate) struct MissedWatches {
    /// The ids of claims whose watches may have missed something.
    missed: HashSet<u64>,
}

impl MissedWatches {
    /// Of `waiters` in `session`, by one list.
    pub(crate) async fn of(session: &Arc<Session>, waiters: &[&ZkAcquisition]) -> MissedWatches {
        let mut missed = MissedWatches::default();
        let in_doubt = || waiters.iter().filter(|waiter| waiter.may_have_missed_events(session));
        let Some(Ok(lock)) = in_doubt().next().map(|waiter| &waiter.lock) else { return missed };
        let reconnects = session.reconnects();
        // Unknown stays in doubt.
        let Ok(names) = node::list(session, lock).await else { return missed };
        let names = names.names().iter().map(String::as_str).collect();
        let missed = in_doubt().filter(|waiter| !waiter.confirm_watches(&names, reconnects));
        missed.missed = missed.map(|waiter| waiter.claim.id()).collect();
        missed
    }

    pub(crate) fn must_attempt(&self, waiter: &ZkAcquisition) -> bool {
        waiter.live_session().is_none() || self.missed.contains(&waiter.claim.id())
    }
}
