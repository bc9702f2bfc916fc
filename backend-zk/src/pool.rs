//! The sessions of a connected store: one, and more while its claims watch more than one session
//! can carry through a reconnect (see [`budget`](crate::budget)).
//!
//! A claim lives by the session that its node was made in, from its queueing to its release. The
//! sessions do not depend on each other: each has its heartbeat, its deadline and its end.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fencelock_core::{BootClock, Claim, Clock, Error, ErrorKind, LockName, Result};
use futures_util::future::join_all;
use tokio::runtime::Handle;

use crate::access::Access;
use crate::budget::Reservation;
use crate::error::closed;
use crate::path;
use crate::session::Session;

/// For connecting, whatever the session timeout is.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Pool {
    pub(crate) access: Access,
    pub(crate) clock: Arc<BootClock>,
    /// Where the transport lives: sessions are opened from the tasks of any claim.
    runtime: Handle,
    /// As the servers granted it.
    timeout: Duration,
    /// Those that are not over, the oldest first.
    sessions: Mutex<Vec<Arc<Session>>>,
    opening: tokio::sync::Mutex<Option<Error>>,
    /// How often it was tried to open a session.
    attempts: AtomicU64,
    is_closed: AtomicBool,
}

impl Pool {
    /// With its first session, for which this timeout is asked.
    pub(crate) async fn connect(
        access: Access,
        timeout: Duration,
        clock: Arc<BootClock>,
        runtime: Handle,
    ) -> Result<Arc<Pool>> {
        let session = access.open_first(&clock, timeout).await?;
        let pool = Arc::new(Pool {
            access,
            clock,
            runtime,
            timeout: session.timeout(),
            sessions: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            attempts: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        });
        pool.add(session);
        Ok(pool)
    }

    /// The session timeout that the servers granted.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn path_of(&self, name: &LockName) -> Result<String> {
        path::of_lock(&self.access.root, name.key())
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that are not over.
    fn living(&self) -> Vec<Arc<Session>> {
        self.sessions().iter().filter(|session| !session.is_over()).cloned().collect()
    }

    /// Whether the server of a session may be behind another one, which has confirmed a release: in
    /// an ensemble, also to another client; and with several sessions, which may be with several.
    pub(crate) fn may_lag(&self) -> bool {
        self.access.hosts.len() > 1 || self.sessions().len() > 1
    }

    /// Any session.
    pub(crate) async fn session(self: &Arc<Pool>) -> Result<Arc<Session>> {
        self.obtain(|pool| pool.living().into_iter().next()).await
    }

    /// Room for a claim whose node has a path of `own` bytes at most.
    pub(crate) async fn reserve(
        self: &Arc<Pool>,
        claim: &Arc<Claim>,
        own: usize,
        may_wait: bool,
    ) -> Result<Arc<Reservation>> {
        let claim = claim.clone();
        // The oldest that has room: so few sessions are in use, and the youngest can be closed.
        let reserve = move |pool: &Pool| {
            let sessions = pool.sessions();
            let mut living = sessions.iter().filter(|session| !session.is_over());
            living.find_map(|session| Reservation::new(session, &claim, own, may_wait))
        };
        self.obtain(reserve).await
    }

    /// What `find` finds in the sessions; in a new one if there is nothing.
    async fn obtain<T: Send + 'static>(
        self: &Arc<Pool>,
        find: impl Fn(&Pool) -> Option<T> + Send + 'static,
    ) -> Result<T> {
        if let Some(found) = find(self) {
            return Ok(found);
        }
        let pool = self.clone();
        let since = self.attempts.load(Ordering::Acquire);
        // On the store's own runtime, and to its end: the session is for all claims.
        let opening = self.runtime.spawn(async move { pool.open(since, find).await });
        opening.await.unwrap_or_else(|_| Err(closed()))
    }

    /// The same, one call after the other, so that many claims open few sessions. The error of a
    /// try since the `since`-th is that of all who have waited for it.
    async fn open<T>(self: Arc<Pool>, since: u64, find: impl Fn(&Pool) -> Option<T>) -> Result<T> {
        let mut failed = self.opening.lock().await;
        // Once more if the new session is full already, or over.
        for _ in 0..2 {
            if self.is_closed.load(Ordering::Acquire) {
                return Err(closed());
            }
            if let Some(found) = find(&self) {
                return Ok(found);
            }
            if let (true, Some(error)) = (self.attempts.load(Ordering::Acquire) > since, &*failed) {
                return Err(error.clone());
            }
            let opened = self.open_one().await;
            self.attempts.fetch_add(1, Ordering::AcqRel);
            *failed = opened.as_ref().err().cloned();
            self.add(opened?);
        }
        find(&self).ok_or_else(|| {
            Error::new(ErrorKind::Unreachable, "sessions with the servers end as soon as they open")
        })
    }

    async fn open_one(&self) -> Result<Session> {
        let bound = self.timeout.max(CONNECT_TIMEOUT);
        let until = self.clock.now() + bound;
        tokio::select! {
            biased;
            opened = self.access.open(&self.clock, self.timeout) => opened,
            () = self.clock.sleep_until(until) => {
                let message = format!("no new session within {bound:?}");
                Err(Error::new(ErrorKind::Unreachable, message))
            }
        }
    }

    /// From now on claims live in `session` too.
    fn add(self: &Arc<Pool>, session: Session) {
        let session = Arc::new(session);
        tracing::debug!(%session, "a new session");
        self.sessions().push(session.clone());
        if self.is_closed.load(Ordering::Acquire) {
            session.end();
        }
        let pool = Arc::downgrade(self);
        self.runtime.spawn(async move {
            tokio::select! {
                () = session.clone().run() => {}
                () = retire(&pool, &session) => {}
            }
            if let Some(pool) = pool.upgrade() {
                pool.sessions().retain(|other| !Arc::ptr_eq(other, &session));
            }
        });
    }

    /// Ends all sessions and waits until the servers know.
    pub(crate) async fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let sessions = self.sessions().clone();
        join_all(sessions.iter().map(|session| session.close())).await;
    }
}

/// Ends a session that is not the oldest once no claim has needed it for the session timeout.
async fn retire(pool: &Weak<Pool>, session: &Arc<Session>) {
    let mut unused = None;
    loop {
        session.sleep(session.timeout()).await;
        let Some(pool) = pool.upgrade() else { return };
        let is_oldest = pool.sessions().first().is_none_or(|oldest| Arc::ptr_eq(oldest, session));
        let since = std::mem::replace(&mut unused, session.budget.unused_after());
        let is_unused = |since| session.budget.close_if_unused_since(since);
        if !is_oldest && since.is_some_and(is_unused) {
            tracing::debug!(%session, "the session is not needed any more");
            return session.end();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Their companions would keep them.
        self.sessions().drain(..).for_each(|session| session.end());
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("sessions", &*self.sessions()).finish_non_exhaustive()
    }
}
