//! One claim's node in the server with sessions: made once, found again when its creation was
//! unsure, watched while it waits and while it is held, deleted until it is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencelock_core::sync::Mutex;
use fencelock_core::{
    Acquisition, AttemptOutcome, Claim, FencingToken, IfBusy, Mode, ReleaseOutcome, Residue,
    Result, WatchHandle,
};
use tokio::sync::oneshot;

use crate::lease::script::Who;
use crate::mutant::Mutant;
use crate::session::backend::{SessionBackend, unreachable};
use crate::session::server::{Node, Nodes, SessionServer};

pub(crate) struct SessionAcquisition {
    backend: Arc<SessionBackend>,
    claim: Arc<Claim>,
    who: Who,
    lock: usize,
    place: Mutex<Place>,
    watches: Mutex<Vec<WatchHandle>>,
    /// The own node, held, was seen to go.
    gone: Arc<AtomicBool>,
    /// A watched node went.
    fired: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    None,
    /// A create was sent in this session, and it is unknown whether it was executed.
    Unsure(u64),
    Node {
        session: u64,
        seq: u64,
        token: u64,
    },
}

impl Place {
    fn session(self) -> Option<u64> {
        match self {
            Place::None => None,
            Place::Unsure(session) | Place::Node { session, .. } => Some(session),
        }
    }
}

impl SessionAcquisition {
    pub(crate) fn new(
        backend: Arc<SessionBackend>,
        claim: Arc<Claim>,
        who: Who,
        lock: usize,
    ) -> SessionAcquisition {
        SessionAcquisition {
            backend,
            claim,
            who,
            lock,
            place: Mutex::new(Place::None),
            watches: Mutex::default(),
            gone: Arc::default(),
            fired: Arc::default(),
        }
    }

    fn put(&self, place: Place) {
        *self.place.lock() = place;
    }

    /// Whether its node, as far as this process knows, is still there.
    pub(crate) fn is_still_in(&self, session: Option<u64>) -> bool {
        let own = self.place.lock().session();
        own.is_some() && own == session && !self.gone.load(Ordering::Acquire)
    }

    fn is_mutant(&self, mutant: Mutant) -> bool {
        self.backend.server.mutant == Some(mutant)
    }

    async fn list(&self, session: u64) -> Result<Nodes> {
        let (process, lock) = (self.who.process, self.lock);
        self.backend.read(self.who.claim, session, move |server| server.list(process, lock)).await
    }

    /// Finds out whether an unsure create was executed. Absence is final once the follower has
    /// caught up.
    async fn resolve(&self, session: u64) -> Result<Place> {
        if !self.is_mutant(Mutant::NoSync) {
            self.backend.write(self.who.claim, session, move |it| it.sync(session)).await?;
        }
        let nodes = self.list(session).await?;
        let own = |node: &Node| node.who == self.who;
        let found = nodes.iter().find(|(_, node)| own(node) && node.session == session);
        let place = match found {
            Some((seq, node)) => Place::Node { session, seq: *seq, token: node.token },
            None => Place::None,
        };
        self.put(place);
        Ok(place)
    }

    async fn create(&self, session: u64) -> Result<(u64, u64)> {
        self.put(Place::Unsure(session));
        let (lock, who, mode) = (self.lock, self.who, self.claim.mode());
        let create = move |server: &SessionServer| server.create(session, lock, who, mode);
        let (seq, token) = self.backend.write(who.claim, session, create).await?;
        self.put(Place::Node { session, seq, token });
        Ok((seq, token))
    }

    /// Wakes the claim when node `seq` is deleted. `false` if it has been deleted.
    async fn watch(&self, session: u64, seq: u64, noticed: &Arc<AtomicBool>) -> Result<bool> {
        let (fired, event) = oneshot::channel();
        let (who, lock, noticed) = (self.who, self.lock, noticed.clone());
        let armed = self.claim.wake_when(async move {
            let _ = event.await;
            noticed.store(true, Ordering::Release);
        });
        self.watches.lock().push(armed);
        let watch = move |server: &SessionServer| server.watch(who, lock, seq, fired);
        self.backend.read(who.claim, session, watch).await
    }

    async fn grant(&self, session: u64, seq: u64, token: u64) -> Result<AttemptOutcome> {
        self.watches.lock().clear();
        if !self.is_mutant(Mutant::OwnNodeUnwatched)
            && !self.watch(session, seq, &self.gone).await?
        {
            self.put(Place::None);
            return Err(unreachable());
        }
        let valid_until = self.backend.valid_until(session).ok_or_else(unreachable)?;
        self.backend.server.taken(self.lock, seq);
        Ok(AttemptOutcome::Granted { token: FencingToken::new(token), valid_until })
    }

