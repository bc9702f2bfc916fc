//! The connected store: its session of the moment, and the batches that core sends.

use std::any::Any;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::{
    BootClock, Claim, Clock, Contender, DistributedLock, Error, ErrorKind, Liveness, LockName,
    Look, Modes, OccupantId, Order, Profile, Reach, Removal, Renewal, RenewalPlan, Report, Result,
    Snapshot, Tokens, Ttl,
};
use futures_util::future::join_all;
use tokio::runtime::Handle;

use crate::access::Access;
use crate::contender::{Upkeep, ZkContender};
use crate::error::closed;
use crate::session::Session;
use crate::{path, snapshot};

/// For connecting, whatever the session timeout is.
const CONNECTING: Duration = Duration::from_secs(5);

/// What no margin covers: docs/zookeeper.md has more words for it.
const FAILS_WHEN: &[&str] = &[
    "the servers have different bounds for session timeouts",
    "a follower is cut off from its leader in the moment in which it thaws",
    "a person breaks the lock, until its holder has heard of it",
];

pub(crate) struct Store {
    pub(crate) access: Access,
    pub(crate) clock: Arc<BootClock>,
    /// Where the transport lives: sessions are made from wherever somebody acquires.
    runtime: Handle,
    /// As the servers granted it.
    timeout: Duration,
    profile: Profile,
    session: Mutex<Option<Arc<Session>>>,
    opening: tokio::sync::Mutex<Option<Error>>,
    /// How often it was tried to make a session.
    openings: AtomicU64,
    is_closed: AtomicBool,
    /// Everybody with a seat.
    claims: Mutex<HashMap<u64, Weak<Claim>>>,
}

impl Store {
    /// With its first session, for which this timeout is asked.
    pub(crate) async fn connect(
        access: Access,
        timeout: Duration,
        clock: Arc<BootClock>,
        runtime: Handle,
    ) -> Result<Arc<Store>> {
        let session = access.open(&clock, timeout).await?;
        let timeout = session.timeout();
        let profile = Profile {
            store: "zookeeper",
            reach: Reach::Network,
            liveness: Liveness::Session(timeout),
            renewal: RenewalPlan::Every(session.heartbeat()),
            longest_ttl: Ttl::MAX,
            order: Order::Arrival,
            modes: Modes::ALL,
            tokens: Tokens::Data,
            exclusion_fails_when: Cow::Borrowed(FAILS_WHEN),
        };
        let store = Arc::new(Store {
            access,
            clock,
            runtime,
            timeout,
            profile,
            session: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            openings: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            claims: Mutex::default(),
        });
        store.take(session);
        Ok(store)
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Session>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session, unless it is over.
    fn current(&self) -> Option<Arc<Session>> {
        self.slot().clone().filter(|session| !session.is_over())
    }

    /// The session; a new one when the last is over.
    pub(crate) async fn session(self: &Arc<Store>) -> Result<Arc<Session>> {
        match self.current() {
            Some(session) => Ok(session),
            None => {
                let store = self.clone();
                let since = self.openings.load(Ordering::Acquire);
                // On the store's own runtime, and to its end: it is everybody's.
                let opening = self.runtime.spawn(async move { store.open(since).await });
                opening.await.unwrap_or_else(|_| Err(closed()))
            }
        }
    }

    /// A new session, unless there was a try since the `since`-th: then what that came to.
    async fn open(self: Arc<Store>, since: u64) -> Result<Arc<Session>> {
        let mut failed = self.opening.lock().await;
        if self.is_closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        if let Some(session) = self.current() {
            return Ok(session);
        }
        if let (true, Some(error)) = (self.openings.load(Ordering::Acquire) > since, &*failed) {
            return Err(error.clone());
        }
        let bound = self.timeout.max(CONNECTING);
        let until = self.clock.now().after(bound);
        let opened = tokio::select! {
            biased;
            opened = self.access.open(&self.clock, self.timeout) => opened,
            () = self.clock.sleep_until(until) => {
                let message = format!("no new session within {bound:?}");
                Err(Error::new(ErrorKind::Unreachable, message))
            }
        };
        self.openings.fetch_add(1, Ordering::AcqRel);
        *failed = opened.as_ref().err().cloned();
        Ok(self.take(opened?))
    }

    /// From now on everything happens in `session`.
    fn take(self: &Arc<Store>, session: Session) -> Arc<Session> {
        let session = Arc::new(session);
        tracing::debug!(%session, "a new session");
        *self.slot() = Some(session.clone());
        if self.is_closed.load(Ordering::Acquire) {
            session.end();
        }
        let store = Arc::downgrade(self);
        self.runtime.spawn(session.clone().accompany(move || {
            if let Some(store) = store.upgrade() {
                store.ring_all();
            }
        }));
        session
    }

    /// Has everybody find out.
    fn ring_all(&self) {
        let claims: Vec<_> = self.claims().values().filter_map(Weak::upgrade).collect();
        for claim in claims {
            claim.ring();
        }
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<u64, Weak<Claim>>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enter(&self, claim: &Arc<Claim>) {
        self.claims().insert(claim.id(), Arc::downgrade(claim));
    }

    pub(crate) fn leave(&self, claim: &Claim) {
        let mut claims = self.claims();
        claims.remove(&claim.id());
        // Not for ever as large as the largest crowd.
        if claims.capacity() > 4096 && claims.len() < claims.capacity() / 8 {
            claims.shrink_to_fit();
        }
    }

    pub(crate) fn path_of(&self, name: &LockName) -> Result<String> {
        path::of_lock(&self.access.root, name.key())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Its companion would keep it.
        if let Some(session) = self.slot().take() {
            session.end();
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("session", &*self.slot()).finish_non_exhaustive()
    }
}

/// The store as core drives it.
#[derive(Debug)]
pub(crate) struct Driver {
    store: Arc<Store>,
}

impl Driver {
    pub(crate) fn new(store: Arc<Store>) -> Driver {
        Driver { store }
    }
}

/// The driver's own seat behind the trait.
fn own(contender: &Arc<dyn Contender>) -> Option<&ZkContender> {
    let any: &dyn Any = &**contender;
    any.downcast_ref()
}

/// The indices of contenders by the session that they live by: one, but for a moment.
#[derive(Default)]
struct BySession {
    sessions: Vec<(Arc<Session>, Vec<usize>)>,
    /// Those that have none.
    homeless: Vec<usize>,
}

impl BySession {
    fn of(contenders: &[Arc<dyn Contender>]) -> BySession {
        let mut all = BySession::default();
        for (index, contender) in contenders.iter().enumerate() {
            let Some(session) = own(contender).and_then(ZkContender::lives_by) else {
                all.homeless.push(index);
                continue;
            };
            match all.sessions.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &session)) {
                Some((_, indices)) => indices.push(index),
                None => all.sessions.push((session, vec![index])),
            }
        }
        all
    }
}

#[async_trait]
impl DistributedLock for Driver {
    fn profile(&self) -> &Profile {
        &self.store.profile
    }

