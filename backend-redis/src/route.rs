//! How to get to the server that a connection should be with: straight, by Sentinel, or to any of
//! several.
//!
//! The way is found anew for each connection, so that a failover or a new address in the DNS is
//! followed.

use fencelock_core::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError, RedisResult, Value,
};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::error::explain;
use crate::tls::Tls;

/// How long a connection may take, with its handshake: enough for a TLS handshake around the
/// world.
pub(crate) const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// How long an answer may take. Longer than any script runs, shorter than the patience of a
/// waiter; asking again is harmless.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The name and port of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) port: u16,
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

/// Who is asking, and how: the same for every server of a store.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) login: Login,
    pub(crate) database: u16,
    pub(crate) tls: Option<Tls>,
    /// Carries the connections, whichever runtime asks for them.
    pub(crate) runtime: Handle,
}

/// User and password, which no `Debug` shows.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Login {
    /// An empty user is the server's default one.
    pub(crate) fn new(user: &str, password: &str) -> Login {
        let user = (!user.is_empty()).then(|| user.to_owned());
        Login { user, password: Some(password.to_owned()) }
    }
}

/// The way to a server.
#[derive(Clone, Debug)]
pub(crate) enum Route {
    /// To this one.
    To(Host),
    /// To this socket.
    Socket(PathBuf),
    /// To the first of these nodes of a cluster that can tell the way; more may become known.
    Any(Arc<Mutex<Vec<Host>>>),
    /// To the master of `service`, as these sentinels know it.
    Sentinels { sentinels: Vec<Host>, service: String, login: Login },
}

impl Route {
    /// A connection along this route.
    pub(crate) async fn connect(
        &self,
        caller: &Caller,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        match self {
            Route::To(host) => caller.connect(address(host), config).await,
            Route::Socket(path) => caller.connect(ConnectionAddr::Unix(path.clone()), config).await,
            Route::Any(hosts) => {
                let mut error = none_answered("no host is named");
                let hosts = hosts.lock().unwrap_or_else(PoisonError::into_inner).clone();
                for host in in_any_order(&hosts) {
                    let connecting = async {
                        let mut connection = caller.connect(address(host), config).await?;
                        require_data(&mut connection).await?;
                        Ok(connection)
                    };
                    match connecting.await {
                        Ok(connection) => return Ok(connection),
                        Err(failed) => error = failed,
                    }
                }
                Err(error)
            }
            Route::Sentinels { sentinels, service, login } => {
                let master = ask_sentinels(sentinels, service, login, caller).await?;
                let mut connection = caller.connect(address(&master), config).await?;
                require_master(&mut connection).await?;
                Ok(connection)
            }
        }
    }
}

fn address(host: &Host) -> ConnectionAddr {
    ConnectionAddr::Tcp(host.name.clone(), host.port)
}

/// Spreads the load of many processes, and does not ask a dead one first each time.
fn in_any_order(hosts: &[Host]) -> impl Iterator<Item = &Host> {
    let start = rand::random_range(0..hosts.len().max(1));
    hosts.iter().cycle().skip(start).take(hosts.len())
}

fn none_answered(why: &str) -> RedisError {
    RedisError::from(std::io::Error::new(std::io::ErrorKind::NotFound, why.to_owned()))
}

impl Caller {
    /// On the current runtime. An error is of what cannot become right by trying again.
    pub(crate) fn new(login: Login, database: u16, tls: Option<Tls>) -> Result<Arc<Caller>> {
        let runtime = Handle::try_current().map_err(|cause| {
            let message = "a store is connected inside a tokio runtime; there is none here";
            Error::new(ErrorKind::InvalidArgument, message).caused_by(cause)
        })?;
        let tls = tls.map(Tls::load).transpose()?;
        let caller = Caller { login, database, tls, runtime };
        let anywhere = ConnectionAddr::Tcp("localhost".to_owned(), 0);
        caller.client(anywhere).map_err(|error| explain(&error))?;
        Ok(Arc::new(caller))
    }

