//! One claim: the state of its node, the watch while it waits, and the steps that change both.

use std::collections::HashSet;
use std::sync::Arc;

use fencelock_core::sync::Mutex;
use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, Error, ErrorKind, IfBusy, Mode, Moment, ReleaseOutcome,
    RenewOutcome, Residue, Result,
};

use crate::claim::predecessor_watch::{PredecessorWatch, Start};
use crate::error::{Certainty, RequestError};
use crate::nodes::node::{self, Node};
use crate::queue::names;
use crate::queue::order::{Listing, Standing};
use crate::queue::path::below;
use crate::sessions::batch;
use crate::sessions::pool::{Pool, Slot};
use crate::sessions::session::Session;

/// How often the lock's nodes may change during one attempt before it fails.
const MAX_ROUNDS: usize = 16;

/// The result of a step of an attempt; `None` when the state has changed and has to be checked again.
type Step = Result<Option<AttemptOutcome>>;

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
    InDoubt(Slot),
    Created(Arc<Node>),
}

impl NodeState {
    /// The session that has, or may have, the node; `None` once either is known to be gone.
    fn live_session(&self) -> Option<&Arc<Session>> {
        let session = match self {
            NodeState::Created(node) if !node.is_gone() => node.session(),
            NodeState::InDoubt(slot) => &slot.session,
            NodeState::Absent | NodeState::Created(_) => return None,
        };
        (!session.is_over()).then_some(session)
    }
}

impl ZkAcquisition {
    pub(crate) fn new(pool: Arc<Pool>, claim: Arc<Claim>) -> ZkAcquisition {
        let lock = pool.path_of(claim.name());
        ZkAcquisition { pool, claim, lock, state: Mutex::default() }
    }

    /// The path of the lock.
    fn lock(&self) -> Result<&str> {
        self.lock.as_deref().map_err(Clone::clone)
    }

    /// The session that has, or may have, the claim's node; `None` once either is known to be gone.
    pub(crate) fn live_session(&self) -> Option<Arc<Session>> {
        self.state.lock().node.live_session().cloned()
    }

    /// The state of the node. A node is gone with its session, and is never adopted by another.
    fn node_state(&self) -> NodeState {
        let state = self.state.lock().node.clone();
        if state.live_session().is_none() {
            self.clear();
            return NodeState::Absent;
        }
        state
    }

    /// Drops the node and the watch, when nothing of the claim is left on the servers.
    fn clear(&self) {
        // Dropped outside of the lock: dropping a watch sends requests.
        let _before = std::mem::take(&mut *self.state.lock());
    }

    fn set_node_state(&self, node: NodeState) {
        self.state.lock().node = node;
    }

    fn set_watch(&self, watch: PredecessorWatch) {
        // Dropped outside of the lock: dropping a watch sends requests.
        let _before = self.state.lock().watch.replace(watch);
    }

    /// Creates a node.
    async fn enqueue(&self, lock: &str) -> Step {
        let claim = &self.claim;
        let prefix = names::prefix(claim);
        let longest = below(lock, &prefix).len() + names::LONGEST_SEQUENCE;
        let may_wait = claim.if_busy() == IfBusy::Queue;
        let slot = self.pool.reserve(claim, longest, may_wait).await?;
        let session = &slot.session;
        if !may_wait {
            let mut listing = node::list(session, lock).await.map_err(RequestError::into_error)?;
            // A server may not know yet what another one has confirmed: a lock that was released
            // before this attempt began must not be reported as busy.
            if !listing.is_free(claim.mode()) && self.pool.may_lag() {
                listing =
                    node::list_in_sync(session, lock).await.map_err(RequestError::into_error)?;
            }
            if !listing.is_free(claim.mode())
                && !self.joins(session, lock, &listing.standing_at_end(claim.mode())).await?
            {
                session.require_own(lock, None).await.map_err(RequestError::into_error)?;
                return Ok(Some(AttemptOutcome::Busy { rest: Residue::Nothing }));
            }
        }
        let access = &self.pool.access;
        // Before the request is sent: from here on a release has to find the node.
        self.set_node_state(NodeState::InDoubt(slot.clone()));
        let label = claim.label().as_str();
        match node::create(&slot, access, lock, &prefix, label).await {
            Ok((node, listing)) => {
                let node = Arc::new(node);
                self.set_node_state(NodeState::Created(node.clone()));
                let listing = listing.map_err(RequestError::into_error)?;
                self.act_on_standing(&node, &listing).await
            }
            Err(error) => {
                // Otherwise the node may exist.
                if error.certainty() != Certainty::Unknown {
                    self.clear();
                }
                if !error.is_no_node() {
                    return Err(error.into_error());
                }
                let client = session.client().map_err(RequestError::into_error)?;
                session
                    .read(access.create_lock(&client, lock))
                    .await
                    .map_err(RequestError::into_error)?;
                Ok(None)
            }
        }
    }

