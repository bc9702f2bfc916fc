//! One session with the servers: what the claims in it live by.
//!
//! A server deletes a session's nodes when it has heard nothing for the negotiated timeout T. What
//! it has heard is known from one thing alone: a write that a quorum committed. Reads and pings
//! prove nothing, for a server that is cut off from its leader answers them by itself. So whatever
//! the session holds is valid until 0.64 T after the newest committed write was **sent**, and the
//! transport's own word that a session has expired, which comes long after T, is not waited for.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fencelock_core::batching::Batcher;
use fencelock_core::{BootClock, Claim, Clock, Moment};
use tokio::runtime::Handle;
use zookeeper_client::{Client, Error as ZkError, SessionState, StateWatcher};

use crate::batch::{BatchedRequest, LIMITS};
use crate::budget::Budget;
use crate::error::{Certainty, RequestError, ZkResult};
use crate::life::SessionLiveness;
use crate::lookout::HeldNodeWatcher;
use crate::node::Node;

pub(crate) struct Session {
    /// Until the session is over: dropping the last one has the transport close the session.
    client: Mutex<Option<Arc<Client>>>,
    states: StateWatcher,
    id: i64,
    timeout: Duration,
    /// The node that the heartbeat looks at.
    root: Arc<str>,
    clock: Arc<BootClock>,
    liveness: Mutex<SessionLiveness>,
    /// How often the connection has come back.
    reconnects: AtomicU64,
    /// Why the last heartbeat had no answer, if it had none; held while one is under way.
    heartbeat_lock: tokio::sync::Mutex<Option<RequestError>>,
    /// How many heartbeats have ended.
    beats: AtomicU64,
    held_nodes: HeldNodeWatcher,
    /// What its claims may watch.
    pub(crate) budget: Budget,
    /// The nodes that wait, or have waited, in it, by their paths.
    waiting: Mutex<HashMap<String, Weak<Node>>>,
    pub(crate) batcher: Batcher<BatchedRequest>,
    /// The servers have no `multiRead`, which came with ZooKeeper 3.6.
    no_multi_read: AtomicBool,
    pub(crate) runtime: Handle,
}

impl Session {
    /// Of `client`, whose connection was asked for at `sent`.
    pub(crate) fn new(
        client: Client,
        root: Arc<str>,
        clock: Arc<BootClock>,
        sent: Moment,
    ) -> Session {
        let liveness = SessionLiveness::new(client.session_timeout(), sent);
        Session {
            states: client.state_watcher(),
            id: client.session_id().0,
            timeout: client.session_timeout(),
            client: Mutex::new(Some(Arc::new(client))),
            root,
            clock,
            liveness: Mutex::new(liveness),
            reconnects: AtomicU64::new(0),
            heartbeat_lock: tokio::sync::Mutex::default(),
            beats: AtomicU64::new(0),
            held_nodes: HeldNodeWatcher::default(),
            budget: Budget::default(),
            waiting: Mutex::default(),
            batcher: Batcher::new(LIMITS),
            no_multi_read: AtomicBool::new(false),
            runtime: Handle::current(),
        }
    }

    /// The timeout that the servers granted.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A view of the connection's states, of which those from now on count as changes.
    pub(crate) fn states(&self) -> StateWatcher {
        let mut states = self.states.clone();
        states.state();
        states
    }

    /// The owner of the nodes made in it.
    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    /// How often it has to be heard of while anything depends on it.
    pub(crate) fn heartbeat_interval(&self) -> Duration {
        heartbeat_interval(self.timeout)
    }

