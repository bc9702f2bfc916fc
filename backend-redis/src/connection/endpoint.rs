//! How the server of a connection is found: by its address, through Sentinel, or as any of several.
//!
//! It is found anew for each connection, so that a failover or a new address in the DNS is
//! followed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::sync::Mutex;
use fencelock_core::{Error, ErrorKind, Result};
use fencelock_net::Login;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};

use super::dial::Dialled;
use super::host::HostPort;
use super::options::ConnectOptions;
use crate::protocol::error::{explain, unreachable};

/// Which server to connect to.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// The server at this address.
    To(HostPort),
    /// The server at this socket.
    Socket(PathBuf),
    /// This node of a cluster, which says by itself who serves a key.
    Node(HostPort),
    /// Any of these nodes of a cluster that knows the map of slots; more nodes may become known.
    Any(Arc<Mutex<Vec<HostPort>>>),
    /// The master of `service`, as these sentinels know it.
    Sentinels { sentinels: Vec<HostPort>, service: String, login: Login },
}

impl Target {
    pub(crate) fn any_of(nodes: Vec<HostPort>) -> Target {
        Target::Any(Arc::new(Mutex::new(nodes)))
    }

    /// Opens a connection to the target.
    pub(crate) async fn connect(
        &self,
        options: &ConnectOptions,
        config: &AsyncConnectionConfig,
    ) -> Result<Dialled> {
        match self {
            Target::To(host) | Target::Node(host) => options.dial(host, config).await,
            Target::Socket(path) => options.dial_socket(path, config).await,
            Target::Any(hosts) => {
                let hosts = hosts.lock().clone();
                first_of(&hosts, "missing host", |host| async move {
                    let mut dialled = options.dial(host, config).await?;
                    require_data(&mut dialled.connection).await?;
                    Ok(dialled)
                })
                .await
            }
            Target::Sentinels { sentinels, service, login } => {
                let master = ask_sentinels(sentinels, service, login, options).await?;
                options.dial(&master, config).await
            }
        }
    }

    /// Requires that the server takes writes, which its first connection does not decide: a name may lead to another
    /// server later, and what the sentinels say may be old. A replica that is behind would answer that a lock is not
    /// held, or that it is free.
    ///
    /// # Errors
    /// An outage, also at the first connection: during a failover a job waits, and is not dropped.
    pub(crate) async fn require_master(&self, mut connection: MultiplexedConnection) -> Result<()> {
        if matches!(self, Target::Any(_) | Target::Node(_)) {
            return Ok(());
        }
        // No ACL denies it, and the login was one. What replies with something else has no replicas.
        let said = match redis::cmd("HELLO").query_async::<Value>(&mut connection).await {
            Ok(Value::Map(said)) => said,
            Err(error) if error.code().is_none() => return Err(explain(error)),
            Ok(_) | Err(_) => Vec::new(),
        };
        let text = |value: &Value| redis::from_redis_value::<String>(value.clone()).ok();
        let of = |what| said.iter().find(|(name, _)| text(name).as_deref() == Some(what));
        let says = |what| of(what).and_then(|(_, said)| text(said)).unwrap_or_default();
        // Of a cluster's node something else is said first.
        let is_replica =
            ["replica", "slave"].contains(&&*says("role")) && says("mode") != "cluster";
        match self {
            _ if !is_replica => Ok(()),
            Target::Sentinels { .. } => {
                Err(unreachable("the server that the sentinels name is no longer a master"))
            }
            _ => Err(replica()),
        }
    }
}

/// An outage: a name may lead to it for a while. What is held stays so until its validity ends.
pub(crate) fn replica() -> Error {
    unreachable("the server is a replica, or its name leads to one now: its master takes locks")
}

/// The hosts from a random start: spreads the load of many clients, and does not try a dead host
/// first each time.
fn in_any_order(hosts: &[HostPort]) -> impl Iterator<Item = &HostPort> {
    let start = rand::random_range(0..hosts.len().max(1));
    hosts.iter().cycle().skip(start).take(hosts.len())
}

