//! The settings of a store, by URL or builder, and its connection.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::backend::{invalid, start_clock};
use fencelock_core::sync::Mutex;
use fencelock_core::url::StoreUrl;
use fencelock_core::{Locks, Result, Settings};

use super::last_server::LastServer;
use super::notifications::Notifications;
use super::store::Store;
use crate::connection::access::{self, Access, AddressMap, PORT, database_in, hosts, hosts_of};
use crate::connection::{ConnectOptions, Credentials, HostPort, Login, Subscription, Target, Tls};
use crate::protocol::identity::ClientId;
use crate::server::topology::Server;

/// A Redis store that is not yet connected.
///
/// ```no_run
/// # async fn f() -> fencelock_core::Result<()> {
/// use fencelock_core::Settings;
/// use fencelock_redis::RedisStore;
/// let store = RedisStore::server("127.0.0.1", 6379);
/// let locks = store.login("jobs", "password").locks(Settings::default()).await?;
/// let guard = locks.lock("report").acquire().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RedisStore {
    target: Target,
    access: Access,
    replicas: u32,
}

const SENTINEL_PORT: u16 = 26379;

/// The parameters of these URLs besides those of [`access`].
const PARAMETERS: [&str; 5] =
    ["replicas", "sentinel_user", "sentinel_password", "sentinel_password_file", "address_map"];

impl RedisStore {
    fn of(target: Target) -> RedisStore {
        RedisStore { target, access: Access::default(), replicas: 0 }
    }

    /// A store on one server.
    #[must_use]
    pub fn server(host: &str, port: u16) -> RedisStore {
        let host = HostPort { name: host.to_owned(), port };
        RedisStore::of(Target::To(host))
    }

    /// A store on the server at a Unix socket.
    #[must_use]
    pub fn socket(path: impl AsRef<Path>) -> RedisStore {
        RedisStore::of(Target::Socket(path.as_ref().to_owned()))
    }

    /// A store on the master of `service`, as these sentinels know it; a failover is followed.
    #[must_use]
    pub fn sentinel<'a>(
        sentinels: impl IntoIterator<Item = (&'a str, u16)>,
        service: &str,
    ) -> RedisStore {
        let (sentinels, service) = (hosts(sentinels), service.to_owned());
        let login = Login::default();
        RedisStore::of(Target::Sentinels { sentinels, service, login })
    }

