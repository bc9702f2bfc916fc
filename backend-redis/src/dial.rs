//! One connection to one address: the socket, TLS, and the login.
//!
//! The client crate could open it as well. Here the replies of the server are bounded from the
//! first byte on, and an error names the phase that failed: what speaks TLS or HTTP at the other
//! end is told from a server that is away.

use std::fmt;
use std::io;
use std::path::PathBuf;
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

use crate::connection::Credentials;
use crate::connection::frames::{Followed, Refused, Wire};
use crate::connection::{ConnectOptions, HostPort};
use crate::protocol::error::explain;

/// Where a server listens.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Tcp(HostPort),
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host) => host.fmt(f),
            Address::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A connection that is logged in. It ends when its driver is dropped.
#[derive(Debug)]
pub(crate) struct Dialled {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) driver: Driver,
    /// Unless it is by a Unix socket.
    pub(crate) peer: Option<HostPort>,
}

/// The task that reads and writes. Without it a connection would live on until what was asked of
/// it is answered.
#[derive(Debug)]
pub(crate) struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ConnectOptions {
    /// Connects to `address` within the time that a connection may take.
    pub(crate) async fn dial(
        &self,
        address: &Address,
        config: &AsyncConnectionConfig,
    ) -> Result<Dialled> {
        let within = self.timeouts.connect;
        let deadline = Instant::now() + within;
        let late = |what: &str| unreachable(format!("no {what} within {within:?}"));
        let credentials = timeout_at(deadline, self.login.credentials(&self.runtime));
        let credentials = credentials.await.map_err(|_| late("password"))??;
        let settings = self.settings(credentials);
        let login = Login { caller: self, settings, config, deadline, within };
        match address {
            Address::Unix(path) => {
                let connecting = timeout_at(deadline, UnixStream::connect(path));
                let stream = connecting.await.map_err(|_| late("connection"))?;
                login.over(stream.map_err(|error| failed(address, error))?, None).await
            }
            Address::Tcp(host) => {
                let connecting = timeout_at(deadline, tcp(host, self.timeouts.answer));
                let stream = connecting.await.map_err(|_| late("connection"))?;
                let stream = stream.map_err(|error| failed(address, error))?;
                let Some(tls) = &self.tls else { return login.over(stream, Some(host)).await };
                let stream = timeout_at(deadline, tls.handshake(host, stream)).await;
                let stream = stream.map_err(|_| {
                    late("answer to the TLS handshake (does the server speak TLS? redis:// is without)")
                })??;
                login.over(stream, Some(host)).await
            }
        }
    }

    /// RESP3, since pushes and answers share the connection.
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

/// What is sent first on a connection.
struct Login<'a> {
    caller: &'a ConnectOptions,
    settings: RedisConnectionInfo,
    config: &'a AsyncConnectionConfig,
    deadline: Instant,
    within: Duration,
}

impl Login<'_> {
    async fn over<S>(self, stream: S, peer: Option<&HostPort>) -> Result<Dialled>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let wire = Wire::new();
        let stream = Followed::new(stream, wire.clone());
        let config = self.config.clone();
        let login = MultiplexedConnection::new_with_config(&self.settings, stream, config);
        match timeout_at(self.deadline, login).await {
            Ok(Ok((connection, driver))) => {
                wire.logged_in();
                let driver = Driver(self.caller.runtime.spawn(driver).abort_handle());
                Ok(Dialled { connection, driver, peer: peer.cloned() })
            }
            Ok(Err(error)) => Err(self.refused(&wire, &error)),
            Err(_) => {
                let within = self.within;
                let hint = if wire.has_heard() { "" } else { self.hint() };
                Err(unreachable(format!("no answer to the login within {within:?}{hint}")))
            }
        }
    }

    /// Why a login failed: by what came over `wire`, else by the error.
    fn refused(&self, wire: &Wire, error: &RedisError) -> Error {
        match wire.refused() {
            // Another service listens there: asking again gives the same.
            Some(other @ (Refused::Http | Refused::Tls)) => {
                Error::new(ErrorKind::Refused, other.to_string())
            }
            Some(refused) => unreachable(refused.to_string()),
            None if !wire.has_heard() && error.is_io_error() => {
                let hint = self.hint();
                unreachable(format!("the server closed the connection without an answer{hint}"))
            }
            None => explain(error),
        }
    }

    fn hint(&self) -> &'static str {
        match self.caller.tls {
            Some(_) => "; is it a Redis server?",
            None => "; is it a Redis server? If it speaks TLS, use rediss://",
        }
    }
}

/// Connects to whichever address of `host` answers first. What could not be delivered for as long
/// as `answer` is dropped, with its connection: nobody waits for the answer any more. Else the
/// kernel would go on sending it, behind a connection that was given up and closed, and a request
/// for a lock could arrive when its claim was long over.
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
    // A peer that vanished is noticed by the kernel too, also while nothing is asked.
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(1));
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(answer))?;
    #[cfg(not(target_os = "linux"))]
    let _ = answer;
    Ok(stream)
}

fn failed(address: &Address, error: io::Error) -> Error {
    unreachable(format!("cannot connect to {address} ({error})")).caused_by(error)
}

fn unreachable(message: String) -> Error {
    Error::new(ErrorKind::Unreachable, message)
}
