//! The configuration of a store: servers, root, session, login and certificates; and connecting.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fencelock_core::backend::{current_runtime, invalid, start_clock};
use fencelock_core::sync::Mutex;
use fencelock_core::url::{Params, StoreUrl};
use fencelock_core::{Guard, Locks, Result, Settings};
use zookeeper_client::Client;

use crate::backend::ZkBackend;
use crate::connection::access::{Access, Rights};
use crate::connection::login::Login;
use crate::connection::tls::Tls;
use crate::nodes::held_node;
use crate::queue::path;
use crate::sessions::pool::Pool;

/// A ZooKeeper store that is not yet connected.
///
/// ```no_run
/// # async fn f() -> fencelock_core::Result<()> {
/// use fencelock_core::Settings;
/// use fencelock_zk::ZkStore;
/// let store = ZkStore::servers([("zk1", 2181), ("zk2", 2181), ("zk3", 2181)]).root("/locks");
/// let locks = store.locks(Settings::default()).await?;
/// let guard = locks.lock("report").acquire().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ZkStore {
    hosts: Vec<(String, u16)>,
    root: String,
    session: Duration,
    login: Option<Login>,
    rights: Option<Rights>,
    tls: Option<Tls>,
}

const PORT: u16 = 2181;
/// With the servers' default tick of 2 s it is granted unchanged, and `fencelock run` keeps its job
/// through an outage of the servers of 5 s (docs/decisions/0021).
const DEFAULT_SESSION: Duration = Duration::from_secs(20);
/// The valid session timeouts; the servers have bounds of their own within.
const SESSION_RANGE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(500)..=Duration::from_secs(600);

/// The parameters of these URLs in addition to the common ones.
const PARAMETERS: [&str; 6] = ["session", "auth", "acl", "tls_ca", "tls_cert", "tls_key"];