/// How long a host has before the next one is tried concurrently, so that a silent host does not
/// delay the others. RFC 8305, section 5, recommends this value for the addresses of one host.
const HEAD_START: Duration = Duration::from_millis(250);

/// The first reply of any of `hosts`; the error that [says most](of_both) if none replies.
async fn first_of<'a, T, Asking: Future<Output = Result<T>>>(
    hosts: &'a [HostPort],
    if_none: &str,
    ask: impl Fn(&'a HostPort) -> Asking,
) -> Result<T> {
    let mut error = None;
    let mut hosts = in_any_order(hosts);
    let mut asked = FuturesUnordered::new();
    loop {
        let next = hosts.next();
        let is_last = next.is_none();
        asked.extend(next.map(&ask));
        tokio::select! {
            answer = asked.next() => match answer {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(failed)) => error = Some(of_both(error, failed)),
                None => return Err(error.unwrap_or_else(|| unreachable(if_none))),
            },
            () = tokio::time::sleep(HEAD_START), if !is_last => {}
        }
    }
}

/// The error of two hosts. A refusal, such as of the password, says what to change; it is final only
/// if no host could still answer otherwise.
fn of_both(earlier: Option<Error>, failed: Error) -> Error {
    let Some(earlier) = earlier else { return failed };
    let is_final = !earlier.is_retryable() && !failed.is_retryable();
    let refused = if earlier.kind() == ErrorKind::Unreachable { failed } else { earlier };
    refused.retryable(!is_final)
}

/// The master's address, from the first sentinel that knows it.
///
/// <https://redis.io/docs/latest/develop/reference/sentinel-clients/>
async fn ask_sentinels(
    sentinels: &[HostPort],
    service: &str,
    login: &Login,
    options: &ConnectOptions,
) -> Result<HostPort> {
    let asking =
        ConnectOptions { login: login.clone(), database: 0, is_sentinel: true, ..options.clone() };
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(options.timeouts.answer));
    let (asking, config) = (&asking, &config);
    first_of(sentinels, "no sentinel is named", |sentinel| async move {
        let mut dialled = asking.dial(sentinel, config).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("get-master-addr-by-name").arg(service);
        match command.query_async::<Option<(String, u16)>>(&mut dialled.connection).await {
            Ok(Some((name, port))) => Ok(options.addresses.translate(HostPort { name, port })),
            Ok(None) => {
                Err(unreachable(format!("no sentinel that answered knows the service {service:?}")))
            }
            // A final error, not a refusal: the server does not know the command.
            Err(failed) if failed.code() == Some("ERR") => {
                let HostPort { name, port } = sentinel;
                let message = format!("{name}:{port} is not a sentinel; use redis://");
                Err(Error::new(ErrorKind::Refused, message))
            }
            Err(failed) => Err(explain(failed)),
        }
    })
    .await
}

/// A node does not reply with the map of slots while it loads its data.
async fn require_data(connection: &mut MultiplexedConnection) -> Result<()> {
    match redis::cmd("CLUSTER").arg("SLOTS").query_async::<Value>(connection).await {
        Err(error) if error.code() == Some("LOADING") => Err(explain(&error)),
        // Any other error is reported by the request for the map.
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
        let failed =
            first_of(
                &hosts,
                "none",
                |host| async move { Err::<(), _>(unreachable(host.to_string())) },
            );
        assert!(failed.await.unwrap_err().message().starts_with("h:"));
        let none = first_of(&[], "none is named", |_| async { Ok(()) });
        assert_eq!(none.await.unwrap_err().message(), "none is named");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_final_if_no_host_could_answer_otherwise() {
        let refused = || Error::new(ErrorKind::Refused, "give a password");
        let hosts = hosts(3);
        let all = first_of(&hosts, "none", |_| async { Err::<(), _>(refused()) }).await;
        assert!(all.is_err_and(|error| !error.is_retryable()));
        for away in 0..3 {
            let one_is_away = first_of(&hosts, "none", |host| async move {
                Err::<(), _>(if host.port == away { unreachable("away") } else { refused() })
            });
            let error = one_is_away.await.expect_err("none answers");
            assert!(error.is_retryable() && error.message() == "give a password", "{error}");
        }
    }
}
