//! One connection to one server, replaced by a new one for as long as the store lives.
//!
//! The client crate's own manager stops trying after six failures and never replaces a connection
//! that only times out, such as one whose peer has vanished. This one does both, and every request
//! has a deadline.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::backend::Backoff;
use fencelock_core::{Error, Result};
use futures_util::poll;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, PushInfo, PushKind, RedisError, Value};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::dial::{ConnectionTask, Dialled};
use super::endpoint::Target;
use super::host::HostPort;
use super::options::ConnectOptions;
use crate::protocol::error::{
    Remedy, closed, explain, explain_from, is_loading, meaning_of, unreachable,
};
use crate::protocol::identity::ClientId;

/// A supervised connection. Dropping it ends the connection.
#[derive(Debug)]
pub(crate) struct SupervisedConnection {
    state: Arc<watch::Sender<ConnectionState>>,
    /// How long a request waits for a connection.
    patience: Duration,
    supervisor: AbortHandle,
}

/// Whether there is a connection at the moment.
#[derive(Clone, Debug)]
enum ConnectionState {
    /// The first attempt to connect has not ended.
    Starting,
    /// There is no connection, for this reason; another attempt follows.
    Down(Error),
    Up(ActiveConnection),
    /// The store was closed: there will be no other connection.
    Closed,
}

/// An established connection.
#[derive(Clone, Debug)]
struct ActiveConnection {
    connection: MultiplexedConnection,
    health: Arc<Health>,
    _task: Arc<ConnectionTask>,
}

#[derive(Debug, Default)]
struct Health {
    /// The server, once it is connected; none for a Unix socket.
    peer: OnceLock<HostPort>,
    /// Notified when the connection must be replaced.
    broken: Notify,
    /// Requests that timed out since the last reply.
    timeouts: AtomicU32,
}

/// After this many timeouts in a row the connection is replaced.
const MAX_TIMEOUTS: u32 = 2;

/// What a connection subscribes to, and where its pushes go.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subscription {
    /// The channel of hand-offs, if they are to arrive on this connection.
    pub(crate) channel: Option<ClientId>,
    /// Without one, all pushes are dropped.
    pub(crate) handler: Option<Arc<dyn PushHandler>>,
}

/// Receives the pushes of a supervised connection, on the connection's own task: must not block.
#[async_trait]
pub(crate) trait PushHandler: Debug + Send + Sync {
    /// Prepares a new connection before its first request. An error discards the connection.
    async fn on_connect(&self, connection: &mut MultiplexedConnection) -> Result<()>;

    /// A message was published to the channel.
    fn on_message(&self, message: &[u8]);

    /// A key that the server tracks for this connection has changed.
    fn on_invalidate(&self, key: &Value);

    /// Pushes may have been lost.
    fn on_gap(&self);
}

impl SupervisedConnection {
    /// Begins to connect, on the runtime that the store was connected on. A request waits for a
    /// connection for up to `patience`.
    pub(crate) fn start(
        target: Target,
        options: Arc<ConnectOptions>,
        subscription: Subscription,
        patience: Duration,
    ) -> SupervisedConnection {
        let state = Arc::new(watch::Sender::new(ConnectionState::Starting));
        let runtime = options.runtime.clone();
        let supervising = supervise(target, options, subscription, state.clone());
        let supervisor = runtime.spawn(supervising).abort_handle();
        SupervisedConnection { state, patience, supervisor }
    }

    /// Waits for the first connection, or for the first failure other than a server that is still
    /// loading its data.
    pub(crate) async fn first(&self) -> Result<()> {
        let reached = |state: &ConnectionState| match state {
            ConnectionState::Starting => false,
            ConnectionState::Down(error) => !is_loading(error),
            ConnectionState::Up(_) | ConnectionState::Closed => true,
        };
        self.until(reached).await.map(drop)
    }

    /// `Ok` if there is a connection, else the reason.
    pub(crate) fn state(&self) -> Result<()> {
        self.state.borrow().active().map(drop)
    }

    /// The server of the current connection.
    pub(crate) fn peer(&self) -> Option<HostPort> {
        self.state.borrow().active().ok().and_then(|active| active.health.peer.get().cloned())
    }

    #[cfg(feature = "redlock")]
    pub(crate) fn is_starting(&self) -> bool {
        matches!(&*self.state.borrow(), ConnectionState::Starting)
    }

    /// Waits for the first connection, or for the first failure.
    #[cfg(feature = "redlock")]
    pub(crate) async fn started(&self) -> Result<()> {
        self.until(|state| !matches!(state, ConnectionState::Starting)).await.map(drop)
    }