    fn liveness(&self) -> MutexGuard<'_, SessionLiveness> {
        self.liveness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until when what it holds may be believed in, unless it is over.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        self.liveness().deadline()
    }

    fn committed(&self) -> Moment {
        self.liveness().committed()
    }

    /// A write that was sent at `sent` has been committed. The server has looked at the session
    /// before.
    fn commit(&self, sent: Moment) -> ZkResult<()> {
        match self.liveness().commit(sent) {
            true => Ok(()),
            false => Err(RequestError::SessionOver),
        }
    }

    /// How often the connection has come back: watches may have been lost each time.
    pub(crate) fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Acquire)
    }

    /// Nothing of it is held, waits or is adopted any more, whatever the servers still have.
    pub(crate) fn is_over(&self) -> bool {
        self.liveness().is_over()
    }

    /// Ends it for this process, for good. What the servers still have of it goes as soon as the
    /// transport reaches them, or with their own timeout.
    pub(crate) fn end(&self) {
        self.liveness().end();
        self.client_slot().take();
    }

    fn client_slot(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The transport. It sends a request when its method is called, in that order, whether or not
    /// the future is polled or dropped.
    pub(crate) fn client(&self) -> ZkResult<Arc<Client>> {
        self.client_slot().clone().ok_or(RequestError::SessionOver)
    }

    /// Sleeps by the clock of its deadlines.
    pub(crate) async fn sleep(&self, duration: Duration) {
        self.clock.sleep_until(self.clock.now() + duration).await;
    }

    /// To be called before a write is sent.
    pub(crate) fn mark_sent(&self) -> Moment {
        let now = self.clock.now();
        self.liveness().mark_sent(now);
        now
    }

    /// The answer to a write that was sent at `sent`.
    pub(crate) async fn write<T, E: Into<RequestError>>(
        &self,
        sent: Moment,
        request: impl Future<Output = Result<T, E>>,
    ) -> ZkResult<T> {
        let answer = self.read(request).await?;
        self.commit(sent)?;
        Ok(answer)
    }

    /// The answer to a request that proves nothing.
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

    /// Whether the session can be believed in after this.
    fn check_liveness(&self, error: &RequestError) {
        let is_over = {
            let mut liveness = self.liveness();
            let silent =
                error.certainty() == Certainty::Unknown && liveness.is_silent(self.clock.now());
            let is_over =
                !liveness.is_over() && (silent || error.certainty() == Certainty::SessionOver);
            if is_over {
                liveness.end();
            }
            is_over
        };
        if is_over {
            tracing::warn!(session = %self, ?error, "the session is over");
            self.end();
        }
    }

    /// A sign of life that a quorum commits, for all that the session holds, unless there was one
    /// just now. It changes nothing and fires no watch. All who ask for it at the same time share
    /// one request and its answer, also where it has none.
    pub(crate) async fn send_heartbeat(&self) -> ZkResult<()> {
        let enough = self.clock.now() - self.heartbeat_interval() / 4;
        let mut error = RequestError::SessionOver;
        // Once more at once: the first may have been sent on a connection that was dead already.
        for _ in 0..2 {
            let before = self.beats.load(Ordering::Acquire);
            let mut failed = self.heartbeat_lock.lock().await;
            if self.is_over() {
                return Err(RequestError::SessionOver);
            }
            if self.committed() >= enough {
                return Ok(());
            }
            if let (true, Some(shared)) = (self.beats.load(Ordering::Acquire) > before, &*failed) {
                error = shared.clone();
                match error.certainty() {
                    Certainty::Declined => return Err(error),
                    _ => continue,
                }
            }
            let client = self.client()?;
            let sent = self.mark_sent();
            let mut writer = client.new_multi_writer();
            writer.add_check_version(&self.root, -1)?;
            let answer = self.bounded(self.timeout / 5, writer.commit()).await;
            *failed = answer.as_ref().err().cloned();
            self.beats.fetch_add(1, Ordering::AcqRel);
            match answer {
                Ok(_) => return self.commit(sent),
                Err(error) if error.certainty() == Certainty::Declined => return Err(error),
                Err(error) => error = error,
            }
        }
        Err(error)
    }

    /// A sign of life, unless the last one is recent enough for a grant.
    pub(crate) async fn ensure_fresh(&self) -> ZkResult<()> {
        match self.clock.now().duration_since(self.committed()) < self.heartbeat_interval() * 2 {
            true => Ok(()),
            false => self.send_heartbeat().await,
        }
    }

    /// The nodes that wait, or have waited, in it, by their paths.
    pub(crate) fn waiting(&self) -> MutexGuard<'_, HashMap<String, Weak<Node>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the servers can list several locks in one request, as far as is known.
    pub(crate) fn has_multi_read(&self) -> bool {
        !self.no_multi_read.load(Ordering::Acquire)
    }

    /// They cannot: ZooKeeper 3.5 says so, and closes the connection each time that it is asked.
    pub(crate) fn set_no_multi_read(&self) {
        self.no_multi_read.store(true, Ordering::Release);
    }

    /// Has the claim rung when `node`, which it holds, is gone.
    pub(crate) fn watch_later(&self, claim: &Arc<Claim>, node: &Arc<Node>) {
        self.held_nodes.expect(claim, node, self.clock.now());
    }

    /// Follows the session until it is over, and then rings its claims.
    pub(crate) async fn run(self: Arc<Session>) {
        let _at_the_end = EndOnDrop(&self);
        tokio::select! {
            () = self.follow_connection() => {}
            () = self.held_nodes.keep(&self.clock) => {}
        }
    }

    /// Goes along with the connection until the session is over. What waits or is held needs no
    /// word of a return: its watches come back with the connection, and its renewal is asked for
    /// again and again.
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

    /// Ends it and waits, for a fifth of T at most, until the servers know.
    pub(crate) async fn close(&self) {
        self.end();
        let ended = async {
            let mut states = self.states.clone();
            let mut state = states.state();
            while !is_final(state) {
                state = states.changed().await;
            }
            Ok::<_, ZkError>(())
        };
        let _ = self.bounded(self.timeout / 5, ended).await;
    }
}

/// How often a session with this timeout has to be heard of while anything depends on it.
pub(crate) fn heartbeat_interval(timeout: Duration) -> Duration {
    timeout / 10
}

fn is_final(state: SessionState) -> bool {
    matches!(state, SessionState::AuthFailed | SessionState::Expired | SessionState::Closed)
}

/// However its companion ends, by a panic of the transport too, the session does.
struct EndOnDrop<'a>(&'a Session);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end();
        for claim in self.0.budget.claims() {
            claim.wake();
        }
    }
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.id)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &format_args!("{:#x}", self.id))
            .field("timeout", &self.timeout)
            .field("over", &self.is_over())
            .finish_non_exhaustive()
    }
}