    /// A store on the cluster of these nodes; one that answers is enough.
    #[must_use]
    pub fn cluster<'a>(nodes: impl IntoIterator<Item = (&'a str, u16)>) -> RedisStore {
        RedisStore::of(Target::any_of(hosts(nodes)))
    }

    /// Logs in with this user and password; an empty user is the server's default one.
    #[must_use]
    pub fn login(mut self, user: &str, password: &str) -> RedisStore {
        self.access.login = Login::new(user, password);
        self
    }

    /// Logs in to the sentinels with this user and password.
    #[must_use]
    pub fn sentinel_login(self, user: &str, password: &str) -> RedisStore {
        self.with_sentinel_login(Login::new(user, password))
    }

    /// Logs in with the credentials that `ask` returns. It is called for each connection, on a thread
    /// that may block, so that a password that changes or expires is followed. A connected store
    /// keeps asking when they are refused.
    ///
    /// ```
    /// use fencelock_redis::{Credentials, RedisStore};
    /// # fn fresh_token() -> String { String::new() }
    /// let store = RedisStore::server("127.0.0.1", 6379)
    ///     .credentials(|| Ok(Credentials::new("jobs", &fresh_token())));
    /// ```
    #[must_use]
    pub fn credentials(
        mut self,
        ask: impl Fn() -> Result<Credentials> + Send + Sync + 'static,
    ) -> RedisStore {
        self.access.login = Login::Asked(Arc::new(ask));
        self
    }

    /// Logs in to the sentinels with the credentials that `ask` returns.
    #[must_use]
    pub fn sentinel_credentials(
        self,
        ask: impl Fn() -> Result<Credentials> + Send + Sync + 'static,
    ) -> RedisStore {
        self.with_sentinel_login(Login::Asked(Arc::new(ask)))
    }

    fn with_sentinel_login(mut self, given: Login) -> RedisStore {
        if let Target::Sentinels { login, .. } = &mut self.target {
            *login = given;
        }
        self
    }

    /// Translates the addresses that a cluster or Sentinel names, such as behind a NAT. Default: as
    /// they are named.
    #[must_use]
    pub fn address_map(
        mut self,
        translate: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static,
    ) -> RedisStore {
        self.access.addresses = AddressMap::by(translate);
        self
    }

    /// How long connecting may take, with its handshakes: 10 ms to a minute. Default: 2 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> RedisStore {
        self.access.timeouts.connect = timeout;
        self
    }

    /// How long a reply may take: 10 ms to a minute, and more than the longest script or pause of
    /// the server. Default: 1 s.
    #[must_use]
    pub fn answer_timeout(mut self, timeout: Duration) -> RedisStore {
        self.access.timeouts.answer = timeout;
        self
    }

    /// Uses this database. Default: 0, the only one of a cluster.
    #[must_use]
    pub fn database(mut self, number: u16) -> RedisStore {
        self.access.database = number;
        self
    }

    /// Connects by TLS.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> RedisStore {
        self.access.tls = Some(tls);
        self
    }

    /// A grant, or a write of a cell, counts only once this many replicas have it. Losing a lock
    /// in a failover becomes less likely, not impossible: docs/redis.md lists the cases. Default: 0.
    #[must_use]
    pub fn replicas(mut self, count: u32) -> RedisStore {
        self.replicas = count;
        self
    }

    pub(crate) fn from_url(url: &StoreUrl) -> Result<(RedisStore, Settings)> {
        let params = url.params(&[&access::PARAMETERS[..], &PARAMETERS].concat())?;
        let settings = params.settings()?;
        let (target, database) = match kind_of(url.scheme()) {
            "+unix" => (socket_of(url)?, None),
            "+sentinel" | "-sentinel" => sentinel_of(url)?,
            "-cluster" => {
                let nodes = hosts_of(url, PORT)?;
                (Target::any_of(nodes), database_in(url.path().trim_matches('/'))?)
            }
            _ => server_of(url)?,
        };
        let access = Access::from_url(url, params, database)?;
        let is_cluster = matches!(target, Target::Any(_));
        if is_cluster && access.database != 0 {
            return Err(invalid("a cluster has no database other than 0"));
        }
        let [user, password, file] =
            ["sentinel_user", "sentinel_password", "sentinel_password_file"]
                .map(|name| params.text(name));
        let is_sentinel = matches!(target, Target::Sentinels { .. });
        if user.or(password).or(file).is_some() && !is_sentinel {
            return Err(invalid(
                "sentinel_user, sentinel_password and sentinel_password_file are for \
                 redis+sentinel:// only",
            ));
        }
        if params.text("address_map").is_some() && !is_sentinel && !is_cluster {
            return Err(invalid("address_map is for redis-cluster:// and redis+sentinel:// only"));
        }
        let login = Login::of_parts(user, password, file, "sentinel_password_file")?;
        let login = login.ok_or_else(|| invalid("a sentinel_user without a sentinel_password"))?;
        let replicas = params.number("replicas")?.unwrap_or(0);
        let store = RedisStore { target, access, replicas }.with_sentinel_login(login);
        Ok((store, settings))
    }

    /// Connects, on the current runtime.
    ///
    /// # Errors
    /// - [`Unreachable`](fencelock_core::ErrorKind::Unreachable): no server answers, or a replica.
    /// - [`Refused`](fencelock_core::ErrorKind::Refused): the server refuses the login, or is not
    ///   suitable for locks: a sentinel, a cluster's node without `redis-cluster://`, or
    ///   older than 6.2.
    /// - [`InvalidArgument`](fencelock_core::ErrorKind::InvalidArgument): called outside a tokio
    ///   runtime, or an unreadable certificate.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn locks(self, settings: Settings) -> Result<Locks> {
        let shown = self.redacted_url();
        let options = ConnectOptions::new(self.access)?;
        // Before the first connection, which would panic on a runtime without I/O.
        let clock = start_clock()?;
        let client = ClientId::fresh(settings.key_prefix());
        let is_cluster = matches!(self.target, Target::Any(_));
        let server = LastServer { shown: shown.clone(), is_cluster, info: Mutex::default() };
        let notifications = Arc::new(Notifications { server, ..Notifications::default() });
        let subscription =
            Subscription { channel: Some(client.clone()), handler: Some(notifications.clone()) };
        let failover = is_cluster || matches!(self.target, Target::Sentinels { .. });
        let server = Server::connect(&self.target, &options, subscription, self.replicas).await?;
        server.get_ready().await?;
        let info = notifications.server.info();
        info.warn(&shown);
        let profile = info.profile(failover, self.replicas);
        let replicas = self.replicas;
        let unconfirmed = Mutex::default();
        let store = Store { server, clock, client, notifications, profile, replicas, unconfirmed };
        Locks::new(Arc::new(store), &shown, settings)
    }

    /// The store's name in errors and logs.
    fn redacted_url(&self) -> String {
        let list = |hosts: &[HostPort]| {
            hosts.iter().map(HostPort::to_string).collect::<Vec<_>>().join(",")
        };
        let secure = if self.access.tls.is_some() { "rediss" } else { "redis" };
        let database = self.access.database;
        match &self.target {
            Target::Socket(path) => {
                format!("redis+unix://{}?db={database}", path.display())
            }
            Target::Sentinels { sentinels, service, .. } => {
                format!("{secure}+sentinel://{}/{service}/{database}", list(sentinels))
            }
            Target::To(host) | Target::Node(host) => format!("{secure}://{host}/{database}"),
            Target::Any(nodes) => format!("{secure}-cluster://{}", list(&nodes.lock())),
        }
    }
}