    /// Waits for a connection without a limit; an error once the store was closed.
    #[cfg(feature = "redlock")]
    pub(crate) async fn up(&self) -> Result<()> {
        self.until(ConnectionState::is_settled).await.map(drop)
    }

    /// The connection, or the reason why there is none, as of the first state that is `reached`.
    async fn until(
        &self,
        reached: impl FnMut(&ConnectionState) -> bool,
    ) -> Result<ActiveConnection> {
        match self.state.subscribe().wait_for(reached).await {
            Ok(state) => state.active().cloned(),
            // Unreachable: `self` owns the sender.
            Err(_) => Err(closed()),
        }
    }

    /// The current connection; waits for it while it is being replaced.
    async fn active(&self) -> Result<ActiveConnection> {
        let now = self.state.borrow().active().cloned();
        match now {
            Ok(active) => Ok(active),
            // No wait at all: a request sent later could arrive after its claim's release.
            Err(error) if self.patience.is_zero() => Err(error),
            Err(_) => Box::pin(self.next_active()).await,
        }
    }

    async fn next_active(&self) -> Result<ActiveConnection> {
        match tokio::time::timeout(self.patience, self.until(ConnectionState::is_settled)).await {
            Ok(settled) => settled,
            Err(_) => self.state.borrow().active().cloned(),
        }
    }

    /// Has the current connection replaced.
    pub(crate) fn mark_broken(&self, why: &str) {
        if let ConnectionState::Up(active) = &*self.state.borrow() {
            tracing::warn!(why, "replacing the Redis connection");
            active.health.broken.notify_one();
        }
    }

    /// Sends one command. The outer error is the connection's, the inner one the server's.
    pub(crate) async fn send(&self, command: &Cmd) -> Result<Result<Value, RedisError>> {
        let mut active = self.active().await?;
        let answer = active.connection.send_packed_command(command).await;
        active.health.observe(answer.and_then(Value::extract_error))
    }

    /// Sends one command; all errors are alike.
    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Value> {
        self.send(command).await?.map_err(explain)
    }

    /// Sends commands together, with no other request between them.
    pub(crate) async fn send_all(&self, commands: &Pipeline) -> Result<Vec<Value>> {
        self.send_all_leaving(commands, ()).await
    }

    /// Like `send_all`; drops `leaving` once the commands are written to the connection, or cannot be.
    pub(crate) async fn send_all_leaving(
        &self,
        commands: &Pipeline,
        leaving: impl Sized,
    ) -> Result<Vec<Value>> {
        let ActiveConnection { mut connection, health, _task, .. } = self.active().await?;
        let count = commands.len();
        let mut sending = pin!(connection.send_packed_commands(commands, 0, count));
        let first = poll!(sending.as_mut());
        drop(leaving);
        let answer = match first {
            Poll::Ready(answer) => answer,
            Poll::Pending => sending.await,
        };
        let answers = health.observe(answer)?.map_err(explain)?;
        answers.iter().try_for_each(|answer| health.observe_nested(answer))?;
        Ok(answers)
    }

    /// Ends the connection; all further requests fail.
    pub(crate) fn close(&self) {
        self.state.send_replace(ConnectionState::Closed);
        self.supervisor.abort();
    }
}

impl Drop for SupervisedConnection {
    fn drop(&mut self) {
        self.close();
    }
}

impl ConnectionState {
    /// The connection, or the reason why there is none.
    fn active(&self) -> Result<&ActiveConnection> {
        match self {
            ConnectionState::Starting => Err(unreachable("there is no connection yet")),
            ConnectionState::Down(error) => Err(error.clone()),
            ConnectionState::Up(active) => Ok(active),
            ConnectionState::Closed => Err(closed()),
        }
    }

    /// No attempt to connect is under way.
    fn is_settled(&self) -> bool {
        matches!(self, ConnectionState::Up(_) | ConnectionState::Closed)
    }
}

impl Health {
    /// Updates the connection's health from a reply.
    fn observe<T>(&self, answer: Result<T, RedisError>) -> Result<Result<T, RedisError>> {
        match answer.as_ref().map_or_else(|error| meaning_of(error).remedy, |_| Remedy::None) {
            // Read first: another processor may have the line of an unchanged counter, too.
            Remedy::None if self.timeouts.load(Ordering::Relaxed) == 0 => {}
            Remedy::None => self.timeouts.store(0, Ordering::Relaxed),
            Remedy::Reconnect => self.broken.notify_one(),
            Remedy::CountTimeout => {
                if self.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_TIMEOUTS {
                    self.broken.notify_one();
                }
            }
        }
        match answer {
            Err(error) if error.code().is_none() => Err(self.explain(&error)),
            from_server => Ok(from_server),
        }
    }

