//! One connection to one address: the socket, TLS, and the login.
//!
//! The client crate could open it as well. Here replies are bounded from the first byte on, and an
//! error names the phase that failed: a peer that speaks TLS or HTTP is distinguished from a server
//! that is down.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::backend::io_message;
use fencelock_core::{Error, ErrorKind, Result};
use fencelock_net::{Bounded, Credentials, Secured, tcp};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, RedisError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::frames::{BoundedReplies, InvalidReply, WireState};
use super::host::HostPort;
use super::options::ConnectOptions;
use super::probe::{Peer, probe};
use crate::protocol::error::{code_of, explain, unreachable};

/// A connection that is logged in. It ends when its task is dropped.
#[derive(Debug)]
pub(crate) struct Dialled {
    pub(crate) connection: MultiplexedConnection,
    /// Reads and writes. Left alone, a connection would stay open until its last request is answered.
    pub(crate) task: AbortOnDropHandle<()>,
    /// `None` for a Unix socket.
    pub(crate) peer: Option<HostPort>,
}

impl ConnectOptions {
    /// Connects to `host` within the connect timeout.
    pub(crate) async fn dial(
        &self,
        host: &HostPort,
        config: &AsyncConnectionConfig,
    ) -> Result<Dialled> {
        let handshake = self.begin(host.to_string(), config).await?;
        let connecting = handshake.within(tcp(&host.name, host.port, self.timeouts.answer)).await;
        let stream = handshake.opened(connecting)?;
        match &self.tls {
            Some(tls) => {
                let stream = handshake.secure(tls, host, stream).await?;
                handshake.log_in(stream, Some(host)).await
            }
            None => handshake.log_in(stream, Some(host)).await,
        }
    }

    /// Connects to the Unix socket at `path` within the connect timeout.
    pub(crate) async fn dial_socket(
        &self,
        path: &Path,
        config: &AsyncConnectionConfig,
    ) -> Result<Dialled> {
        let handshake = self.begin(path.display().to_string(), config).await?;
        let connecting = handshake.within(UnixStream::connect(path)).await;
        let stream = handshake.opened(connecting)?;
        handshake.log_in(stream, None).await
    }

    async fn begin<'a>(
        &'a self,
        address: String,
        config: &'a AsyncConnectionConfig,
    ) -> Result<Handshake<'a>> {
        let limit = self.timeouts.connect;
        let end = Instant::now() + limit;
        let credentials = timeout_at(end, self.login.credentials(&self.runtime)).await;
        let credentials = credentials.map_err(|_| {
            unreachable(format!("the credentials were not read within {limit:?}"))
        })??;
        let settings = self.settings(credentials);
        Ok(Handshake { options: self, address, settings, config, limit, end })
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

/// The handshake of a connection.
struct Handshake<'a> {
    options: &'a ConnectOptions,
    /// For errors: `HOST:PORT`, or the path of a socket.
    address: String,
    settings: RedisConnectionInfo,
    config: &'a AsyncConnectionConfig,
    /// The connect timeout, and its end.
    limit: Duration,
    end: Instant,
}

/// A handshake usually takes less. After this time, or a third of a shorter connect timeout, the
/// server is probed.
const USUAL_TLS_TIME: Duration = Duration::from_millis(250);

