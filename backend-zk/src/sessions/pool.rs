//! The sessions of a client: one, and more while its claims and cells watch more than one session can
//! carry through a reconnect (see [`budget`](crate::sessions::budget)).
//!
//! A claim belongs to the session that created its node, from its queueing to its release. The
//! sessions do not depend on each other: each has its own heartbeat, deadline and end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::sync::Mutex;
use fencelock_core::{BootClock, Claim, Clock, Error, ErrorKind, LockName, Result};
use futures_util::future::join_all;
use tokio::runtime::Handle;

use crate::connection::access::Access;
use crate::error::closed;
use crate::queue::path;
use crate::sessions::budget::{Reservation, WatchedCell};
use crate::sessions::session::Session;

/// The shortest bound of opening a session, whatever the session timeout is.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A session, and room in it for one claim.
#[derive(Clone)]
pub(crate) struct Slot {
    pub(crate) session: Arc<Session>,
    pub(crate) reservation: Arc<Reservation>,
}

pub(crate) struct Pool {
    pub(crate) access: Access,
    pub(crate) clock: Arc<BootClock>,
    /// Where the transport runs: any claim's task may open a session.
    runtime: Handle,
    /// The session timeout that the servers granted.
    pub(crate) timeout: Duration,
    /// The sessions that are not over, the oldest first.
    sessions: Mutex<Vec<Arc<Session>>>,
    opening: tokio::sync::Mutex<Option<Error>>,
    /// How many attempts to open a session have ended.
    attempts: AtomicU64,
    is_closed: AtomicBool,
}

impl Pool {
    /// Opens the first session, with this timeout.
    pub(crate) async fn connect(
        access: Access,
        timeout: Duration,
        clock: Arc<BootClock>,
        runtime: Handle,
    ) -> Result<Arc<Pool>> {
        let opened = access.open_first(&clock, timeout).await?;
        let session = Session::new(opened, access.root.clone(), clock.clone());
        let pool = Arc::new(Pool {
            access,
            clock,
            runtime,
            timeout: session.timeout,
            sessions: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            attempts: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        });
        pool.add(session);
        Ok(pool)
    }

    pub(crate) fn path_of(&self, name: &LockName) -> Result<String> {
        path::of_lock(&self.access.root, name.key())
    }

    pub(crate) fn path_of_cell(&self, name: &LockName) -> Result<String> {
        path::of_cell(&self.access.root, name.key())
    }

    /// What `find` finds in one of the sessions that are not over. The oldest come first, so that
    /// the youngest fall idle and can be closed.
    fn find<T>(&self, find: impl Fn(&Arc<Session>) -> Option<T>) -> Option<T> {
        self.sessions.lock().iter().filter(|session| !session.is_over()).find_map(find)
    }

    /// Whether the server of a session may be behind another server, which has confirmed a release:
    /// in an ensemble, also to another client; and several sessions may be on several servers.
    pub(crate) fn may_lag(&self) -> bool {
        self.access.hosts.len() > 1 || self.sessions.lock().len() > 1
    }

    /// Any session.
    pub(crate) async fn session(self: &Arc<Pool>) -> Result<Arc<Session>> {
        self.obtain(|session| Some(session.clone())).await
    }

    /// Reserves room for a claim whose node has a path of up to `own` bytes.
    pub(crate) async fn reserve(
        self: &Arc<Pool>,
        claim: &Arc<Claim>,
        own: usize,
        may_wait: bool,
    ) -> Result<Slot> {
        let claim = claim.clone();
        self.obtain(move |session| {
            let reservation = Reservation::new(&session.budget, &claim, own, may_wait)?;
            Some(Slot { session: session.clone(), reservation })
        })
        .await
    }

