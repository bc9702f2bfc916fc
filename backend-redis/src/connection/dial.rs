//! One connection to one address: the socket, TLS, and the login.
//!
//! The client crate could open it as well. Here replies are bounded from the first byte on, and an
//! error names the phase that failed: a peer that speaks TLS or HTTP is distinguished from a server
//! that is down.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Error, ErrorKind, Result};
use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, RedisError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::frames::{BoundedStream, InvalidReply, WireState};
use super::host::HostPort;
use super::login::Credentials;
use super::options::ConnectOptions;
use crate::protocol::error::{explain, unreachable};

/// A connection that is logged in. It ends when its task is dropped.
#[derive(Debug)]
pub(crate) struct Dialled {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) task: ConnectionTask,
    /// `None` for a Unix socket.
    pub(crate) peer: Option<HostPort>,
}

/// The task that reads and writes; aborted on drop. Left alone, a connection would stay open until
/// its last request is answered.
#[derive(Debug)]
pub(crate) struct ConnectionTask(AbortHandle);

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ConnectOptions {
    /// Connects to `host` within the connect timeout.
    pub(crate) async fn dial(
        &self,
        host: &HostPort,
        config: &AsyncConnectionConfig,
    ) -> Result<Dialled> {
        let handshake = self.begin(config).await?;
        let connecting = tcp(host, self.timeouts.answer);
        let stream = handshake.deadline.bound("connection", connecting).await?;
        let stream = stream.map_err(|error| failed(host, error))?;
        let Some(tls) = &self.tls else { return handshake.log_in(stream, Some(host)).await };
        let what = "answer to the TLS handshake (does the server speak TLS? if not, use redis://)";
        let stream = handshake.deadline.bound(what, tls.handshake(host, stream)).await??;
        handshake.log_in(stream, Some(host)).await
    }

    /// Connects to the Unix socket at `path` within the connect timeout.
    pub(crate) async fn dial_socket(
        &self,
        path: &Path,
        config: &AsyncConnectionConfig,
    ) -> Result<Dialled> {
        let handshake = self.begin(config).await?;
        let stream = handshake.deadline.bound("connection", UnixStream::connect(path)).await?;
        let stream = stream.map_err(|error| failed(path.display(), error))?;
        handshake.log_in(stream, None).await
    }

    async fn begin<'a>(&'a self, config: &'a AsyncConnectionConfig) -> Result<Handshake<'a>> {
        let within = self.timeouts.connect;
        let deadline = Deadline { within, end: Instant::now() + within };
        let credentials = deadline.bound("password", self.login.credentials(&self.runtime));
        let settings = self.settings(credentials.await??);
        Ok(Handshake { options: self, settings, config, deadline })
    }

    /// RESP3, since pushes and replies share the connection.
    fn settings(&self, credentials: Credentials) -> RedisConnectionInfo {
        let mut settings = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_db(i64::from(self.database))
            .set_skip_set_lib_name();
        if let Some(user) = credentials.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = credentials.password {
            settings = settings.set_password(password);
        }
        settings
    }
}

/// The end of the connect timeout.
#[derive(Clone, Copy)]
struct Deadline {
    within: Duration,
    end: Instant,
}

impl Deadline {
    /// The result of `step`, which gives a `what`, or the error that it is late.
    async fn bound<T>(self, what: &str, step: impl Future<Output = T>) -> Result<T> {
        let late = |_| unreachable(format!("no {what} within {:?}", self.within));
        timeout_at(self.end, step).await.map_err(late)
    }
}

/// The handshake of a connection.
struct Handshake<'a> {
    options: &'a ConnectOptions,
    settings: RedisConnectionInfo,
    config: &'a AsyncConnectionConfig,
    deadline: Deadline,
}

impl Handshake<'_> {
    async fn log_in<S>(self, stream: S, peer: Option<&HostPort>) -> Result<Dialled>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let wire = Arc::new(WireState::default());
        let stream = BoundedStream::new(stream, wire.clone());
        let config = self.config.clone();
        let login = MultiplexedConnection::new_with_config(&self.settings, stream, config);
        match timeout_at(self.deadline.end, login).await {
            Ok(Ok((connection, task))) => {
                wire.logged_in();
                let task = ConnectionTask(self.options.runtime.spawn(task).abort_handle());
                Ok(Dialled { connection, task, peer: peer.cloned() })
            }
            Ok(Err(error)) => Err(self.refused(&wire, &error)),
            Err(_) => {
                let within = self.deadline.within;
                let hint = if wire.has_received() { "" } else { self.hint() };
                Err(unreachable(format!("no answer to the login within {within:?}{hint}")))
            }
        }
    }

    /// Why a login failed: by what was received, else by the error.
    fn refused(&self, wire: &WireState, error: &RedisError) -> Error {
        match wire.invalid_reply() {
            // Another service listens there: a retry gives the same.
            Some(other @ (InvalidReply::Http | InvalidReply::Tls)) => {
                Error::new(ErrorKind::Refused, other.to_string())
            }
            Some(refused) => unreachable(refused.to_string()),
            None if !wire.has_received() && error.is_io_error() => {
                let hint = self.hint();
                unreachable(format!("the server closed the connection without an answer{hint}"))
            }
            None => explain(error),
        }
    }

    fn hint(&self) -> &'static str {
        match self.options.tls {
            Some(_) => "; is it a Redis server?",
            None => "; is it a Redis server? If it speaks TLS, use rediss://",
        }
    }
}

/// Connects to the address of `host` that answers first. Data that the peer has not acknowledged
/// within `answer` is dropped with its connection, since its request has timed out. Otherwise the
/// kernel would keep sending it for a connection that was discarded and closed, and a request for a
/// lock could arrive long after its claim has ended.
async fn tcp(host: &HostPort, answer: Duration) -> io::Result<TcpStream> {
    let addresses = tokio::net::lookup_host((host.name.as_str(), host.port)).await?;
    let connecting: Vec<_> =
        addresses.map(|address| Box::pin(TcpStream::connect(address))).collect();
    if connecting.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    let (stream, _others) = select_ok(connecting).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    // The kernel notices a vanished peer too, also while no request is under way.
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(1));
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(answer))?;
    #[cfg(not(target_os = "linux"))]
    let _ = answer;
    Ok(stream)
}

fn failed(address: impl Display, error: io::Error) -> Error {
    unreachable(format!("cannot connect to {address} ({error})")).caused_by(error)
}
