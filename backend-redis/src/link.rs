//! One connection to one server, replaced by a new one for as long as the store lives.
//!
//! The client crate's own manager stops trying after six failures and never replaces a connection
//! that only times out, as one whose peer has vanished does. This one does both, and every request
//! has a deadline.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::{Error, ErrorKind, Result};
use futures_util::poll;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, PushInfo, PushKind, RedisError, Value};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::connection::{ConnectOptions, HostPort, Target};
use crate::connection::{Dialled, Driver};
use crate::protocol::error::{Remedy, closed, explain, is_loading, meaning_of};
use crate::protocol::identity::ClientId;

/// A supervised connection. Dropping it ends the connection.
#[derive(Debug)]
pub(crate) struct SupervisedConnection {
    line: Arc<watch::Sender<Line>>,
    patience: Duration,
    supervisor: AbortHandle,
}

/// What there is at the moment.
#[derive(Clone, Debug)]
enum Line {
    /// Not yet.
    Starting,
    /// None, and why.
    Down(Error),
    Up(Live),
    /// None any more.
    Closed,
}

/// One connection.
#[derive(Clone, Debug)]
struct Live {
    connection: MultiplexedConnection,
    health: Arc<Health>,
    /// Unless it is by a Unix socket.
    peer: Option<HostPort>,
    _driver: Arc<Driver>,
}

#[derive(Debug, Default)]
struct Health {
    /// Somebody found the connection to be of no use any more.
    broken: Notify,
    /// Requests without an answer since the last answer.
    silences: AtomicU32,
}

/// After this many requests in a row without an answer the connection is given up.
const SILENCES: u32 = 2;

/// Who hears the pushes of a link.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subscription {
    /// Where hand-offs are told, if they are to be heard here.
    pub(crate) channel: Option<ClientId>,
    /// None hears nothing at all.
    pub(crate) handler: Option<Arc<dyn PushHandler>>,
}

/// Hears what the connections of a link push, on the connection's own task: it must not block.
#[async_trait]
pub(crate) trait PushHandler: Debug + Send + Sync {
    /// A new connection, which nobody has used yet. An error gives it up.
    async fn on_connect(&self, connection: &mut MultiplexedConnection) -> Result<()>;

    /// A message to the channel.
    fn on_message(&self, message: &[u8]);

    /// The server has tracked this key, and it has changed.
    fn on_invalidate(&self, key: &Value);

    /// Any number of pushes may have been lost.
    fn on_gap(&self);
}

impl SupervisedConnection {
    /// Begins to connect, on the runtime that the store was connected on. A request waits for a
    /// connection for as long as `patience`.
    pub(crate) fn start(
        route: Target,
        caller: Arc<ConnectOptions>,
        subscription: Subscription,
        patience: Duration,
    ) -> SupervisedConnection {
        let line = Arc::new(watch::Sender::new(Line::Starting));
        let runtime = caller.runtime.clone();
        let supervising = supervise(route, caller, subscription, line.clone());
        let supervisor = runtime.spawn(supervising).abort_handle();
        SupervisedConnection { line, patience, supervisor }
    }

    /// Waits for the first connection, or for the first reason why there is none that trying again
    /// does not remove at once.
    pub(crate) async fn first(&self) -> Result<()> {
        let reached = |line: &Line| match line {
            Line::Starting => false,
            Line::Down(error) => !is_loading(error),
            Line::Up(_) | Line::Closed => true,
        };
        self.until(reached).await.map(drop)
    }

    /// Whether there is a connection; if not, why.
    pub(crate) fn state(&self) -> Result<()> {
        self.line.borrow().live().map(drop)
    }

    /// The server that the present connection is with.
    pub(crate) fn peer(&self) -> Option<HostPort> {
        self.line.borrow().live().ok().and_then(|live| live.peer.clone())
    }

    pub(crate) fn is_starting(&self) -> bool {
        matches!(&*self.line.borrow(), Line::Starting)
    }

