//! One session with the servers.
//!
//! The servers delete a session's nodes when they have heard nothing of it for the negotiated
//! timeout T. Only one thing proves what they have heard: a write that a quorum committed. Reads and
//! pings prove nothing, for a server that is cut off from its leader answers them by itself. So
//! whatever the session holds is valid until 0.64 T after the newest committed write was **sent**;
//! the transport's own report that a session has expired comes long after T, and is not waited for.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fencelock_core::batching::Batcher;
use fencelock_core::sync::Mutex;
use fencelock_core::{BootClock, Clock, Moment};
use tokio::runtime::Handle;
use zookeeper_client::{Client, Error as ZkError, SessionState, Stat, StateWatcher};

use crate::connection::access::Opened;
use crate::connection::owners::Owners;
use crate::error::{Certainty, RequestError, ZkResult};
use crate::sessions::batched_request::{BatchedRequest, LIMITS};
use crate::sessions::budget::Budget;
use crate::sessions::deferred_watches::DeferredWatches;
use crate::sessions::liveness::SessionLiveness;
use crate::sessions::queue_marks::QueueMarks;

pub(crate) struct Session {
    /// `None` when the session is over: dropping the last one has the transport close the session.
    client: Mutex<Option<Arc<Client>>>,
    states: StateWatcher,
    /// The owner of the nodes that the session has created.
    pub(crate) id: i64,
    /// The timeout that the servers granted.
    pub(crate) timeout: Duration,
    /// Whose nodes are believed; `None`: everybody's.
    pub(crate) owners: Option<Owners>,
    /// The node that the heartbeat checks.
    root: Arc<str>,
    clock: Arc<BootClock>,
    liveness: Mutex<SessionLiveness>,
    /// How often the connection was established again.
    reconnects: AtomicU64,
    /// The error of the last heartbeat, if it failed. Locked while a heartbeat is in flight.
    last_heartbeat_error: tokio::sync::Mutex<Option<RequestError>>,
    /// How many heartbeats have succeeded or failed.
    heartbeats_done: AtomicU64,
    /// How much its claims may watch.
    pub(crate) budget: Arc<Budget>,
    pub(crate) queue_marks: QueueMarks,
    pub(crate) deferred_watches: DeferredWatches,
    pub(crate) batcher: Batcher<BatchedRequest>,
    /// The servers do not know `multiRead`, which came with ZooKeeper 3.6: they have answered so,
    /// and closed the connection, which they would do each time.
    pub(crate) no_multi_read: AtomicBool,
    pub(crate) runtime: Handle,
}

impl Session {
    /// Requires that nobody but this session's login may change the node at `path`, or what is below it. `as_read`
    /// is what was read of the same node just before, by which another one in its place is noticed.
    pub(crate) async fn require_own(&self, path: &str, as_read: Option<&Stat>) -> ZkResult<()> {
        let Some(owners) = &self.owners else { return Ok(()) };
        let client = self.client()?;
        let not_own = |by| Err(RequestError::NotOwn { path: path.to_owned(), by });
        match self.read(client.get_acl(path)).await {
            Ok((_, stat)) if as_read.is_some_and(|read| read.czxid != stat.czxid) => {
                Err(ZkError::NodeExists.into())
            }
            Ok((acls, _)) => match owners.stranger(&acls) {
                Some(id) => not_own(format!("{}:{}", id.scheme(), id.id())),
                None => Ok(()),
            },
            Err(RequestError::Zk(ZkError::NoAuth)) => not_own("others alone".to_owned()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn new(opened: Opened, root: Arc<str>, clock: Arc<BootClock>) -> Session {
        let Opened { client, sent, owners } = opened;
        let liveness = SessionLiveness::new(client.session_timeout(), sent);
        Session {
            states: client.state_watcher(),
            id: client.session_id().0,
            timeout: client.session_timeout(),
            client: Mutex::new(Some(Arc::new(client))),
            owners,
            root,
            liveness: Mutex::new(liveness),
            reconnects: AtomicU64::new(0),
            last_heartbeat_error: tokio::sync::Mutex::default(),
            heartbeats_done: AtomicU64::new(0),
            budget: Arc::default(),
            queue_marks: QueueMarks::default(),
            deferred_watches: DeferredWatches::new(clock.clone()),
            clock,
            batcher: Batcher::new(LIMITS),
            no_multi_read: AtomicBool::new(false),
            runtime: Handle::current(),
        }
    }

    /// A watcher of the connection's states that reports changes from now on.
    pub(crate) fn states(&self) -> StateWatcher {
        let mut states = self.states.clone();
        states.state();
        states
    }

    /// The longest time between two committed writes while anything depends on the session.
    pub(crate) fn heartbeat_interval(&self) -> Duration {
        heartbeat_interval(self.timeout)
    }

    /// Until when what the session holds is valid; `None` when the session is over.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        self.liveness.lock().deadline()
    }

    /// Records that a write that was sent at `sent` has been committed. The server has checked
    /// before that the session is alive.
    fn commit(&self, sent: Moment) -> ZkResult<()> {
        if self.liveness.lock().commit(sent) { Ok(()) } else { Err(RequestError::SessionOver) }
    }

    /// How often the connection was established again: watches may have been missed each time.
    pub(crate) fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Acquire)
    }