    /// Whether a reader that would wait can be granted: the nearest node that blocks it is that of a
    /// writer which has become a reader. Nothing is ever ahead of a node that was granted
    /// exclusively, so nothing else blocks it.
    async fn joins(&self, session: &Session, lock: &str, standing: &Standing<'_>) -> Result<bool> {
        match (self.claim.mode(), standing) {
            (Mode::Shared, Standing::Blocked { by, .. }) => match by.as_slice() {
                [nearest] => Ok(node::is_shared(session, &below(lock, nearest))
                    .await
                    .map_err(RequestError::into_error)?),
                _ => Ok(false),
            },
            _ => Ok(false),
        }
    }

    /// Finds out whether a node in doubt was created.
    async fn resolve(&self, slot: &Slot, lock: &str) -> Result<Option<Arc<Node>>> {
        let owner = self.claim.owner().reveal();
        let found =
            node::find(slot, lock, owner).await.map_err(RequestError::into_error)?.map(Arc::new);
        match &found {
            Some(node) => self.set_node_state(NodeState::Created(node.clone())),
            None => self.clear(),
        }
        Ok(found)
    }

    /// Checks whether it is the turn of `node`, which has waited or may be granted already.
    async fn check_turn(&self, node: &Arc<Node>) -> Step {
        let (is_passed_over, is_cleared) = match &mut self.state.lock().watch {
            Some(watch) => (!watch.note_attempt(), watch.is_cleared(node)),
            None => (false, false),
        };
        if is_passed_over {
            node.delete().await.map_err(RequestError::into_error)?;
            self.clear();
            return Ok(None);
        }
        if is_cleared {
            return self.grant(node).await;
        }
        let listing =
            node::list(node.session(), node.lock()).await.map_err(RequestError::into_error)?;
        self.act_on_standing(node, &listing).await
    }

    /// Grants, waits or gives up by where `node` stands.
    async fn act_on_standing(&self, node: &Arc<Node>, listing: &Listing) -> Step {
        node.require_own_lock().await.map_err(RequestError::into_error)?;
        if names::is_exhausted(node.parsed.sequence) {
            return self.restart_numbering(node).await;
        }
        match listing.standing(&node.name, node.parsed) {
            Standing::Free => self.grant(node).await,
            // Another client has deleted it.
            Standing::Missing => {
                node.set_gone();
                Ok(None)
            }
            standing @ Standing::Blocked { .. } if self.claim.if_busy() == IfBusy::Refuse => {
                match self.joins(node.session(), node.lock(), &standing).await? {
                    true => self.grant(node).await,
                    false => Ok(Some(AttemptOutcome::Busy { rest: Residue::Perhaps })),
                }
            }
            Standing::Blocked { by, is_sole } => {
                if self.state.lock().watch.as_ref().is_some_and(|watch| watch.waits_for(&by)) {
                    return Ok(Some(waiting(node.session())));
                }
                let by = by.into_iter().map(str::to_owned).collect();
                Ok(
                    match PredecessorWatch::start(&self.claim, node, by, is_sole)
                        .await
                        .map_err(RequestError::into_error)?
                    {
                        Start::Watching(watch) => {
                            self.set_watch(watch);
                            Some(waiting(node.session()))
                        }
                        Start::Deleted => None,
                        Start::Shared => self.grant(node).await?,
                    },
                )
            }
        }
    }

    /// Deletes a node whose number other nodes may have too, and has the numbers begin again as
    /// soon as no claim is in the queue.
    async fn restart_numbering(&self, node: &Arc<Node>) -> Step {
        tracing::warn!(claim = ?self.claim, "the lock has no sequence numbers left");
        node.delete().await.map_err(RequestError::into_error)?;
        self.clear();
        if batch::delete_if_empty(node.session(), node.lock())
            .await
            .map_err(RequestError::into_error)?
        {
            return Ok(None);
        }
        Ok(match self.claim.if_busy() {
            IfBusy::Refuse => Some(AttemptOutcome::Busy { rest: Residue::Nothing }),
            // Without a node, the next check has it attempt again.
            IfBusy::Queue => Some(waiting(node.session())),
        })
    }

    /// Grants the lock, unless the claim was passed over just now.
    async fn grant(&self, node: &Arc<Node>) -> Step {
        if self.claim.mode() == Mode::Exclusive {
            node.set_first();
        }
        node.session().ensure_fresh().await.map_err(RequestError::into_error)?;
        let taken = self.state.lock().watch.as_mut().map(PredecessorWatch::take_turn);
        match taken {
            Some(true) => {}
            Some(false) => return Ok(None),
            None => node.watch_later(&self.claim),
        }
        // `None` in a session that was given up meanwhile, whatever it has committed last.
        let valid_until = node
            .session()
            .deadline()
            .ok_or(RequestError::SessionOver)
            .map_err(RequestError::into_error)?;
        node.slot.reservation.stop_waiting();
        Ok(Some(AttemptOutcome::Granted {
            token: node.token().map_err(RequestError::into_error)?,
            valid_until,
        }))
    }