impl ZkStore {
    /// A store on these servers, which are one ensemble.
    #[must_use]
    pub fn servers<'a>(servers: impl IntoIterator<Item = (&'a str, u16)>) -> ZkStore {
        ZkStore {
            hosts: servers.into_iter().map(|(name, port)| (name.to_owned(), port)).collect(),
            root: "/".to_owned(),
            session: DEFAULT_SESSION,
            login: None,
            rights: None,
            tls: None,
        }
    }

    /// Sets the path below which all locks are, created if it does not exist. Default: `/`.
    #[must_use]
    pub fn root(mut self, path: &str) -> ZkStore {
        path.clone_into(&mut self.root);
        self
    }

    /// Sets the session timeout, 500 ms to 10 min: how long the servers keep the locks of a client
    /// that went silent. They have bounds of their own, by default 4 s to 40 s. Default: 20 s.
    #[must_use]
    pub fn session(mut self, timeout: Duration) -> ZkStore {
        self.session = timeout;
        self
    }

    /// Sets the login: `digest` and `USER:PASSWORD`.
    #[must_use]
    pub fn login(mut self, scheme: &str, secret: &str) -> ZkStore {
        self.login = Some(Login::Auth { scheme: scheme.to_owned(), secret: secret.to_owned() });
        self
    }

    /// Sets a login by SASL. `SaslOptions::gssapi()` is available if the transport is built with its
    /// feature `sasl-gssapi`, which requires the system's Kerberos library.
    #[cfg(feature = "sasl")]
    #[must_use]
    pub fn sasl(mut self, options: impl Into<zookeeper_client::SaslOptions>) -> ZkStore {
        self.login = Some(Login::Sasl(options.into()));
        self
    }

    /// Sets the rights of the nodes that the client creates. Default: [`Rights::Creator`] with a
    /// login, [`Rights::Open`] without.
    #[must_use]
    pub fn rights(mut self, rights: Rights) -> ZkStore {
        self.rights = Some(rights);
        self
    }

    /// Encrypts the connections.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> ZkStore {
        self.tls = Some(tls);
        self
    }

    /// Parses a URL of the scheme [`SCHEME`](crate::SCHEME), and the settings common to all stores.
    ///
    /// # Errors
    /// [`InvalidArgument`](fencelock_core::ErrorKind::InvalidArgument) for an invalid one.
    pub fn from_url(url: &StoreUrl) -> Result<(ZkStore, Settings)> {
        let params = url.params(&PARAMETERS)?;
        if url.user().is_some() || url.password().is_some() {
            return Err(invalid(
                "the URL names a user; expected the login as auth=digest:USER:PASSWORD",
            ));
        }
        let hosts = hosts_of(url)?;
        let mut store = ZkStore::servers(hosts.iter().map(|(name, port)| (name.as_str(), *port)));
        store.root = match url.path().trim_end_matches('/') {
            "" => "/".to_owned(),
            path => path.to_owned(),
        };
        if let Some(timeout) = params.duration("session")? {
            store.session = timeout;
        }
        store.login = params.text("auth").map(Login::parse).transpose()?;
        store.rights = match params.text("acl") {
            None => None,
            Some("open") => Some(Rights::Open),
            Some("creator") => Some(Rights::Creator),
            Some(_) => return Err(invalid("invalid acl: expected open or creator")),
        };
        store.tls = tls_of(params)?;
        Ok((store, params.settings()?))
    }

    /// Connects, on the current runtime.
    ///
    /// # Errors
    /// - [`Unreachable`](fencelock_core::ErrorKind::Unreachable): no server answers, or none that
    ///   is writable.
    /// - [`Refused`](fencelock_core::ErrorKind::Refused): the servers refuse the login, or the
    ///   creation of the root.
    /// - [`InvalidArgument`](fencelock_core::ErrorKind::InvalidArgument): outside a tokio runtime,
    ///   an invalid root or session timeout, or a certificate that cannot be read.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn locks(self, settings: Settings) -> Result<Locks> {
        let runtime = current_runtime()?;
        self.check()?;
        let mut connector = Client::connector();
        if let Some(login) = &self.login {
            connector = login.put_into(connector);
        }
        if let Some(tls) = &self.tls {
            connector = tls.put_into(connector)?;
        }
        let clock = start_clock()?;
        let access = Access {
            connector,
            hosts: self.hosts.clone(),
            cluster: self.cluster(),
            is_secure: self.tls.is_some(),
            root: self.root.as_str().into(),
            rights: self.rights.unwrap_or(match self.login {
                Some(_) => Rights::Creator,
                None => Rights::Open,
            }),
            created: Mutex::default(),
            has_warned: AtomicBool::new(false),
        };
        let pool = Pool::connect(access, self.session, Arc::new(clock), runtime).await?;
        Locks::new(Arc::new(ZkBackend::new(pool)), &self.redacted_url(), settings)
    }

    /// The path of the node by which `guard` holds its lock, as `client`, a connection of the
    /// caller, sees it now: for the first operation of a write that must fail when the lock is no
    /// longer held.
    ///
    /// The data that a lock protects may be in the same ensemble. Then no fencing token has to be
    /// stored and compared: a `multi` that checks the lock's node is carried out as a whole or not at
    /// all, at a moment at which the lock is held.
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// use fencelock_core::Settings;
    /// use fencelock_zk::{ZkStore, zookeeper_client::Client};
    /// let store = ZkStore::servers([("zk1", 2181)]).root("/locks");
    /// let locks = store.clone().locks(Settings::default()).await?;
    /// let client = Client::connect("zk1:2181").await?;
    ///
    /// let guard = locks.lock("orders").acquire().await?;
    /// let node = store.held_node(&client, &guard).await?;
    /// let mut writer = client.new_check_writer(&node, None)?;
    /// writer.add_set_data("/orders/next", b"43", None)?;
    /// writer.commit().await?; // CheckFailed: the lock is lost, and nothing was written
    /// # Ok(()) }
    /// ```
    ///
    /// `client` must see the whole tree, without a chroot, and may use any session.
    ///
    /// # Errors
    /// - [`Lost`](fencelock_core::ErrorKind::Lost): the lock is no longer held.
    /// - [`Unreachable`](fencelock_core::ErrorKind::Unreachable),
    ///   [`Refused`](fencelock_core::ErrorKind::Refused): as the servers answer. This method sets
    ///   no bound of its own for its requests, one for each child of the lock and two more.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn held_node(&self, client: &Client, guard: &Guard) -> Result<String> {
        let lock = path::of_lock(&self.root, guard.name().key())?;
        held_node::held_node(client, &lock, guard).await
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.hosts.is_empty() {
            return Err(invalid("missing host: expected HOST or HOST:PORT"));
        }
        if !SESSION_RANGE.contains(&self.session) {
            return Err(invalid("invalid session: expected 500ms to 10m"));
        }
        if self.rights == Some(Rights::Creator) && self.login.is_none() {
            return Err(invalid("acl=creator needs a login: auth=digest:USER:PASSWORD"));
        }
        check_root(&self.root)
    }

    /// The list of servers for the transport. It waits longer after each round through its list, and
    /// a short absence of a server must not cost a session, so a short list is repeated.
    fn cluster(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(address).collect();
        let rounds = 8usize.div_ceil(hosts.len().max(1));
        vec![hosts.join(","); rounds].join(",")
    }

    /// The name of the store in errors and logs.
    fn redacted_url(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(address).collect();
        format!("zk://{}{}", hosts.join(","), self.root)
    }
}

fn address((name, port): &(String, u16)) -> String {
    if name.contains(':') { format!("[{name}]:{port}") } else { format!("{name}:{port}") }
}

