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

use fencelock_core::crowd::Crowd;
use fencelock_core::{BootClock, Claim, Clock, Moment};
use tokio::runtime::Handle;
use zookeeper_client::{Client, Error as ZkError, SessionState, StateWatcher};

use crate::batch::{LIMITS, Step};
use crate::budget::Budget;
use crate::error::{Asked, Fate, Trouble};
use crate::life::Life;
use crate::lookout::Lookout;
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
    life: Mutex<Life>,
    /// How often the connection has come back.
    returns: AtomicU64,
    /// Why the last heartbeat had no answer, if it had none; held while one is under way.
    beating: tokio::sync::Mutex<Option<Trouble>>,
    /// How many heartbeats have ended.
    beats: AtomicU64,
    lookout: Lookout,
    /// What its claims may watch.
    pub(crate) budget: Budget,
    /// The nodes that wait, or have waited, in it, by their paths.
    waiting: Mutex<HashMap<String, Weak<Node>>>,
    pub(crate) crowd: Crowd<Step>,
    /// The servers have no `multiRead`, which came with ZooKeeper 3.6.
    lists_alone: AtomicBool,
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
        let life = Life::new(client.session_timeout(), sent);
        Session {
            states: client.state_watcher(),
            id: client.session_id().0,
            timeout: client.session_timeout(),
            client: Mutex::new(Some(Arc::new(client))),
            root,
            clock,
            life: Mutex::new(life),
            returns: AtomicU64::new(0),
            beating: tokio::sync::Mutex::default(),
            beats: AtomicU64::new(0),
            lookout: Lookout::default(),
            budget: Budget::default(),
            waiting: Mutex::default(),
            crowd: Crowd::new(LIMITS),
            lists_alone: AtomicBool::new(false),
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
    pub(crate) fn heartbeat(&self) -> Duration {
        heartbeat(self.timeout)
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until when what it holds may be believed in, unless it is over.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        self.life().deadline()
    }

    fn committed(&self) -> Moment {
        self.life().committed()
    }

    /// A write that was sent at `sent` has been committed. The server has looked at the session
    /// before.
    fn commit(&self, sent: Moment) -> Asked<()> {
        match self.life().commit(sent) {
            true => Ok(()),
            false => Err(Trouble::Over),
        }
    }

    /// How often the connection has come back: watches may have been lost each time.
    pub(crate) fn returns(&self) -> u64 {
        self.returns.load(Ordering::Acquire)
    }

    /// Nothing of it is held, waits or is adopted any more, whatever the servers still have.
    pub(crate) fn is_over(&self) -> bool {
        self.life().is_over()
    }

    /// Ends it for this process, for good. What the servers still have of it goes as soon as the
    /// transport reaches them, or with their own timeout.
    pub(crate) fn end(&self) {
        self.life().end();
        self.slot().take();
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The transport. It sends a request when its method is called, in that order, whether or not
    /// the future is polled or dropped.
    pub(crate) fn client(&self) -> Asked<Arc<Client>> {
        self.slot().clone().ok_or(Trouble::Over)
    }

    /// Sleeps by the clock of its deadlines.
    pub(crate) async fn sleep(&self, duration: Duration) {
        self.clock.sleep_until(self.clock.now().after(duration)).await;
    }

    /// To be called before a write is sent.
    pub(crate) fn sending(&self) -> Moment {
        let now = self.clock.now();
        self.life().sending(now);
        now
    }

    /// The answer to a write that was sent at `sent`.
    pub(crate) async fn write<T, E: Into<Trouble>>(
        &self,
        sent: Moment,
        request: impl Future<Output = Result<T, E>>,
    ) -> Asked<T> {
        let answer = self.read(request).await?;
        self.commit(sent)?;
        Ok(answer)
    }

    /// The answer to a request that proves nothing.
    pub(crate) async fn read<T, E: Into<Trouble>>(
        &self,
        request: impl Future<Output = Result<T, E>>,
    ) -> Asked<T> {
        self.bounded(self.timeout / 2, request).await
    }

    async fn bounded<T, E: Into<Trouble>>(
        &self,
        bound: Duration,
        request: impl Future<Output = Result<T, E>>,
    ) -> Asked<T> {
        let until = self.clock.now().after(bound);
        let answer = tokio::select! {
            biased;
            answer = request => answer.map_err(Into::into),
            () = self.clock.sleep_until(until) => Err(Trouble::Silent(bound)),
        };
        answer.inspect_err(|trouble| self.judge(trouble))
    }

    /// Whether the session can be believed in after this.
    fn judge(&self, trouble: &Trouble) {
        let is_over = {
            let mut life = self.life();
            let silent = trouble.fate() == Fate::Unknown && life.is_silent(self.clock.now());
            let is_over = !life.is_over() && (silent || trouble.fate() == Fate::SessionOver);
            if is_over {
                life.end();
            }
            is_over
        };
        if is_over {
            tracing::warn!(session = %self, ?trouble, "the session is over");
            self.end();
        }
    }

    /// A sign of life that a quorum commits, for all that the session holds, unless there was one
    /// just now. It changes nothing and fires no watch. All who ask for it at the same time share
    /// one request and its answer, also where it has none.
    pub(crate) async fn beat(&self) -> Asked<()> {
        let enough = self.clock.now().before(self.heartbeat() / 4);
        let mut trouble = Trouble::Over;
        // Once more at once: the first may have been sent on a connection that was dead already.
        for _ in 0..2 {
            let before = self.beats.load(Ordering::Acquire);
            let mut failed = self.beating.lock().await;
            if self.is_over() {
                return Err(Trouble::Over);
            }
            if self.committed() >= enough {
                return Ok(());
            }
            if let (true, Some(shared)) = (self.beats.load(Ordering::Acquire) > before, &*failed) {
                trouble = shared.clone();
                match trouble.fate() {
                    Fate::Declined => return Err(trouble),
                    _ => continue,
                }
            }
            let client = self.client()?;
            let sent = self.sending();
            let mut writer = client.new_multi_writer();
            writer.add_check_version(&self.root, -1)?;
            let answer = self.bounded(self.timeout / 5, writer.commit()).await;
            *failed = answer.as_ref().err().cloned();
            self.beats.fetch_add(1, Ordering::AcqRel);
            match answer {
                Ok(_) => return self.commit(sent),
                Err(error) if error.fate() == Fate::Declined => return Err(error),
                Err(error) => trouble = error,
            }
        }
        Err(trouble)
    }

    /// A sign of life, unless the last one is recent enough for a grant.
    pub(crate) async fn fresh(&self) -> Asked<()> {
        match self.clock.now().since(self.committed()) < self.heartbeat() * 2 {
            true => Ok(()),
            false => self.beat().await,
        }
    }

    /// The nodes that wait, or have waited, in it, by their paths.
    pub(crate) fn waiting(&self) -> MutexGuard<'_, HashMap<String, Weak<Node>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the servers can list several locks in one request, as far as is known.
    pub(crate) fn has_multi_read(&self) -> bool {
        !self.lists_alone.load(Ordering::Acquire)
    }

    /// They cannot: ZooKeeper 3.5 says so, and closes the connection each time that it is asked.
    pub(crate) fn set_no_multi_read(&self) {
        self.lists_alone.store(true, Ordering::Release);
    }

    /// Has the claim rung when `node`, which it holds, is gone.
    pub(crate) fn watch_later(&self, claim: &Arc<Claim>, node: &Arc<Node>) {
        self.lookout.expect(claim, node, self.clock.now());
    }

    /// Follows the session until it is over, and then rings its claims.
    pub(crate) async fn accompany(self: Arc<Session>) {
        let _at_the_end = EndOnDrop(&self);
        tokio::select! {
            () = self.follow() => {}
            () = self.lookout.keep(&self.clock) => {}
        }
    }

    /// Goes along with the connection until the session is over. What waits or is held needs no
    /// word of a return: its watches come back with the connection, and its renewal is asked for
    /// again and again.
    async fn follow(&self) {
        let mut states = self.states.clone();
        while !self.is_over() {
            match states.changed().await {
                SessionState::SyncConnected => {
                    tracing::info!(session = %self, "connected again, in the same session");
                    self.returns.fetch_add(1, Ordering::AcqRel);
                    // What was sent in between may be lost, and the deadline be near.
                    let _ = self.beat().await;
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
pub(crate) fn heartbeat(timeout: Duration) -> Duration {
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
            claim.ring();
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