impl Handshake<'_> {
    async fn within<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        timeout_at(self.end, step).await.ok()
    }

    /// The stream, or why there is none.
    fn opened<S>(&self, connecting: Option<io::Result<S>>) -> Result<S> {
        let (address, limit) = (&self.address, self.limit);
        let connecting = connecting.ok_or_else(|| {
            let advice = "is the host up, and the port open in its firewall?";
            unreachable(format!("no connection to {address} within {limit:?}; {advice}"))
        })?;
        connecting.map_err(|error| {
            let why = io_message(&error);
            let advice = match error.kind() {
                io::ErrorKind::ConnectionRefused => {
                    format!("; is the server running, and listening on {address}?")
                }
                io::ErrorKind::NotFound if address.starts_with('/') => {
                    "; is the server running, with this path as its `unixsocket`?".to_owned()
                }
                io::ErrorKind::PermissionDenied => {
                    "; does the server's `unixsocketperm` allow this user?".to_owned()
                }
                _ if why.contains("lookup") => "; check the spelling of the host".to_owned(),
                _ => String::new(),
            };
            unreachable(format!("cannot connect to {address}: {why}{advice}")).caused_by(error)
        })
    }

    /// Encrypts the stream. A server without TLS does not answer, so it is probed when that takes
    /// long.
    async fn secure(
        &self,
        tls: &Secured,
        host: &HostPort,
        stream: TcpStream,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + 'static> {
        let Handshake { address, limit, .. } = self;
        let is_plain = async {
            tokio::time::sleep(USUAL_TLS_TIME.min(*limit / 3)).await;
            if probe(host).await != Some(Peer::Redis) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            secured = self.within(tls.handshake(&host.name, host, stream, "use redis://")) => secured.unwrap_or_else(|| {
                let advice = "does it speak TLS? If not, use redis://";
                let what = format!("no answer from {address} to the TLS handshake");
                Err(unreachable(format!("{what} within {limit:?}; {advice}")))
            }),
            // A retry gives the same.
            () = is_plain => Err(Error::new(
                ErrorKind::Refused,
                format!("the Redis server at {address} does not speak TLS on this port: use redis://"),
            )),
        }
    }

    async fn log_in<S>(self, stream: S, peer: Option<&HostPort>) -> Result<Dialled>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let wire = Arc::new(WireState::default());
        let stream = Bounded::new(stream, BoundedReplies::new(wire.clone()));
        let config = self.config.clone();
        let login = MultiplexedConnection::new_with_config(&self.settings, stream, config);
        match self.within(login).await {
            Some(Ok((connection, task))) => {
                wire.logged_in();
                let task = AbortOnDropHandle::new(self.options.runtime.spawn(task));
                Ok(Dialled { connection, task, peer: peer.cloned() })
            }
            Some(Err(error)) => Err(self.refused(&wire, &error, peer).await),
            None => {
                let Handshake { address, limit, .. } = &self;
                let hint = if wire.has_received() { "" } else { self.hint() };
                let what = format!("no answer from {address} to the login within {limit:?}");
                Err(unreachable(format!("{what}{hint}")))
            }
        }
    }

    /// Why a login failed: by what was received, else by the error.
    async fn refused(
        &self,
        wire: &WireState,
        error: &RedisError,
        peer: Option<&HostPort>,
    ) -> Error {
        let address = &self.address;
        match wire.invalid_reply() {
            // Another service listens there: a retry gives the same.
            Some(other @ (InvalidReply::Http | InvalidReply::Tls)) => {
                Error::new(ErrorKind::Refused, format!("{address}: {other}"))
            }
            Some(refused) => unreachable(format!("{address}: {refused}")),
            None if !wire.has_received() && error.is_io_error() => self.closed(peer).await,
            None => self.explain(error),
        }
    }

    /// The error that the server closed the connection without an answer.
    async fn closed(&self, peer: Option<&HostPort>) -> Error {
        let (address, hint) = (&self.address, self.hint());
        let found = match (&self.options.tls, peer) {
            (None, Some(host)) => probe(host).await,
            _ => None,
        };
        // A retry gives the same.
        let refused = |message| Error::new(ErrorKind::Refused, message);
        match found {
            Some(Peer::ZooKeeper) => {
                refused(format!("{address} is a ZooKeeper server; use zk://{address}"))
            }
            Some(Peer::Tls) => refused(format!("{address} speaks TLS; use rediss://")),
            Some(Peer::Redis) | None => {
                unreachable(format!("{address} closed the connection without an answer{hint}"))
            }
        }
    }

    /// The error that the server answered to the login.
    fn explain(&self, error: &RedisError) -> Error {
        let (address, database) = (&self.address, self.options.database);
        let refused = |message| Error::new(ErrorKind::Refused, message);
        // The client crate's own words, before those of the server.
        if error.to_string().contains("switch database") {
            let why = error.detail().unwrap_or_default();
            return refused(match why.contains("out of range") {
                true => format!(
                    "the server at {address} has no database {database}; its setting `databases` \
                     is their number"
                ),
                false => format!("the server at {address} refuses database {database} ({why})"),
            });
        }
        match (code_of(error), self.options.is_sentinel) {
            ("NOAUTH", true) => refused(format!(
                "the sentinel at {address} wants a password; add sentinel_password=PASSWORD, or \
                 sentinel_password_file=FILE (NOAUTH)"
            )),
            ("WRONGPASS", true) => refused(format!(
                "the sentinel at {address} refuses the login; check sentinel_user and \
                 sentinel_password (WRONGPASS)"
            )),
            _ => explain(error),
        }
    }

    fn hint(&self) -> &'static str {
        match self.options.tls {
            Some(_) => "; is it a Redis server?",
            None => "; is it a Redis server? If it speaks TLS, use rediss://",
        }
    }
}