    /// Waits for the first connection, or for the first failure.
    pub(crate) async fn started(&self) -> Result<()> {
        self.until(|line| !matches!(line, Line::Starting)).await.map(drop)
    }

    /// Waits for a connection, however long it takes; an error when there will be none.
    pub(crate) async fn up(&self) -> Result<()> {
        self.until(Line::is_settled).await.map(drop)
    }

    /// What there is when the line has come to it, whatever it comes to next.
    async fn until(&self, reached: impl FnMut(&Line) -> bool) -> Result<Live> {
        match self.line.subscribe().wait_for(reached).await {
            Ok(line) => line.live().cloned(),
            // The sender is ours: this does not happen.
            Err(_) => Err(closed()),
        }
    }

    /// The present connection, waited for if it is being replaced.
    async fn live(&self) -> Result<Live> {
        let now = self.line.borrow().live().cloned();
        match now {
            Ok(live) => Ok(live),
            // Not even for a moment: what is sent then could come behind its claim's release.
            Err(error) if self.patience.is_zero() => Err(error),
            Err(_) => Box::pin(self.next_live()).await,
        }
    }

    async fn next_live(&self) -> Result<Live> {
        match tokio::time::timeout(self.patience, self.until(Line::is_settled)).await {
            Ok(settled) => settled,
            Err(_) => self.line.borrow().live().cloned(),
        }
    }

    /// Gives up the present connection.
    pub(crate) fn mark_broken(&self, why: &str) {
        if let Line::Up(live) = &*self.line.borrow() {
            tracing::warn!(why, "the connection to redis is replaced");
            live.health.broken.notify_one();
        }
    }

    /// Sends one command. The outer error is the connection's, the inner one the server's own.
    pub(crate) async fn send(&self, command: &Cmd) -> Result<Result<Value, RedisError>> {
        let mut live = self.live().await?;
        let answer = live.connection.send_packed_command(command).await;
        live.health.heard(answer.and_then(Value::extract_error))
    }

    /// Sends commands together; nobody's come between them.
    pub(crate) async fn send_all(&self, commands: &Pipeline) -> Result<Vec<Value>> {
        self.send_all_leaving(commands, ()).await
    }

    /// The same; `leaving` is dropped as soon as they are on the connection, or will never be.
    pub(crate) async fn send_all_leaving(
        &self,
        commands: &Pipeline,
        leaving: impl Sized,
    ) -> Result<Vec<Value>> {
        let Live { mut connection, health, _driver, .. } = self.live().await?;
        let count = commands.len();
        let mut sending = pin!(connection.send_packed_commands(commands, 0, count));
        let first = poll!(sending.as_mut());
        drop(leaving);
        let answer = match first {
            Poll::Ready(answer) => answer,
            Poll::Pending => sending.await,
        };
        let answers = health.heard(answer)?.map_err(|error| explain(&error))?;
        answers.iter().try_for_each(|answer| health.heard_within(answer))?;
        Ok(answers)
    }

    /// Ends the connection; requests are errors from now on.
    pub(crate) fn close(&self) {
        self.line.send_replace(Line::Closed);
        self.supervisor.abort();
    }
}

impl Drop for SupervisedConnection {
    fn drop(&mut self) {
        self.close();
    }
}

impl Line {
    /// The connection; if there is none, why.
    fn live(&self) -> Result<&Live> {
        match self {
            Line::Starting => Err(Error::new(ErrorKind::Unreachable, "there is no connection yet")),
            Line::Down(error) => Err(error.clone()),
            Line::Up(live) => Ok(live),
            Line::Closed => Err(closed()),
        }
    }

    /// Another connection, if there is to be one, is not on its way.
    fn is_settled(&self) -> bool {
        matches!(self, Line::Up(_) | Line::Closed)
    }
}