    /// Whether nothing of the session may be held, waited for or adopted any more, whatever nodes
    /// the servers still have.
    pub(crate) fn is_over(&self) -> bool {
        self.liveness.lock().is_over()
    }

    /// Ends the session for this client, for good. The servers delete its nodes as soon as the
    /// transport reaches them, or after the session timeout.
    pub(crate) fn end(&self) {
        self.liveness.lock().end();
        self.client.lock().take();
    }

    /// The transport. It sends a request when its method is called, in the order of the calls,
    /// whether or not the future is polled or dropped.
    pub(crate) fn client(&self) -> ZkResult<Arc<Client>> {
        self.client.lock().clone().ok_or(RequestError::SessionOver)
    }

    /// Sleeps by the clock of the session's deadlines.
    pub(crate) async fn sleep(&self, duration: Duration) {
        self.clock.sleep_until(self.clock.now() + duration).await;
    }

    /// Must be called before a write is sent.
    pub(crate) fn mark_sent(&self) -> Moment {
        let now = self.clock.now();
        self.liveness.lock().mark_sent(now);
        now
    }

    /// Awaits the answer to a write that was sent at `sent`.
    pub(crate) async fn write<T, E: Into<RequestError>>(
        &self,
        sent: Moment,
        request: impl Future<Output = Result<T, E>>,
    ) -> ZkResult<T> {
        let answer = self.read(request).await?;
        self.commit(sent)?;
        Ok(answer)
    }

    /// Awaits the answer to a request that proves nothing about the session.
    pub(crate) async fn read<T, E: Into<RequestError>>(
        &self,
        request: impl Future<Output = Result<T, E>>,
    ) -> ZkResult<T> {
        self.bounded(self.timeout / 2, request).await
    }

    async fn bounded<T, E: Into<RequestError>>(
        &self,
        bound: Duration,
        request: impl Future<Output = Result<T, E>>,
    ) -> ZkResult<T> {
        let until = self.clock.now() + bound;
        let answer = tokio::select! {
            biased;
            answer = request => answer.map_err(Into::into),
            () = self.clock.sleep_until(until) => Err(RequestError::TimedOut(bound)),
        };
        answer.inspect_err(|error| self.check_liveness(error))
    }

    /// Ends the session if it cannot be relied on after this error.
    fn check_liveness(&self, error: &RequestError) {
        let mut liveness = self.liveness.lock();
        let is_lost = match error.certainty() {
            Certainty::Declined => false,
            Certainty::Unknown => liveness.is_silent(self.clock.now()),
            Certainty::SessionOver => true,
        };
        if is_lost && !liveness.is_over() {
            // Under the same lock: from here on no answer extends anything.
            liveness.end();
            drop(liveness);
            tracing::warn!(session = %self, ?error, "the session is over");
            self.end();
        }
    }

