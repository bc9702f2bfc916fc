//! One claim's seat: where its node is, what it waits for, and the steps that change that.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencelock_core::{
    Attempt, Claim, Contender, Error, IfBusy, Mode, Moment, Removal, Rest, Result,
};

use crate::budget::Reservation;
use crate::error::{Fate, Trouble, unsettled};
use crate::names;
use crate::node::{self, Made, Node};
use crate::order::{Listing, Standing};
use crate::path::below;
use crate::pool::Pool;
use crate::session::Session;
use crate::vigil::Vigil;

/// How often the lock's nodes may change under one attempt before it is put off.
const LOOKS: usize = 16;

pub(crate) struct ZkContender {
    pool: Arc<Pool>,
    claim: Arc<Claim>,
    /// The path of the lock, unless it has none.
    lock: Result<String>,
    seat: Mutex<Seat>,
}

#[derive(Default)]
struct Seat {
    // In this order they end: the watches before what was reserved for them.
    vigil: Option<Vigil>,
    place: Place,
}

#[derive(Clone, Default)]
enum Place {
    #[default]
    Nowhere,
    /// A node was asked for in the session of this reservation, and it is not known whether it was
    /// made.
    Unsure(Arc<Reservation>),
    At(Arc<Node>),
}

impl Place {
    fn session(&self) -> Option<&Arc<Session>> {
        match self {
            Place::Nowhere => None,
            Place::Unsure(reservation) => Some(reservation.session()),
            Place::At(node) => Some(&node.session),
        }
    }
}

impl ZkContender {
    pub(crate) fn new(pool: Arc<Pool>, claim: Arc<Claim>) -> ZkContender {
        let lock = pool.path_of(claim.name());
        ZkContender { pool, claim, lock, seat: Mutex::default() }
    }