    /// Gives up a place in the queue whose turn may have come while no attempt is made. The claim
    /// queues again at its next attempt.
    pub(crate) async fn pass_over(&self, now: Moment) {
        let node = match &mut *self.state.lock() {
            ClaimState { node: NodeState::Created(node), watch: Some(watch) } => {
                watch.pass_over(now).then(|| node.clone())
            }
            _ => None,
        };
        let Some(node) = node else { return };
        tracing::debug!(claim = ?self.claim, "the claim was woken and made no attempt: passed over");
        // If that fails, the next attempt or the release deletes it.
        if node.delete().await.is_ok() {
            node.set_gone();
        }
    }

    /// Whether events of the watched nodes may have been missed by the `reconnects`-th reconnect.
    fn may_have_missed_events(&self, reconnects: u64) -> bool {
        self.state.lock().watch.as_ref().is_some_and(|watch| watch.reconnects != reconnects)
    }

    /// Whether the watched nodes, and the claim's own, are among `names`, which were listed after
    /// the `reconnects`-th reconnect; if so, nothing was missed up to then.
    fn confirm_watches(&self, names: &HashSet<&str>, reconnects: u64) -> bool {
        let ClaimState { node: NodeState::Created(node), watch: Some(watch) } =
            &mut *self.state.lock()
        else {
            return false;
        };
        let all_exist = names.contains(node.name.as_str())
            && watch.watched.iter().all(|name| names.contains(name.as_str()));
        if all_exist {
            watch.reconnects = reconnects;
        }
        all_exist
    }
}

/// Those of `waiters` that may have missed the event they wait for, by the ids of their claims: all
/// wait in `session` for the same lock, and watches are lost when a connection is established again.
pub(crate) async fn find_missed(
    session: &Arc<Session>,
    waiters: &[&ZkAcquisition],
) -> HashSet<u64> {
    let reconnects = session.reconnects();
    let affected: Vec<_> =
        waiters.iter().filter(|waiter| waiter.may_have_missed_events(reconnects)).collect();
    let Some(Ok(lock)) = affected.first().map(|waiter| waiter.lock()) else {
        return HashSet::new();
    };
    // Without a list they are checked again next time.
    let Ok(listing) = node::list(session, lock).await else { return HashSet::new() };
    let names = listing.names().iter().map(String::as_str).collect();
    let missed = affected.iter().filter(|waiter| !waiter.confirm_watches(&names, reconnects));
    missed.map(|waiter| waiter.claim.id()).collect()
}

fn waiting(session: &Session) -> AttemptOutcome {
    AttemptOutcome::Waiting { check_after: session.heartbeat_interval() }
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
                NodeState::InDoubt(slot) => {
                    self.resolve(&slot, lock).await?;
                    None
                }
                NodeState::Created(node) => self.check_turn(&node).await?,
            };
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
        Err(Error::new(
            ErrorKind::Unreachable,
            "the lock's nodes changed each time they were listed",
        ))
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        let node = match self.node_state() {
            NodeState::Absent => return Ok(ReleaseOutcome::Absent),
            NodeState::InDoubt(slot) => match self.resolve(&slot, self.lock()?).await? {
                Some(node) => node,
                None => return Ok(ReleaseOutcome::Absent),
            },
            NodeState::Created(node) => node,
        };
        match node.delete().await {
            Err(error) if error.certainty() != Certainty::SessionOver => Err(error.into_error()),
            // The session's nodes are gone with it.
            deleted => {
                // The watches are dropped only now: the deletion has removed that on the own node.
                self.clear();
                Ok(deleted.unwrap_or(ReleaseOutcome::Absent))
            }
        }
    }

    async fn downgrade(&self) -> Result<RenewOutcome> {
        let NodeState::Created(node) = self.node_state() else { return Ok(RenewOutcome::Lost) };
        match node.share(self.claim.label().as_str()).await {
            Ok(true) => {}
            Ok(false) => return Ok(RenewOutcome::Lost),
            Err(error) if error.certainty() == Certainty::SessionOver => {
                return Ok(RenewOutcome::Lost);
            }
            Err(error) => return Err(error.into_error()),
        }
        Ok(match node.session().deadline() {
            Some(valid_until) => RenewOutcome::Renewed { valid_until },
            None => RenewOutcome::Lost,
        })
    }
}