    async fn connect(
        &self,
        address: ConnectionAddr,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let connecting = async {
            let client = self.client(address)?;
            client.get_multiplexed_async_connection_with_config(config).await
        };
        match tokio::time::timeout(CONNECT_WITHIN, connecting).await {
            Ok(connected) => connected,
            Err(_) => {
                let words = format!("no connection within {CONNECT_WITHIN:?}");
                Err(std::io::Error::new(std::io::ErrorKind::TimedOut, words).into())
            }
        }
    }

    fn client(&self, address: ConnectionAddr) -> RedisResult<Client> {
        // RESP3, since pushes and answers share the connection.
        let mut redis = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_db(i64::from(self.database))
            .set_skip_set_lib_name();
        if let Some(user) = &self.login.user {
            redis = redis.set_username(user);
        }
        if let Some(password) = &self.login.password {
            redis = redis.set_password(password);
        }
        // A peer that vanished is noticed by the kernel too, also while nothing is asked.
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(5))
            .with_interval(Duration::from_secs(1));
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
        // What could not be delivered for so long is dropped, with its connection: nobody waits for the
        // answer any more. Else the kernel would go on sending it, behind a connection that was given up
        // and closed, and a request for a lock could arrive when its claim was long over.
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(ANSWER_WITHIN);
        let info = address.into_connection_info()?.set_redis_settings(redis).set_tcp_settings(tcp);
        match &self.tls {
            Some(tls) => tls.client(info),
            None => Client::open(info),
        }
    }
}

/// The master's address, from the first sentinel that knows it.
///
/// <https://redis.io/docs/latest/develop/reference/sentinel-clients/>
async fn ask_sentinels(
    sentinels: &[Host],
    service: &str,
    login: &Login,
    caller: &Caller,
) -> RedisResult<Host> {
    let asking = Caller { login: login.clone(), database: 0, ..caller.clone() };
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_WITHIN));
    let mut error = none_answered("no sentinel is named");
    for sentinel in in_any_order(sentinels) {
        let asked = async {
            let mut connection = asking.connect(address(sentinel), &config).await?;
            let mut command = redis::cmd("SENTINEL");
            command.arg("get-master-addr-by-name").arg(service);
            command.query_async::<Option<(String, u16)>>(&mut connection).await
        };
        match asked.await {
            Ok(Some((name, port))) => return Ok(Host { name, port }),
            Ok(None) => {
                let words = format!("no sentinel that answered knows the service {service:?}");
                error = none_answered(&words);
            }
            // Sure of it, and not a refusal: it does not know the command.
            Err(failed) if failed.code() == Some("ERR") => {
                let Host { name, port } = sentinel;
                error = none_answered(&format!("{name}:{port} is no sentinel; use redis://"));
            }
            Err(failed) => error = failed,
        }
    }
    Err(error)
}

/// A sentinel's answer may be old: the one it names may have become a replica meanwhile.
async fn require_master(connection: &mut MultiplexedConnection) -> RedisResult<()> {
    let role = redis::cmd("ROLE").query_async::<Vec<Value>>(connection).await;
    match role.as_deref() {
        Ok([Value::BulkString(role), ..]) if role != b"master" => {
            Err(none_answered("the server that the sentinels name is no master any more"))
        }
        // An ACL without ROLE is no reason to refuse; the first write will tell.
        _ => Ok(()),
    }
}

/// A node that loads its data tells nobody the map of slots until it has it.
async fn require_data(connection: &mut MultiplexedConnection) -> RedisResult<()> {
    match redis::cmd("CLUSTER").arg("SLOTS").query_async::<Value>(connection).await {
        Err(error) if error.code() == Some("LOADING") => Err(error),
        // Whatever else there is to say of it is said to who asks for the map.
        _ => Ok(()),
    }
}