impl Health {
    /// Draws the conclusions of an answer about the connection that it came from.
    fn heard<T>(&self, answer: Result<T, RedisError>) -> Result<Result<T, RedisError>> {
        let error = match answer {
            Ok(value) => {
                self.answered();
                return Ok(Ok(value));
            }
            Err(error) => error,
        };
        let from_server = error.code().is_some();
        match meaning_of(&error).remedy {
            Remedy::None => self.answered(),
            Remedy::Reconnect => self.broken.notify_one(),
            Remedy::CountSilence => {
                if self.silences.fetch_add(1, Ordering::Relaxed) + 1 >= SILENCES {
                    self.broken.notify_one();
                }
            }
        }
        match from_server {
            true => Ok(Err(error)),
            false => Err(explain(&error)),
        }
    }

    /// The same of one answer among several, which may have errors in it.
    fn heard_within(&self, answer: &Value) -> Result<()> {
        match answer {
            Value::ServerError(error) => self.heard::<()>(Err(error.clone().into())).map(drop),
            Value::Array(answers) => answers.iter().try_for_each(|one| self.heard_within(one)),
            _ => Ok(()),
        }
    }

    fn answered(&self) {
        if self.silences.load(Ordering::Relaxed) != 0 {
            self.silences.store(0, Ordering::Relaxed);
        }
    }
}

/// Connects again and again, with a growing pause and some jitter, so that a fleet does not come
/// back in one instant.
async fn supervise(
    route: Target,
    caller: Arc<ConnectOptions>,
    subscription: Subscription,
    line: Arc<watch::Sender<Line>>,
) {
    const SHORTEST: Duration = Duration::from_millis(10);
    const LONGEST: Duration = Duration::from_secs(1);
    let mut pause = SHORTEST;
    let mut was_up = false;
    loop {
        let started = Instant::now();
        match open(&route, &caller, &subscription).await {
            Ok(live) => {
                tracing::debug!(?route, again = was_up, "connected to redis");
                set(&line, Line::Up(live.clone()));
                if let (true, Some(handler)) = (was_up, &subscription.handler) {
                    handler.on_gap();
                }
                was_up = true;
                live.health.broken.notified().await;
                let error = Error::new(ErrorKind::Unreachable, "the connection was lost");
                set(&line, Line::Down(error));
                // One that keeps breaking at once is not to be opened without pause.
                if started.elapsed() > LONGEST {
                    pause = SHORTEST;
                    continue;
                }
            }
            Err(error) => {
                tracing::debug!(?route, %error, "cannot connect to redis");
                // What was right before may be in the middle of a change, such as a new password that
                // the server has and this process does not yet, or a failover and back.
                let error = if was_up { error.retryable(true) } else { error };
                set(&line, Line::Down(error));
            }
        }
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
        pause = (pause * 2).min(LONGEST);
    }
}

/// Closed is for good, also when the supervisor is just about to say something else.
fn set(line: &watch::Sender<Line>, now: Line) {
    line.send_if_modified(|line| match line {
        Line::Closed => false,
        _ => {
            *line = now;
            true
        }
    });
}

/// One connection, subscribed if somebody listens.
async fn open(
    route: &Target,
    caller: &ConnectOptions,
    subscription: &Subscription,
) -> Result<Live> {
    let health = Arc::new(Health::default());
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(Some(caller.timeouts.answer))
        // The default of 50 makes a crowd wait for places in the channel.
        .set_pipeline_buffer_size(1024)
        .set_push_sender(push_sender(subscription.handler.clone(), health.clone()));
    let Dialled { mut connection, driver, peer } = route.connect(caller, &config).await?;
    if let Some(channel) = &subscription.channel {
        let subscribed = connection.subscribe(channel.as_str()).await;
        subscribed.map_err(|error| explain(&error))?;
    }
    if let Some(handler) = &subscription.handler {
        handler.on_connect(&mut connection).await?;
    }
    Ok(Live { connection, health, peer, _driver: Arc::new(driver) })
}

/// Takes the pushes.
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
            // All of them: FLUSHALL.
            (PushKind::Invalidate, Some(handler), _) => handler.on_gap(),
            _ => {}
        }
        Ok(())
    }
}
