//! The backend of the server with sessions: one session per process, whose newest committed write
//! is what every hold is valid by.

use std::borrow::Cow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::sync::Mutex;
use fencelock_core::{
    Acquisition, Claim, Clock, DistributedLock, Error, ErrorKind, Liveness, LockName, Moment,
    ParticipantId, Profile, ReleaseOutcome, RenewOutcome, RenewalPlan, Result, Snapshot,
    TokenOrder, WaiterCheck,
};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};

use crate::lease::backend::{self as lease, lock_number};
use crate::lease::script::Who;
use crate::mutant::Mutant;
use crate::session::acquisition::SessionAcquisition;
use crate::session::server::{Expired, SessionServer, TURNS};
use crate::world::gate::GatedClock;
use crate::world::link::Link;

pub(crate) struct SessionBackend {
    pub(crate) server: Arc<SessionServer>,
    pub(crate) link: Arc<Link>,
    pub(crate) clock: GatedClock,
    profile: Profile,
    own: Mutex<Own>,
    opening: tokio::sync::Mutex<()>,
    /// The last heartbeat that was asked for by many, and when.
    beat: Mutex<Option<(Moment, Beat)>>,
    me: Weak<SessionBackend>,
}

type Beat = Shared<BoxFuture<'static, Result<()>>>;

#[derive(Default)]
struct Own {
    session: Option<u64>,
    /// When the newest write that was committed in it was sent.
    committed: Option<Moment>,
}

pub(crate) fn unreachable() -> Error {
    Error::new(ErrorKind::Unreachable, "no answer")
}

impl SessionBackend {
    pub(crate) fn connect(server: &Arc<SessionServer>, link: Arc<Link>) -> Arc<SessionBackend> {
        let clock = GatedClock { time: server.history.time.clone(), gate: link.gate.clone() };
        Arc::new_cyclic(|me| SessionBackend {
            server: server.clone(),
            link,
            clock,
            profile: Profile {
                store: "sessions",
                liveness: Liveness::Session(server.timeout),
                renewal: RenewalPlan::Every(server.timeout / 10),
                downgrade: false,
                tokens: TokenOrder::Data,
                max_local_handoffs: TURNS,
                exclusion_fails_when: Cow::Borrowed(&[]),
                ..lease::PROFILE.clone()
            },
            own: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            beat: Mutex::default(),
            me: me.clone(),
        })
    }

    pub(crate) fn session(&self) -> Option<u64> {
        self.own.lock().session
    }

    pub(crate) fn heartbeat_every(&self) -> Duration {
        self.server.timeout / 10
    }

    fn request_bound(&self) -> Duration {
        self.server.timeout / 5
    }

    /// The session, opened if there is none.
    pub(crate) async fn open(&self) -> Result<u64> {
        let _one_at_a_time = self.opening.lock().await;
        if let Some(session) = self.session() {
            return Ok(session);
        }
        let sent = self.clock.now();
        let (server, link) = (self.server.clone(), self.link.clone());
        let opened = self.link.call(0, self.request_bound(), move || server.open(&link)).await;
        let session = opened.flatten().ok_or_else(unreachable)?;
        *self.own.lock() = Own { session: Some(session), committed: Some(sent) };
        Ok(session)
    }

