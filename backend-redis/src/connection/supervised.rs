//! One connection to one server, replaced by a new one for as long as the store lives.
//!
//! The client crate's own manager stops trying after six failures and never replaces a connection
//! that only times out, such as one whose peer has vanished. This one does both, and every request
//! has a deadline.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::backend::program;
use fencelock_core::batching::in_order;
use fencelock_core::{Error, Result};
use fencelock_net::{Connector, Health, Sent, Supervised};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, PushInfo, PushKind, RedisError, Value};
use tokio_util::task::AbortOnDropHandle;

use super::dial::Dialled;
use super::endpoint::Target;
use super::host::HostPort;
use super::options::ConnectOptions;
use crate::protocol::error::{Remedy, explain, explain_from, is_loading, meaning_of};
use crate::protocol::identity::ClientId;

/// A supervised connection. Dropping it ends the connection.
#[derive(Debug)]
pub(crate) struct SupervisedConnection(Supervised<ActiveConnection>);

/// An established connection.
#[derive(Clone, Debug)]
struct ActiveConnection {
    connection: MultiplexedConnection,
    state: Arc<ConnectionState>,
    _task: Arc<AbortOnDropHandle<()>>,
}

#[derive(Debug, Default)]
struct ConnectionState {
    health: Health,
    /// The server, once it is connected; none for a Unix socket.
    peer: OnceLock<HostPort>,
}

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
        let runtime = options.runtime.clone();
        let connections = Connections { target, options, subscription };
        SupervisedConnection(Supervised::start(connections, patience, &runtime))
    }

    /// Waits for the first connection, or for the first failure other than a server that is still
    /// loading its data.
    pub(crate) async fn first(&self) -> Result<()> {
        self.0.first(|error| !is_loading(error)).await.map(drop)
    }

    /// `Ok` if there is a connection, else the reason.
    pub(crate) fn state(&self) -> Result<()> {
        self.0.current().map(drop)
    }

    /// The server of the current connection.
    pub(crate) fn peer(&self) -> Option<HostPort> {
        self.0.current().ok().and_then(|active| active.state.peer.get().cloned())
    }

    #[cfg(feature = "redlock")]
    pub(crate) fn is_starting(&self) -> bool {
        self.0.is_starting()
    }

    /// Waits for the first connection, or for the first failure.
    #[cfg(feature = "redlock")]
    pub(crate) async fn started(&self) -> Result<()> {
        self.0.first(|_| true).await.map(drop)
    }

    /// Waits for a connection without a limit; an error once the store was closed.
    #[cfg(feature = "redlock")]
    pub(crate) async fn up(&self) -> Result<()> {
        self.0.up().await.map(drop)
    }

    /// Has the current connection replaced.
    pub(crate) fn mark_broken(&self, why: &str) {
        if let Ok(active) = self.0.current() {
            active.state.health.fail();
            program::call(|| tracing::warn!(why, "replacing the Redis connection"));
        }
    }

    /// Sends one command. The outer error is the connection's, the inner one the server's.
    pub(crate) async fn send(&self, command: &Cmd) -> Result<Result<Value, RedisError>> {
        let mut active = self.0.active().await?;
        let sent = active.state.health.sent();
        let answer = active.connection.send_packed_command(command).await;
        active.state.observe(sent, answer.and_then(Value::extract_error))
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
        let ActiveConnection { mut connection, state, _task } = self.0.active().await?;
        let (count, sent) = (commands.len(), state.health.sent());
        let answer = in_order(connection.send_packed_commands(commands, 0, count), leaving).await;
        let answers = state.observe(sent, answer)?.map_err(explain)?;
        answers.iter().try_for_each(|answer| state.observe_nested(sent, answer))?;
        Ok(answers)
    }

    /// Ends the connection; all further requests fail.
    pub(crate) fn close(&self) {
        self.0.close();
    }
}

impl ConnectionState {
    /// Updates the connection's health from the reply to a request that was sent then.
    fn observe<T>(
        &self,
        sent: Sent,
        answer: Result<T, RedisError>,
    ) -> Result<Result<T, RedisError>> {
        match answer.as_ref().map_or_else(|error| meaning_of(error).remedy, |_| Remedy::None) {
            Remedy::None => self.health.answered(),
            Remedy::Reconnect | Remedy::Unnamed => self.health.fail(),
            Remedy::CountTimeout => self.health.timed_out(sent),
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
    fn observe_nested(&self, sent: Sent, answer: &Value) -> Result<()> {
        match answer {
            Value::ServerError(error) => {
                self.observe::<()>(sent, Err(error.clone().into())).map(drop)
            }
            Value::Array(answers) => {
                answers.iter().try_for_each(|one| self.observe_nested(sent, one))
            }
            _ => Ok(()),
        }
    }
}

/// The connections to one server, one after the other.
struct Connections {
    target: Target,
    options: Arc<ConnectOptions>,
    subscription: Subscription,
}

impl Connector for Connections {
    type Connection = ActiveConnection;

    async fn open(&mut self) -> Result<ActiveConnection> {
        open(&self.target, &self.options, &self.subscription).await
    }

    fn opened(&mut self, _: &ActiveConnection, again: bool) {
        if let (true, Some(handler)) = (again, &self.subscription.handler) {
            handler.on_gap();
        }
        tracing::debug!(server = ?self.target, again, "connected to redis");
    }

    fn failed(&mut self, error: &Error) {
        tracing::debug!(server = ?self.target, %error, "cannot connect to redis");
    }

    async fn broken(&mut self, active: &ActiveConnection) {
        active.state.health.broken().await;
    }
}

/// Opens one connection, with its subscription.
async fn open(
    target: &Target,
    options: &ConnectOptions,
    subscription: &Subscription,
) -> Result<ActiveConnection> {
    let state = Arc::new(ConnectionState::default());
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(Some(options.timeouts.answer))
        // The default of 50 makes many concurrent requests wait for room in the channel.
        .set_pipeline_buffer_size(1024)
        .set_push_sender(push_sender(subscription.handler.clone(), state.clone()));
    let Dialled { mut connection, task, peer } = target.connect(options, &config).await?;
    // Asked beside the rest, which waits for replies too.
    let mastery = target.require_master(connection.clone());
    let preparing = async {
        if let Some(channel) = &subscription.channel {
            connection.subscribe(channel.as_str()).await.map_err(explain)?;
        }
        if let Some(handler) = &subscription.handler {
            handler.on_connect(&mut connection).await?;
        }
        Ok(())
    };
    let (mastery, prepared) = tokio::join!(mastery, preparing);
    mastery.and(prepared)?;
    if let Some(peer) = peer {
        state.peer.get_or_init(|| peer);
    }
    Ok(ActiveConnection { connection, state, _task: Arc::new(task) })
}

/// Passes pushes to `handler`.
fn push_sender(
    handler: Option<Arc<dyn PushHandler>>,
    state: Arc<ConnectionState>,
) -> impl Fn(PushInfo) -> Result<(), ()> + Send + Sync + 'static {
    move |push| {
        match (push.kind, &handler, push.data.as_slice()) {
            (PushKind::Disconnection, ..) => state.health.fail(),
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