    fn seat(&self) -> MutexGuard<'_, Seat> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> Result<&str> {
        match &self.lock {
            Ok(lock) => Ok(lock),
            Err(error) => Err(error.clone()),
        }
    }

    /// The session that has, or may have, its node; none once either is known to be gone.
    pub(crate) fn lives_by(&self) -> Option<Arc<Session>> {
        let seat = self.seat();
        if let Place::At(node) = &seat.place
            && node.is_gone()
        {
            return None;
        }
        seat.place.session().filter(|session| !session.is_over()).cloned()
    }

    /// Where it is. What a session had that is over is gone with it, and is never taken over.
    fn place(&self) -> Place {
        let place = self.seat().place.clone();
        let is_gone = match &place {
            Place::Nowhere => false,
            Place::Unsure(reservation) => reservation.session().is_over(),
            Place::At(node) => node.is_gone() || node.session.is_over(),
        };
        if is_gone {
            self.leave();
            return Place::Nowhere;
        }
        place
    }

    /// Nothing is left of it.
    fn leave(&self) {
        // Outside of the lock: its end sends requests.
        let _before = std::mem::take(&mut *self.seat());
    }

    fn put(&self, place: Place) {
        self.seat().place = place;
    }

    fn set_vigil(&self, vigil: Vigil) {
        // Outside of the lock: its end sends requests.
        let _before = self.seat().vigil.replace(vigil);
    }

    /// Makes a node. `None`: look again.
    async fn queue(&self, lock: &str) -> Result<Option<Attempt>> {
        let claim = &self.claim;
        let stem = names::stem(claim);
        let longest = below(lock, &stem).len() + names::LONGEST_SEQUENCE;
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
                return Ok(Some(Attempt::Busy { rest: Rest::Nothing }));
            }
        }
        let access = &self.pool.access;
        // Before it is sent: from here on a release has to look for it.
        self.put(Place::Unsure(reservation.clone()));
        let made = node::make(&reservation, access, lock, &stem, claim.label().as_str()).await;
        let Made { node, names } = match made {
            Ok(made) => made,
            Err(trouble) => {
                self.leave();
                return Err(trouble.into());
            }
        };
        let node = match node {
            Ok(node) => Arc::new(node),
            Err(trouble) => {
                if !node::may_have_made(&trouble) {
                    self.leave();
                }
                if trouble.is_no_node() {
                    node::make_lock(session, access, lock).await?;
                    return Ok(None);
                }
                return Err(trouble.into());
            }
        };
        self.put(Place::At(node.clone()));
        let names = names?;
        self.stand(&node, lock, &names).await
    }

    /// Finds out what became of an unsure node.
    async fn find(&self, reservation: &Arc<Reservation>, lock: &str) -> Result<Option<Arc<Node>>> {
        let owner = self.claim.owner().reveal();
        let found = node::find(reservation, lock, owner).await?.map(Arc::new);
        match &found {
            Some(node) => self.put(Place::At(node.clone())),
            None => self.leave(),
        }
        Ok(found)
    }

    /// Whether it is the turn of `node`, which has waited or may be granted already.
    async fn look_around(&self, node: &Arc<Node>, lock: &str) -> Result<Option<Attempt>> {
        let is_passed_over = self.seat().vigil.as_ref().is_some_and(|vigil| {
            vigil.heard();
            vigil.is_passed_over()
        });
        if is_passed_over {
            node.delete().await?;
            self.leave();
            return Ok(None);
        }
        let has_passed = self.seat().vigil.as_ref().is_some_and(|vigil| vigil.has_passed(node));
        if has_passed {
            return self.grant(node).await;
        }
        let names = node::list(&node.session, lock).await?;
        self.stand(node, lock, &names).await
    }

    /// Where `node` stands among `names`. `None`: look again.
    async fn stand(
        &self,
        node: &Arc<Node>,
        lock: &str,
        names: &Listing,
    ) -> Result<Option<Attempt>> {
        if names::is_spent(node.written.sequence) {
            return self.start_over(node, lock).await;
        }
        match names.standing(&node.name, node.written) {
            Standing::Free => self.grant(node).await,
            // Somebody has deleted it.
            Standing::Missing => {
                node.set_gone();
                Ok(None)
            }
            Standing::Behind { .. } if self.claim.if_busy() == IfBusy::Refuse => {
                Ok(Some(Attempt::Busy { rest: Rest::Perhaps }))
            }
            Standing::Behind { watch, alone } => {
                let waiting = Attempt::Waiting { look_in: node.session.heartbeat() };
                if self.seat().vigil.as_ref().is_some_and(|vigil| vigil.waits_for(&watch)) {
                    return Ok(Some(waiting));
                }
                let watch = watch.into_iter().map(str::to_owned).collect();
                match Vigil::behind(&self.claim, node, lock, watch, alone).await? {
                    Some(vigil) => {
                        self.set_vigil(vigil);
                        Ok(Some(waiting))
                    }
                    None => Ok(None),
                }
            }
        }
    }

    /// Gives back a place whose number others may have too, and has the numbers begin again, unless
    /// somebody is still in the queue.
    async fn start_over(&self, node: &Arc<Node>, lock: &str) -> Result<Option<Attempt>> {
        tracing::warn!(claim = ?self.claim, "the lock has no sequence numbers left");
        node.delete().await?;
        self.leave();
        if node::remove_lock(&node.session, lock).await? {
            return Ok(None);
        }
        Ok(Some(match self.claim.if_busy() {
            IfBusy::Refuse => Attempt::Busy { rest: Rest::Nothing },
            // Without a node it is told to attempt again.
            IfBusy::Queue => Attempt::Waiting { look_in: node.session.heartbeat() },
        }))
    }

    /// `None`: it was passed over just now.
    async fn grant(&self, node: &Arc<Node>) -> Result<Option<Attempt>> {
        if self.claim.mode() == Mode::Exclusive {
            node.set_first();
        }
        node.session.fresh().await?;
        let taken = self.seat().vigil.as_ref().map(Vigil::take_turn);
        match taken {
            Some(true) => {}
            Some(false) => return Ok(None),
            None => node.session.watch_later(&self.claim, node),
        }
        // Not in a session that was given up meanwhile, whatever it has committed last.
        let valid_until = node.session.deadline().ok_or(Trouble::Over)?;
        node.reservation.settle();
        Ok(Some(Attempt::Granted { token: node.token(), valid_until }))
    }

    /// Gives up a place whose turn may have come and that nobody looks after. It queues again when
    /// somebody does.
    pub(crate) async fn pass_over(&self, now: Moment) {
        let node = match &*self.seat() {
            Seat { place: Place::At(node), vigil: Some(vigil) } if vigil.pass_over(now) => {
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
    fn is_in_doubt(&self, session: &Session) -> bool {
        let seat = self.seat();
        seat.vigil.as_ref().is_some_and(|vigil| vigil.returns() != session.returns())
    }

    /// Whether what it watches, and its own node, are among these, as of a return of the
    /// connection.
    fn finds_all_in(&self, names: &HashSet<&str>, returns: u64) -> bool {
        let seat = self.seat();
        let (Place::At(node), Some(vigil)) = (&seat.place, &seat.vigil) else { return false };
        let all_there = names.contains(node.name.as_str())
            && vigil.watched.iter().all(|name| names.contains(name.as_str()));
        if all_there {
            vigil.set_returns(returns);
        }
        all_there
    }
}

impl Contender for ZkContender {
    fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    async fn attempt(&self) -> Result<Attempt> {
        let lock = self.lock()?;
        for _ in 0..LOOKS {
            let answer = match self.place() {
                Place::Nowhere => self.queue(lock).await?,
                Place::Unsure(reservation) => self.find(&reservation, lock).await.map(|_| None)?,
                Place::At(node) => self.look_around(&node, lock).await?,
            };
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
        Err(unsettled())
    }

    async fn release(&self) -> Result<Removal> {
        let place = self.seat().place.clone();
        let node = match place {
            Place::Nowhere => return Ok(Removal::Absent),
            place if place.session().is_some_and(|session| session.is_over()) => {
                // With the session goes everything that it had.
                self.leave();
                return Ok(Removal::Absent);
            }
            Place::Unsure(reservation) => match self.find(&reservation, self.lock()?).await? {
                Some(node) => node,
                None => return Ok(Removal::Absent),
            },
            Place::At(node) => node,
        };
        match node.delete().await {
            // Only now the watches: the event of this has taken the one on the own node along.
            Ok(removal) => {
                self.leave();
                Ok(removal)
            }
            Err(trouble) if trouble.fate() == Fate::SessionOver => {
                self.leave();
                Ok(Removal::Absent)
            }
            Err(trouble) => Err(Error::from(trouble)),
        }
    }
}

/// What a look at a lock's waiters has found: nothing, unless the connection has come back since
/// the last.
#[derive(Default)]
pub(crate) struct Upkeep {
    /// The ids of claims whose watches may have missed something.
    missed: HashSet<u64>,
}

impl Upkeep {
    /// Of `waiters` in `session`, by one list.
    pub(crate) async fn of(session: &Arc<Session>, waiters: &[&ZkContender]) -> Upkeep {
        let mut upkeep = Upkeep::default();
        let in_doubt = || waiters.iter().filter(|waiter| waiter.is_in_doubt(session));
        let Some(Ok(lock)) = in_doubt().next().map(|waiter| &waiter.lock) else { return upkeep };
        let returns = session.returns();
        // Unknown stays in doubt.
        let Ok(names) = node::list(session, lock).await else { return upkeep };
        let names = names.names().iter().map(String::as_str).collect();
        let missed = in_doubt().filter(|waiter| !waiter.finds_all_in(&names, returns));
        upkeep.missed = missed.map(|waiter| waiter.claim.id()).collect();
        upkeep
    }

    pub(crate) fn must_attempt(&self, waiter: &ZkContender) -> bool {
        waiter.lives_by().is_none() || self.missed.contains(&waiter.claim.id())
    }
}
