//! How to get to the server that a connection should be with: straight, by Sentinel, or to any of
//! several.
//!
//! The way is found anew for each connection, so that a failover or a new address in the DNS is
//! followed.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fencelock_core::{Error, ErrorKind, Result};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};
use tokio::runtime::Handle;

use crate::connection::Login;
use crate::connection::access::{Access, AddressMap, Timeouts};
use crate::connection::{Address, Dialled};
use crate::connection::{Secured, Tls};
use crate::protocol::error::explain;

/// The name and port of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HostPort {
    pub(crate) name: String,
    pub(crate) port: u16,
}

impl std::fmt::Display for HostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

/// Who is asking, and how: the same for every server of a store.
#[derive(Clone, Debug)]
pub(crate) struct ConnectOptions {
    pub(crate) login: Login,
    pub(crate) database: u16,
    pub(crate) tls: Option<Secured>,
    pub(crate) timeouts: Timeouts,
    pub(crate) addresses: AddressMap,
    /// Carries the connections, whichever runtime asks for them.
    pub(crate) runtime: Handle,
}

/// The way to a server.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// To this one.
    To(HostPort),
    /// To this socket.
    Socket(PathBuf),
    /// To one of these nodes of a cluster, the first that can tell the way; more may become known.
    Any(Arc<Mutex<Vec<HostPort>>>),
    /// To the master of `service`, as these sentinels know it.
    Sentinels { sentinels: Vec<HostPort>, service: String, login: Login },
}

impl Target {
    /// A connection along this route.
    pub(crate) async fn connect(
        &self,
        caller: &ConnectOptions,
        config: &AsyncConnectionConfig,
    ) -> Result<Dialled> {
        match self {
            Target::To(host) => caller.dial(&address(host), config).await,
            Target::Socket(path) => caller.dial(&Address::Unix(path.clone()), config).await,
            Target::Any(hosts) => {
                let hosts = hosts.lock().unwrap_or_else(PoisonError::into_inner).clone();
                first_of(&hosts, "no host is named", |host| async move {
                    let mut dialled = caller.dial(&address(host), config).await?;
                    require_data(&mut dialled.connection).await?;
                    Ok(dialled)
                })
                .await
            }
            Target::Sentinels { sentinels, service, login } => {
                let master = ask_sentinels(sentinels, service, login, caller).await?;
                let mut dialled = caller.dial(&address(&master), config).await?;
                require_master(&mut dialled.connection).await?;
                Ok(dialled)
            }
        }
    }
}

fn address(host: &HostPort) -> Address {
    Address::Tcp(host.clone())
}

/// Spreads the load of many processes, and does not ask a dead one first each time.
fn in_any_order(hosts: &[HostPort]) -> impl Iterator<Item = &HostPort> {
    let start = rand::random_range(0..hosts.len().max(1));
    hosts.iter().cycle().skip(start).take(hosts.len())
}

/// How long a host has before the next one is asked beside it, so that a silent one does not take the
/// time of those that answer. As RFC 8305, section 5, has it for the addresses of one host.
const HEAD_START: Duration = Duration::from_millis(250);

/// What the first of `hosts` says that has an answer; the last error if none has.
async fn first_of<'a, T, Asking: Future<Output = Result<T>>>(
    hosts: &'a [HostPort],
    if_none: &str,
    ask: impl Fn(&'a HostPort) -> Asking,
) -> Result<T> {
    let mut error = none_answered(if_none);
    let mut hosts = in_any_order(hosts);
    let mut asked = FuturesUnordered::new();
    loop {
        let is_last = match hosts.next() {
            Some(host) => {
                asked.push(ask(host));
                false
            }
            None => true,
        };
        tokio::select! {
            answer = asked.next() => match answer {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(failed)) => error = failed,
                None => return Err(error),
            },
            () = tokio::time::sleep(HEAD_START), if !is_last => {}
        }
    }
}

fn none_answered(why: &str) -> Error {
    Error::new(ErrorKind::Unreachable, why)
}

impl ConnectOptions {
    /// On the current runtime. An error is of what cannot become right by trying again.
    pub(crate) fn new(access: Access) -> Result<Arc<ConnectOptions>> {
        let runtime = Handle::try_current().map_err(|cause| {
            let message = "a store is connected inside a tokio runtime; there is none here";
            Error::new(ErrorKind::InvalidArgument, message).caused_by(cause)
        })?;
        let Access { login, database, tls, timeouts, addresses } = access;
        timeouts.check()?;
        login.warn();
        let tls = tls.map(Tls::load).transpose()?;
        Ok(Arc::new(ConnectOptions { login, database, tls, timeouts, addresses, runtime }))
    }
}

/// The master's address, from the first sentinel that knows it.
///
/// <https://redis.io/docs/latest/develop/reference/sentinel-clients/>
async fn ask_sentinels(
    sentinels: &[HostPort],
    service: &str,
    login: &Login,
    caller: &ConnectOptions,
) -> Result<HostPort> {
    let asking = ConnectOptions { login: login.clone(), database: 0, ..caller.clone() };
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(caller.timeouts.answer));
    let (asking, config) = (&asking, &config);
    first_of(sentinels, "no sentinel is named", |sentinel| async move {
        let mut dialled = asking.dial(&address(sentinel), config).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("get-master-addr-by-name").arg(service);
        match command.query_async::<Option<(String, u16)>>(&mut dialled.connection).await {
            Ok(Some((name, port))) => Ok(caller.addresses.reach(HostPort { name, port })),
            Ok(None) => Err(none_answered(&format!(
                "no sentinel that answered knows the service {service:?}"
            ))),
            // Sure of it, and not a refusal: it does not know the command.
            Err(failed) if failed.code() == Some("ERR") => {
                let HostPort { name, port } = sentinel;
                Err(none_answered(&format!("{name}:{port} is no sentinel; use redis://")))
            }
            Err(failed) => Err(explain(&failed)),
        }
    })
    .await
}

/// A sentinel's answer may be old: the one it names may have become a replica meanwhile.
async fn require_master(connection: &mut MultiplexedConnection) -> Result<()> {
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
async fn require_data(connection: &mut MultiplexedConnection) -> Result<()> {
    match redis::cmd("CLUSTER").arg("SLOTS").query_async::<Value>(connection).await {
        Err(error) if error.code() == Some("LOADING") => Err(explain(&error)),
        // Whatever else there is to say of it is said to who asks for the map.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(count: u16) -> Vec<HostPort> {
        (0..count).map(|port| HostPort { name: "h".to_owned(), port }).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_host_takes_no_time_of_the_others() {
        let started = tokio::time::Instant::now();
        let hosts = hosts(5);
        let answer = first_of(&hosts, "none", |host| async move {
            if host.port != 3 {
                std::future::pending::<()>().await;
            }
            Ok(host.port)
        });
        assert_eq!(answer.await.unwrap(), 3);
        assert!(started.elapsed() <= HEAD_START * 4, "{:?}", started.elapsed());
    }

    #[tokio::test]
    async fn without_an_answer_the_last_error_counts() {
        let hosts = hosts(3);
        let failed = first_of(&hosts, "none", |host| async move {
            Err::<(), _>(none_answered(&host.to_string()))
        });
        assert!(failed.await.unwrap_err().message().starts_with("h:"));
        let nobody = first_of(&[], "none is named", |_| async { Ok(()) });
        assert_eq!(nobody.await.unwrap_err().message(), "none is named");
    }
}