    /// Sends a write in `session` and remembers when, if it was committed.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        claim: u64,
        session: u64,
        write: impl FnOnce(&SessionServer) -> Option<Result<T, Expired>> + Send + 'static,
    ) -> Result<T> {
        let sent = self.clock.now();
        let server = self.server.clone();
        let bound = self.request_bound();
        let answer = self.link.call(claim, bound, move || write(&server)).await.flatten();
        match answer {
            Some(Ok(written)) => {
                self.server.caught_up(self.link.process);
                self.alive(session, sent);
                Ok(written)
            }
            Some(Err(Expired)) => {
                let mut own = self.own.lock();
                if own.session == Some(session) {
                    *own = Own::default();
                }
                Err(Error::new(ErrorKind::Unreachable, "the session has expired"))
            }
            None => Err(unreachable()),
        }
    }

    pub(crate) async fn read<T: Send + 'static>(
        &self,
        claim: u64,
        session: u64,
        read: impl FnOnce(&SessionServer) -> T + Send + 'static,
    ) -> Result<T> {
        let sent = self.clock.now();
        let server = self.server.clone();
        let answer = self.link.call(claim, self.request_bound(), move || read(&server)).await;
        if answer.is_some() && self.server.mutant == Some(Mutant::ReadIsHeartbeat) {
            self.alive(session, sent);
        }
        answer.ok_or_else(unreachable)
    }

    fn alive(&self, session: u64, sent: Moment) {
        let mut own = self.own.lock();
        if own.session == Some(session) {
            own.committed = own.committed.max(Some(sent));
        }
    }

    /// Until when whatever `session` has may be believed in.
    pub(crate) fn valid_until(&self, session: u64) -> Option<Moment> {
        let own = self.own.lock();
        let committed = own.committed.filter(|_| own.session == Some(session))?;
        Some(match self.server.mutant {
            Some(Mutant::WaitsForExpired) => self.clock.now() + self.server.timeout * 100,
            _ => committed + self.server.timeout.mul_f64(0.64),
        })
    }

    pub(crate) fn heartbeat_is_due(&self) -> bool {
        let committed = self.own.lock().committed;
        committed.is_none_or(|sent| sent + self.heartbeat_every() <= self.clock.now())
    }

    /// A write that changes nothing, for all that this process holds.
    pub(crate) async fn heartbeat(&self, session: u64) -> Result<()> {
        if self.server.mutant == Some(Mutant::ReadIsHeartbeat) {
            let process = self.link.process;
            return self.read(0, session, move |server| server.list(process, 0)).await.map(|_| ());
        }
        self.write(0, session, move |server| server.heartbeat(session)).await
    }
}

impl SessionBackend {
    /// One heartbeat for all who ask at the same moment.
    async fn shared_heartbeat(&self, session: u64) -> Result<()> {
        let now = self.clock.now();
        let beat = {
            let mut last = self.beat.lock();
            match &*last {
                Some((asked, beat)) if *asked == now => beat.clone(),
                _ => {
                    let me = self.me.upgrade().ok_or_else(unreachable)?;
                    let beat = async move { me.heartbeat(session).await }.boxed().shared();
                    *last = Some((now, beat.clone()));
                    beat
                }
            }
        };
        beat.await
    }
}

impl DistributedLock for SessionBackend {
    type Acquisition = SessionAcquisition;

    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn begin(self: &Arc<Self>, claim: Arc<Claim>) -> SessionAcquisition {
        let who = Who { process: self.link.process, claim: claim.id() };
        let lock = lock_number(claim.name());
        SessionAcquisition::new(self.clone(), claim, who, lock)
    }

    async fn renew(&self, held: &SessionAcquisition) -> Result<RenewOutcome> {
        let Some(session) = self.session() else { return Ok(RenewOutcome::Lost) };
        let beat = self.shared_heartbeat(session).await;
        match held.is_still_in(self.session()) {
            false => Ok(RenewOutcome::Lost),
            true => beat.map(|()| match self.valid_until(session) {
                Some(valid_until) => RenewOutcome::Renewed { valid_until },
                None => RenewOutcome::Lost,
            }),
        }
    }

    async fn check_waiters(
        &self,
        _: &LockName,
        waiting: &[&SessionAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        let beat = match self.session() {
            Some(session) => self.shared_heartbeat(session).await,
            None => Ok(()),
        };
        let check = |waiter: &&SessionAcquisition| match waiter.is_still_in(self.session()) {
            false => WaiterCheck::Attempt,
            true => WaiterCheck::Again(self.heartbeat_every()),
        };
        let checks: Vec<WaiterCheck> = waiting.iter().map(check).collect();
        match beat {
            Err(error) if checks.iter().any(|check| *check != WaiterCheck::Attempt) => {
                let gone =
                    checks.iter().zip(waiting).filter(|(check, _)| **check == WaiterCheck::Attempt);
                gone.for_each(|(_, waiter)| {
                    waiter.claim().wake();
                });
                Err(error)
            }
            _ => Ok(checks),
        }
    }

    async fn inspect(&self, _: &LockName) -> Result<Snapshot> {
        Ok(Snapshot::default())
    }

    async fn evict(&self, _: &LockName, _: &ParticipantId) -> Result<ReleaseOutcome> {
        Ok(ReleaseOutcome::Absent)
    }

    async fn close(&self) -> Result<()> {
        let Some(session) = self.session() else { return Ok(()) };
        let server = self.server.clone();
        let closed = self.link.call(0, self.request_bound(), move || server.close(session)).await;
        closed.ok_or_else(unreachable)
    }
}