    /// Reserves room for a watch of the cell at `path`. A watch that is added to another one of the
    /// same cell finds room where that is, unless an older session has room by now.
    pub(crate) async fn reserve_cell(
        self: &Arc<Pool>,
        path: &str,
    ) -> Result<(Arc<Session>, WatchedCell)> {
        let path = path.to_owned();
        self.obtain(move |session| {
            WatchedCell::new(&session.budget, &path).map(|room| (session.clone(), room))
        })
        .await
    }

    /// What `find` finds in the sessions, or in a new one.
    async fn obtain<T: Send + 'static>(
        self: &Arc<Pool>,
        find: impl Fn(&Arc<Session>) -> Option<T> + Send + 'static,
    ) -> Result<T> {
        if let Some(found) = self.find(&find) {
            return Ok(found);
        }
        let pool = self.clone();
        let since = self.attempts.load(Ordering::Acquire);
        // On the client's runtime, and not cancelled with the caller: the session is for all claims.
        let opening = self.runtime.spawn(async move { pool.open(since, find).await });
        opening.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Opens a session for [`obtain`](Pool::obtain), one call after the other, so that many claims
    /// open few sessions. All calls that waited for a failed attempt return its error: one that
    /// ended after `since` others.
    async fn open<T>(
        self: Arc<Pool>,
        since: u64,
        find: impl Fn(&Arc<Session>) -> Option<T>,
    ) -> Result<T> {
        let mut failed = self.opening.lock().await;
        // Repeated if the new session is already full, or over.
        for _ in 0..2 {
            if self.is_closed.load(Ordering::Acquire) {
                return Err(closed());
            }
            if let Some(found) = self.find(&find) {
                return Ok(found);
            }
            if self.attempts.load(Ordering::Acquire) > since
                && let Some(error) = &*failed
            {
                return Err(error.clone());
            }
            let opened = self.open_one().await;
            self.attempts.fetch_add(1, Ordering::AcqRel);
            *failed = opened.as_ref().err().cloned();
            self.add(opened?);
        }
        self.find(find).ok_or_else(|| {
            Error::new(ErrorKind::Unreachable, "sessions with the servers end as soon as they open")
        })
    }

    async fn open_one(&self) -> Result<Session> {
        let bound = self.timeout.max(CONNECT_TIMEOUT);
        let until = self.clock.now() + bound;
        tokio::select! {
            biased;
            opened = self.access.open(&self.clock, self.timeout) => {
                Ok(Session::new(opened?, self.access.root.clone(), self.clock.clone()))
            }
            () = self.clock.sleep_until(until) => {
                let message = format!("no new session within {bound:?}");
                Err(Error::new(ErrorKind::Unreachable, message))
            }
        }
    }

    /// Adds `session`, which is monitored from now on and accepts claims.
    fn add(self: &Arc<Pool>, session: Session) {
        let session = Arc::new(session);
        tracing::debug!(%session, "a new session");
        self.sessions.lock().push(session.clone());
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
                pool.sessions.lock().retain(|other| !Arc::ptr_eq(other, &session));
            }
        });
    }

    /// Ends all sessions and waits until the servers have confirmed it.
    pub(crate) async fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let sessions = self.sessions.lock().clone();
        join_all(sessions.iter().map(|session| session.close())).await;
    }
}

/// Ends a session that is not the oldest once no claim has used it for the session timeout.
async fn retire(pool: &Weak<Pool>, session: &Arc<Session>) {
    let mut unused = None;
    loop {
        session.sleep(session.timeout).await;
        let Some(pool) = pool.upgrade() else { return };
        let is_oldest =
            pool.sessions.lock().first().is_none_or(|oldest| Arc::ptr_eq(oldest, session));
        let since = std::mem::replace(&mut unused, session.budget.unused_after());
        let is_unused = |since| session.budget.close_if_unused_since(since);
        if !is_oldest && since.is_some_and(is_unused) {
            tracing::debug!(%session, "the session is not used any more");
            return session.end();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Their monitoring tasks hold them.
        self.sessions.lock().drain(..).for_each(|session| session.end());
    }
}