    /// Which of the nodes ahead stand in the way of `mode`, the nearest last.
    fn obstacles(&self, ahead: &[(u64, Mode)]) -> Vec<u64> {
        let mode = self.claim.mode();
        let in_the_way = |other: &&(u64, Mode)| mode != Mode::Shared || other.1 != Mode::Shared;
        let all: Vec<u64> = ahead.iter().filter(in_the_way).map(|(seq, _)| *seq).collect();
        match mode {
            // Any one that goes may be enough.
            Mode::Permits(_) if !self.is_mutant(Mutant::PermitsWatchOne) => all,
            _ => all.last().copied().into_iter().collect(),
        }
    }
}

/// Whether `mode` is compatible with all of `ahead`, and none of them waits with a smaller limit.
fn is_next(ahead: &[(u64, Mode)], mode: Mode, overtakes: bool) -> bool {
    let before = |at: usize| ahead[..at].iter().map(|(_, mode)| *mode);
    mode.is_compatible_with(before(ahead.len()))
        && (overtakes || (0..ahead.len()).all(|at| ahead[at].1.is_compatible_with(before(at))))
}

impl Acquisition for SessionAcquisition {
    fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    async fn attempt(&self) -> Result<AttemptOutcome> {
        let session = self.backend.open().await?;
        if self.backend.heartbeat_is_due() {
            self.backend.heartbeat(session).await?;
        }
        let mut place = *self.place.lock();
        if place.session().is_some_and(|own| own != session) {
            // Gone with its session, which has ended.
            place = Place::None;
        }
        if let Place::Unsure(_) = place {
            place = match self.is_mutant(Mutant::NoAdoption) {
                true => Place::None,
                false => self.resolve(session).await?,
            };
        }
        let try_only = self.claim.if_busy() == IfBusy::Refuse;
        let (seq, token) = match place {
            Place::Node { seq, token, .. } => (seq, token),
            Place::None | Place::Unsure(_) => {
                if try_only {
                    let nodes = self.list(session).await?;
                    if !self.claim.mode().is_compatible_with(nodes.values().map(|node| node.mode)) {
                        return Ok(AttemptOutcome::Busy { rest: Residue::Nothing });
                    }
                }
                self.gone.store(false, Ordering::Release);
                self.create(session).await?
            }
        };
        if self.fired.swap(false, Ordering::AcqRel) && self.is_mutant(Mutant::SuccessorIsGranted) {
            return self.grant(session, seq, token).await;
        }
        loop {
            let nodes = self.list(session).await?;
            if !nodes.contains_key(&seq) {
                self.put(Place::None);
                return Err(unreachable());
            }
            let ahead: Vec<(u64, Mode)> =
                nodes.range(..seq).map(|(seq, node)| (*seq, node.mode)).collect();
            let overtakes = self.is_mutant(Mutant::PermitsOvertake);
            if is_next(&ahead, self.claim.mode(), overtakes) {
                return self.grant(session, seq, token).await;
            }
            if try_only {
                return Ok(AttemptOutcome::Busy { rest: Residue::Perhaps });
            }
            self.watches.lock().clear();
            let mut all_there = true;
            for obstacle in self.obstacles(&ahead) {
                all_there &= self.watch(session, obstacle, &self.fired).await?;
            }
            if all_there {
                return Ok(AttemptOutcome::Waiting { check_after: self.backend.heartbeat_every() });
            }
        }
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        let removal = self.leave().await?;
        self.watches.lock().clear();
        Ok(removal)
    }
}

impl SessionAcquisition {
    async fn leave(&self) -> Result<ReleaseOutcome> {
        let mut place = *self.place.lock();
        let Some(session) = place.session() else { return Ok(ReleaseOutcome::Absent) };
        if self.backend.session() != Some(session) {
            return Ok(ReleaseOutcome::Absent);
        }
        if let Place::Unsure(_) = place {
            if self.is_mutant(Mutant::UnsureIsAbsent) {
                return Ok(ReleaseOutcome::Absent);
            }
            place = self.resolve(session).await?;
        }
        let Place::Node { seq, .. } = place else { return Ok(ReleaseOutcome::Absent) };
        let lock = self.lock;
        let delete = move |server: &SessionServer| server.delete(session, lock, seq);
        let removed = self.backend.write(self.who.claim, session, delete).await;
        match removed {
            Ok(removed) => {
                self.put(Place::None);
                Ok(if removed { ReleaseOutcome::Removed } else { ReleaseOutcome::Absent })
            }
            Err(_) if self.backend.session() != Some(session) => Ok(ReleaseOutcome::Absent),
            Err(error) => Err(error),
        }
    }
}