/// Parses `h1:2181,h2,[::1]:2182`, with no other characters: the transport splits the list again.
fn hosts_of(url: &StoreUrl) -> Result<Vec<(String, u16)>> {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
    let hosts = url.hosts(PORT)?;
    for ((name, port), text) in hosts.iter().zip(url.authority().split(',')) {
        let is_invalid = text.starts_with('[') && name.parse::<std::net::Ipv6Addr>().is_err();
        if is_invalid || *port == 0 || !name.chars().all(plain) {
            return Err(invalid(format!("invalid host {text:?}: expected HOST or HOST:PORT")));
        }
    }
    Ok(hosts)
}

fn tls_of(params: Params<'_>) -> Result<Option<Tls>> {
    match (params.text("tls_ca"), params.both("tls_cert", "tls_key")?) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(invalid(
            "tls_cert and tls_key need tls_ca, the authority that signed the servers' certificates",
        )),
        (Some(authority), None) => Ok(Some(Tls::authority(authority))),
        (Some(authority), Some((certificate, key))) => {
            Ok(Some(Tls::authority(authority).certificate(certificate, key)))
        }
    }
}

fn check_root(root: &str) -> Result<()> {
    let is_invalid = |part: &str| {
        part.is_empty() || part == "." || part == ".." || part.contains(char::is_control)
    };
    match root.strip_prefix('/') {
        Some("") => Ok(()),
        Some(rest) if rest.len() > 1024 => Err(invalid("invalid root: longer than 1024 bytes")),
        Some(rest) if rest == "zookeeper" || rest.starts_with("zookeeper/") => {
            Err(invalid("/zookeeper is reserved by the servers; choose another root"))
        }
        Some(rest) if !rest.split('/').any(is_invalid) => Ok(()),
        // Without the text: it may contain the rest of a password with a `/` in it.
        _ => Err(invalid(
            "invalid root: expected a path such as /app/locks, without empty parts, `.` or `..`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use fencelock_core::ErrorKind;

    use super::*;

    fn parse(url: &str) -> Result<ZkStore> {
        let (store, _) = ZkStore::from_url(&StoreUrl::parse(url)?)?;
        store.check()?;
        Ok(store)
    }

    #[test]
    fn a_url_configures_the_store() {
        let store = parse(
            "zk://h1:2182,h2,[::1]/app/locks/?session=4s&auth=digest:me:hunter2&acl=creator&ttl=2s",
        )
        .unwrap();
        assert_eq!(store.redacted_url(), "zk://h1:2182,h2:2181,[::1]:2181/app/locks");
        assert_eq!(store.cluster().split(',').count(), 9);
        assert_eq!(store.session, Duration::from_secs(4));
        assert_eq!(store.rights, Some(Rights::Creator));
        assert!(!format!("{store:?}").contains("hunter2"));
        let plain = parse("zookeeper://h").unwrap();
        assert_eq!(
            (plain.redacted_url().as_str(), plain.session),
            ("zk://h:2181/", DEFAULT_SESSION)
        );
        assert_eq!(plain.cluster().split(',').count(), 8);
        let tls = parse("zk://h?tls_ca=/ca.pem&tls_cert=/c.pem&tls_key=/k.pem").unwrap();
        assert!(tls.tls.is_some());
    }

    #[test]
    fn invalid_urls_are_refused_with_advice() {
        for (url, says) in [
            ("zk:///locks", "missing host"),
            ("zk://h:x", "HOST"),
            ("zk://h:0", "HOST"),
            ("zk://h:2181:2181", "HOST"),
            ("zk://[h]", "HOST"),
            ("zk://h 1", "HOST"),
            ("zk://h,,g", "HOST"),
            ("zk://me:hunter2@h", "auth=digest:USER:PASSWORD"),
            ("zk://h?auth=hunter2", "auth=digest:USER:PASSWORD"),
            ("zk://h?auth=digest:hunter2", "auth=digest:USER:PASSWORD"),
            ("zk://h?acl=hunter2", "open or creator"),
            ("zk://h?acl=creator", "needs a login"),
            ("zk://h?session=1ms", "500ms to 10m"),
            ("zk://h?session=1h", "500ms to 10m"),
            ("zk://h//a", "invalid root"),
            ("zk://h/a/../b", "invalid root"),
            ("zk://h/zookeeper/locks", "reserved"),
            ("zk://h?tls_cert=/c", "given together"),
            ("zk://h?tls_cert=/c&tls_key=/k", "need tls_ca"),
            ("zk://h?chroot=/a", "unknown parameter"),
        ] {
            let error = parse(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            let text = format!("{error} {error:?}");
            assert!(text.contains(says) && !text.contains("hunter2"), "{url}: {text}");
        }
    }
}