    fn explain(&self, error: &RedisError) -> Error {
        match self.peer.get() {
            Some(peer) => explain_from(error, peer),
            None => explain(error),
        }
    }

    /// Updates the health from one reply of several, which may contain errors.
    fn observe_nested(&self, answer: &Value) -> Result<()> {
        match answer {
            Value::ServerError(error) => self.observe::<()>(Err(error.clone().into())).map(drop),
            Value::Array(answers) => answers.iter().try_for_each(|one| self.observe_nested(one)),
            _ => Ok(()),
        }
    }
}

/// Reconnects for ever, with a growing, jittered pause, so that many clients do not return in the
/// same instant.
async fn supervise(
    target: Target,
    options: Arc<ConnectOptions>,
    subscription: Subscription,
    state: Arc<watch::Sender<ConnectionState>>,
) {
    const LONGEST: Duration = Duration::from_secs(1);
    let start = || Backoff::new(Duration::from_millis(10), LONGEST);
    let (mut backoff, seed) = (start(), rand::random::<u64>());
    let mut was_up = false;
    loop {
        let started = Instant::now();
        match open(&target, &options, &subscription).await {
            Ok(active) => {
                tracing::debug!(server = ?target, again = was_up, "connected to redis");
                set(&state, ConnectionState::Up(active.clone()));
                if let (true, Some(handler)) = (was_up, &subscription.handler) {
                    handler.on_gap();
                }
                was_up = true;
                active.health.broken.notified().await;
                let error = unreachable("the connection was lost");
                set(&state, ConnectionState::Down(error));
                // No pause only after a connection that lasted: others may break again at once.
                if started.elapsed() > LONGEST {
                    backoff = start();
                    continue;
                }
            }
            Err(error) => {
                tracing::debug!(server = ?target, %error, "cannot connect to redis");
                // Settings that worked before may be in the middle of a change: a new password that
                // the server has and this process does not yet, or a failover and back.
                let error = if was_up { error.retryable(true) } else { error };
                set(&state, ConnectionState::Down(error));
            }
        }
        tokio::time::sleep(backoff.next(seed)).await;
    }
}

/// Sets the state, unless it is `Closed`, which is final even while the supervisor still runs.
fn set(state: &watch::Sender<ConnectionState>, now: ConnectionState) {
    state.send_if_modified(|state| {
        let is_open = !matches!(state, ConnectionState::Closed);
        if is_open {
            *state = now;
        }
        is_open
    });
}

/// Opens one connection, with its subscription.
async fn open(
    target: &Target,
    options: &ConnectOptions,
    subscription: &Subscription,
) -> Result<ActiveConnection> {
    let health = Arc::new(Health::default());
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(Some(options.timeouts.answer))
        // The default of 50 makes many concurrent requests wait for room in the channel.
        .set_pipeline_buffer_size(1024)
        .set_push_sender(push_sender(subscription.handler.clone(), health.clone()));
    let Dialled { mut connection, task, peer } = target.connect(options, &config).await?;
    if let Some(channel) = &subscription.channel {
        connection.subscribe(channel.as_str()).await.map_err(explain)?;
    }
    if let Some(handler) = &subscription.handler {
        handler.on_connect(&mut connection).await?;
    }
    if let Some(peer) = peer {
        health.peer.get_or_init(|| peer);
    }
    Ok(ActiveConnection { connection, health, _task: Arc::new(task) })
}

/// Passes pushes to `handler`.
fn push_sender(
    handler: Option<Arc<dyn PushHandler>>,
    health: Arc<Health>,
) -> impl Fn(PushInfo) -> Result<(), ()> + Send + Sync + 'static {
    move |push| {
        match (push.kind, &handler, push.data.as_slice()) {
            (PushKind::Disconnection, ..) => health.broken.notify_one(),
            (PushKind::Message, Some(handler), [_channel, Value::BulkString(message)]) => {
                handler.on_message(message);
            }
            (PushKind::Invalidate, Some(handler), [Value::Array(keys)]) => {
                keys.iter().for_each(|key| handler.on_invalidate(key));
            }
            // All keys, after FLUSHALL.
            (PushKind::Invalidate, Some(handler), _) => handler.on_gap(),
            _ => {}
        }
        Ok(())
    }
}