/// The part of a scheme after `redis`, `rediss`, `valkey` or `valkeys`.
fn kind_of(scheme: &str) -> &str {
    let end = scheme.strip_prefix("redis").or_else(|| scheme.strip_prefix("valkey"));
    let end = end.unwrap_or_default();
    end.strip_prefix('s').unwrap_or(end)
}

/// `redis://host:port/db`.
fn server_of(url: &StoreUrl) -> Result<(Target, Option<u16>)> {
    let mut hosts = hosts_of(url, PORT)?;
    match (hosts.pop(), hosts.is_empty()) {
        (Some(host), true) => Ok((Target::To(host), database_in(url.path().trim_matches('/'))?)),
        _ => Err(invalid(
            "redis:// names one server; several are redis-cluster://H1,H2, or \
             redis+sentinel://H1,H2/SERVICE",
        )),
    }
}

/// `redis+unix:///run/redis.sock`.
fn socket_of(url: &StoreUrl) -> Result<Target> {
    match (url.authority(), url.path()) {
        ("", path) if path.len() > 1 => Ok(Target::Socket(path.into())),
        _ => Err(invalid("expected redis+unix:///PATH/TO/SOCKET, with ?db=N for a database")),
    }
}

/// `redis+sentinel://h1,h2/service/db`.
fn sentinel_of(url: &StoreUrl) -> Result<(Target, Option<u16>)> {
    let sentinels = hosts_of(url, SENTINEL_PORT)?;
    let path = url.path().trim_matches('/');
    let (service, database) = path.split_once('/').unwrap_or((path, ""));
    if service.is_empty() {
        return Err(invalid("no service is named; expected redis+sentinel://H1,H2/SERVICE"));
    }
    let (service, login) = (service.to_owned(), Login::default());
    let target = Target::Sentinels { sentinels, service, login };
    Ok((target, database_in(database)?))
}

#[cfg(test)]
mod tests {
    use fencelock_core::ErrorKind;

    use super::*;

    fn store(url: &str) -> Result<RedisStore> {
        RedisStore::from_url(&StoreUrl::parse(url)?).map(|(store, _)| store)
    }

    #[test]
    fn urls_are_parsed() {
        for (url, shown) in [
            ("redis://h", "redis://h:6379/0"),
            ("redis://:secret@h:1/3", "redis://h:1/3"),
            ("rediss://me:secret@[::1]:7?db=2", "rediss://::1:7/2"),
            ("redis+unix:///run/r.sock?db=4", "redis+unix:///run/r.sock?db=4"),
            ("redis+sentinel://a,b:2/main/1", "redis+sentinel://a:26379,b:2/main/1"),
            ("redis-sentinel://a/main", "redis+sentinel://a:26379/main/0"),
            ("redis-cluster://a,b:7", "redis-cluster://a:6379,b:7"),
            ("rediss-cluster://a", "rediss-cluster://a:6379"),
            ("valkey://a", "redis://a:6379/0"),
            ("valkeys://a/2", "rediss://a:6379/2"),
            ("valkey+unix:///r.sock", "redis+unix:///r.sock?db=0"),
            ("valkeys+sentinel://a/main", "rediss+sentinel://a:26379/main/0"),
            ("valkey-cluster://a", "redis-cluster://a:6379"),
        ] {
            let store = store(url).unwrap();
            assert_eq!(store.redacted_url(), shown);
            assert!(!format!("{store:?}").contains("secret"));
        }
    }

    #[test]
    fn an_error_says_what_was_expected() {
        for (url, says) in [
            ("redis://h:", "HOST:PORT"),
            ("redis://a,b", "redis-cluster://"),
            ("redis://h/1?db=2", "given twice"),
            ("redis://me@h", "a user without a password"),
            ("redis://h?tls_ca=x", "rediss:// only"),
            ("redis://h?sentinel_password=x", "redis+sentinel:// only"),
            ("redis-cluster://h?sentinel_user=x", "redis+sentinel:// only"),
            ("redis+sentinel://h/main?sentinel_user=x", "without a sentinel_password"),
            ("redis://h?address_map=a=b", "redis-cluster:// and redis+sentinel:// only"),
            ("rediss://h?tls_cert=x", "together"),
            ("redis+unix://host/sock", "redis+unix:///"),
            ("redis+sentinel://h", "no service"),
            ("redis-cluster://h/1", "no database other than 0"),
            ("redis://h?replica=1", "did you mean replicas?"),
        ] {
            let error = store(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
            assert!(error.to_string().contains(says), "{url}: {error}");
        }
    }
}