    /// Sends a heartbeat, a write that a quorum commits, for all that the session holds, unless a
    /// write was committed just now. It changes nothing and fires no watch. Concurrent calls share
    /// one request and its result, also when it fails.
    pub(crate) async fn send_heartbeat(&self) -> ZkResult<()> {
        // Older answers are not believed at the end of a wait limit.
        let enough = (self.heartbeat_interval() / 4).min(Duration::from_millis(400));
        let enough = self.clock.now() - enough;
        let mut last_error = RequestError::SessionOver;
        // Repeated at once: the first may have been sent on a connection that was dead already.
        for _ in 0..2 {
            let done_before = self.heartbeats_done.load(Ordering::Acquire);
            let mut last_failure = self.last_heartbeat_error.lock().await;
            if self.is_over() {
                return Err(RequestError::SessionOver);
            }
            if self.liveness.lock().committed() >= enough {
                return Ok(());
            }
            // The failure of a heartbeat that ended while this call waited for the lock is shared.
            let is_shared = self.heartbeats_done.load(Ordering::Acquire) > done_before;
            if !is_shared || last_failure.is_none() {
                let client = self.client()?;
                let sent = self.mark_sent();
                let mut writer = client.new_multi_writer();
                writer.add_check_version(&self.root, -1)?;
                let answer = self.bounded(self.timeout / 5, writer.commit()).await;
                *last_failure = answer.as_ref().err().cloned();
                self.heartbeats_done.fetch_add(1, Ordering::AcqRel);
                if answer.is_ok() {
                    return self.commit(sent);
                }
            }
            if let Some(error) = &*last_failure {
                last_error = error.clone();
            }
            if last_error.certainty() == Certainty::Declined {
                break;
            }
        }
        Err(last_error)
    }

    /// Sends a heartbeat, unless the last committed write is recent enough for a grant.
    pub(crate) async fn ensure_fresh(&self) -> ZkResult<()> {
        let age = self.clock.now().duration_since(self.liveness.lock().committed());
        if age < self.heartbeat_interval() * 2 { Ok(()) } else { self.send_heartbeat().await }
    }

    /// Monitors the session until it is over, and then wakes its claims.
    pub(crate) async fn run(self: Arc<Session>) {
        let _at_the_end = EndOnDrop(&self);
        tokio::select! {
            () = self.follow_connection() => {}
            () = self.deferred_watches.run() => {}
        }
    }

    /// Follows the connection's states until the session is over. A reconnect wakes no claim: the
    /// watches come back with the connection, and renewals are repeated anyway.
    async fn follow_connection(&self) {
        let mut states = self.states.clone();
        while !self.is_over() {
            match states.changed().await {
                SessionState::SyncConnected => {
                    tracing::info!(session = %self, "connected again, in the same session");
                    self.reconnects.fetch_add(1, Ordering::AcqRel);
                    // What was sent in between may be lost, and the deadline be near.
                    let _ = self.send_heartbeat().await;
                }
                SessionState::Disconnected => {
                    tracing::info!(session = %self, "the connection is lost, the session not yet");
                }
                state => {
                    tracing::debug!(session = %self, %state, "the session has ended");
                    return;
                }
            }
        }
    }

    /// Ends the session and waits, no longer than T/5, until the servers have confirmed it.
    pub(crate) async fn close(&self) {
        self.end();
        let mut states = self.states.clone();
        let ended = async {
            while !is_final(states.state()) {
                states.changed().await;
            }
        };
        tokio::select! {
            () = ended => {}
            // Not by tokio's time, which the caller's runtime may lack.
            () = self.clock.sleep_until(self.clock.now() + self.timeout / 5) => {}
        }
    }
}

/// The longest time between two committed writes of a session with this timeout, while anything
/// depends on it.
pub(crate) fn heartbeat_interval(timeout: Duration) -> Duration {
    timeout / 10
}

fn is_final(state: SessionState) -> bool {
    matches!(state, SessionState::AuthFailed | SessionState::Expired | SessionState::Closed)
}

/// Ends the session and wakes its claims however [`Session::run`] ends, also by a panic of the
/// transport.
struct EndOnDrop<'a>(&'a Session);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end();
        self.0.budget.claims.wake_all();
    }
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.id)
    }
}