    fn clock(&self) -> &dyn Clock {
        &*self.store.clock
    }

    fn enter(&self, claim: Arc<Claim>) -> Arc<dyn Contender> {
        Arc::new(ZkContender::new(self.store.clone(), claim))
    }

    async fn renew(&self, held: &[Arc<dyn Contender>], report: Report<'_, Renewal>) {
        let BySession { sessions, homeless } = BySession::of(held);
        homeless.into_iter().for_each(|index| report(index, Ok(Renewal::Lost)));
        join_all(sessions.into_iter().map(async |(session, indices)| {
            let beat = session.beat().await;
            for index in indices {
                // Looked at again: a node may have gone meanwhile, or all of them.
                let is_there = own(&held[index]).and_then(ZkContender::lives_by).is_some();
                let valid_until = session.deadline().filter(|_| is_there);
                report(
                    index,
                    match (&beat, valid_until) {
                        (_, None) => Ok(Renewal::Lost),
                        (Ok(()), Some(valid_until)) => Ok(Renewal::Renewed { valid_until }),
                        (Err(trouble), Some(_)) => Err(trouble.clone().into()),
                    },
                );
            }
        }))
        .await;
    }

    async fn look(&self, waiting: &[Arc<dyn Contender>], report: Report<'_, Look>) {
        let BySession { sessions, homeless } = BySession::of(waiting);
        homeless.into_iter().for_each(|index| report(index, Ok(Look::Attempt)));
        join_all(sessions.into_iter().map(async |(session, indices)| {
            let beat = session.beat().await;
            let waiters = || indices.iter().filter_map(|at| own(&waiting[*at]));
            let now = self.store.clock.now();
            join_all(waiters().map(|waiter| waiter.pass_over(now))).await;
            let upkeep = Upkeep::of(&session, waiters()).await;
            for index in indices {
                let Some(waiter) = own(&waiting[index]) else { continue };
                report(
                    index,
                    match &beat {
                        _ if upkeep.must_attempt(waiter) => Ok(Look::Attempt),
                        Ok(()) => Ok(Look::Again(session.heartbeat())),
                        Err(trouble) => Err(trouble.clone().into()),
                    },
                );
            }
        }))
        .await;
    }

    async fn inspect(&self, name: &LockName) -> Result<Snapshot> {
        let session = self.store.session().await?;
        let lock = self.store.path_of(name)?;
        Ok(snapshot::of(&session, &lock).await?.into_snapshot())
    }

    async fn evict(&self, name: &LockName, who: &OccupantId) -> Result<Removal> {
        let session = self.store.session().await?;
        let lock = self.store.path_of(name)?;
        snapshot::evict(&session, &lock, who).await
    }

    async fn close(&self) -> Result<()> {
        self.store.is_closed.store(true, Ordering::Release);
        let session = self.store.slot().clone();
        if let Some(session) = session {
            session.close().await;
        }
        Ok(())
    }
}
