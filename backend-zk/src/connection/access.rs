//! How connections and sessions are requested: the transport's settings, the negotiation, and the
//! nodes above those of claims.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencelock_core::sync::Mutex;
use fencelock_core::{BootClock, Clock, Error, ErrorKind, Moment, Result};
use futures_util::future::join_all;
use zookeeper_client::{Acls, AuthId, Client, Connector, CreateMode, Error as ZkError};

use crate::connection::owners::Owners;
use crate::connection::probe::{Found, probe};
use crate::error::explained;

/// How many servers are probed when none grants a session.
const MAX_PROBED: usize = 8;

/// A node that exists in every ClickHouse Keeper (unless it was compiled in its ZooKeeper mode) and
/// in no ZooKeeper:
/// <https://clickhouse.com/docs/operations/utilities/clickhouse-keeper-client>.
const CLICKHOUSE_KEEPER: &str = "/keeper/api_version";

/// Opening the first session usually takes less. After this time the servers are probed.
const USUAL_OPEN_TIME: Duration = Duration::from_millis(300);

/// The access rights of the nodes that a client creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Every client has all rights.
    Open,
    /// The login that created a node has all rights, any other none.
    Creator,
}

/// What all sessions of one client have in common. It holds secrets, and so has no `Debug`.
pub(crate) struct Access {
    /// Includes the login and the certificates.
    pub(crate) connector: Connector,
    pub(crate) hosts: Vec<(String, u16)>,
    pub(crate) cluster: String,
    pub(crate) is_secure: bool,
    pub(crate) root: Arc<str>,
    pub(crate) rights: Rights,
    /// Those of the root and the nodes above it that this client created, the uppermost first.
    pub(crate) created: Mutex<Vec<String>>,
    /// That the root is open was said.
    pub(crate) has_warned: AtomicBool,
}

/// A session that was opened.
pub(crate) struct Opened {
    pub(crate) client: Client,
    /// When it was asked for.
    pub(crate) sent: Moment,
    /// Whose nodes are believed; `None`: everybody's.
    pub(crate) owners: Option<Owners>,
}

impl Access {
    /// The ACL of what this client creates.
    pub(crate) fn acls(&self) -> Acls<'static> {
        match self.rights {
            Rights::Open => Acls::anyone_all(),
            Rights::Creator => Acls::creator_all(),
        }
    }

    /// Opens a session with this timeout; the moment is when it was asked for.
    ///
    /// The transport derives its pings and its connection timeout from the timeout that was asked
    /// for, so if the servers grant another one, the session is opened again with that.
    pub(crate) async fn open(&self, clock: &BootClock, timeout: Duration) -> Result<Opened> {
        let mut sent = clock.now();
        let mut client = self.connect(timeout).await?;
        let negotiated = client.session_timeout();
        if negotiated != timeout {
            sent = clock.now();
            client = self.connect(negotiated).await?;
        }
        if client.check_stat(CLICKHOUSE_KEEPER).await.map_err(explained)?.is_some() {
            return Err(is_clickhouse_keeper());
        }
        self.create_root(&client).await.map_err(explained)?;
        let owners = match self.rights {
            Rights::Open => None,
            Rights::Creator => {
                let owners = Owners::of_session(&client, &self.root).await.map_err(explained)?;
                self.warn_of_strangers(&client, &owners).await.map_err(explained)?;
                Some(owners)
            }
        };
        Ok(Opened { client, sent, owners })
    }

    /// Warns once if others may create nodes in the root: what they make there first is refused.
    async fn warn_of_strangers(&self, client: &Client, owners: &Owners) -> Result<(), ZkError> {
        let acls = match client.get_acl(&self.root).await {
            Ok((acls, _)) => acls,
            // It has rights to create there only.
            Err(ZkError::NoAuth) => return Ok(()),
            Err(error) => return Err(error),
        };
        // Without the right ADMIN the hashes of passwords are not shown.
        let is_masked = |id: &AuthId| id.scheme() == "digest" && id.id().ends_with(":x");
        if let Some(id) = owners.stranger(&acls).filter(|id| !is_masked(id))
            && !self.has_warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                root = %self.root,
                may_create = %format!("{}:{}", id.scheme(), id.id()),
                "others than this login may create nodes in the root: a lock or a cell that they make first is \
                 refused to this login; expected a root of its own, such as zk://HOST/locks, which it creates"
            );
        }
        Ok(())
    }

    /// Opens the first session. When no server grants one, the error says what was found instead.
    ///
    /// A server that is not a ZooKeeper may keep the transport waiting, and send it any amount of
    /// data meanwhile: when opening takes long, the servers are probed.
    pub(crate) async fn open_first(&self, clock: &BootClock, timeout: Duration) -> Result<Opened> {
        let foreign = async {
            loop {
                clock.sleep_until(clock.now() + USUAL_OPEN_TIME).await;
                let found = self.probe_all().await;
                if found.iter().all(|found| found.is_foreign(self.is_secure)) {
                    return found;
                }
            }
        };
        tokio::select! {
            biased;
            opened = self.open(clock, timeout) => match opened {
                Err(error) if error.kind() == ErrorKind::Unreachable => {
                    let found = self.probe_all().await;
                    // The transport reports that it found no server to use, in words of its own.
                    match found.iter().all(|found| found.explains_no_session(self.is_secure)) {
                        true => Err(self.explain(&found)),
                        false => Err(self.explain(&found).caused_by(error)),
                    }
                }
                opened => opened,
            },
            found = foreign => Err(self.explain(&found)),
        }
    }

    async fn probe_all(&self) -> Vec<Found> {
        join_all(self.hosts.iter().take(MAX_PROBED).map(probe)).await
    }

    fn explain(&self, found: &[Found]) -> Error {
        let found_at = |((host, port), found): (&(String, u16), &Found)| {
            format!("{host}:{port} {}", found.advice(self.is_secure))
        };
        let seen = self.hosts.iter().zip(found).map(found_at).collect::<Vec<_>>().join("; ");
        let what = match found.iter().all(|found| found.is_nothing()) {
            true => "no server accepts a connection",
            false => "no server grants a session",
        };
        Error::new(ErrorKind::Unreachable, format!("{what}: {seen}"))
    }

    async fn connect(&self, timeout: Duration) -> Result<Client> {
        let connector = self
            .connector
            .clone()
            .with_session_timeout(timeout)
            // A dead connection is detected within a fifth of the timeout, and a ping is sent each
            // tenth of it.
            .with_connection_timeout(timeout / 5)
            .with_fail_eagerly();
        let connected = match self.is_secure {
            #[cfg(feature = "tls")]
            true => connector.secure_connect(&self.cluster).await,
            #[cfg(not(feature = "tls"))]
            true => Err(ZkError::Unimplemented),
            false => connector.connect(&self.cluster).await,
        };
        connected.map_err(explained)
    }

    /// Creates the root and the nodes above it. They stay: only the nodes of locks are removed.
    pub(crate) async fn create_root(&self, client: &Client) -> Result<(), ZkError> {
        let options = CreateMode::Persistent.with_acls(self.acls());
        let ends = self.root.char_indices().skip(1).filter(|(_, c)| *c == '/').map(|(at, _)| at);
        for path in ends.chain([self.root.len()]).map(|end| &self.root[..end]) {
            // A login that may not create it can still use it.
            if path == "/" || client.check_stat(path).await?.is_some() {
                continue;
            }
            match client.create(path, b"", &options).await {
                Ok(_) => self.created.lock().push(path.to_owned()),
                Err(ZkError::NodeExists) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Creates the node of a lock, which the servers remove some time after its last child; or the
    /// root, if that was removed.
    pub(crate) async fn create_lock(&self, client: &Client, lock: &str) -> Result<(), ZkError> {
        let options = CreateMode::Container.with_acls(self.acls());
        match client.create(lock, b"", &options).await {
            Ok(_) | Err(ZkError::NodeExists) => Ok(()),
            Err(ZkError::NoNode) => self.create_root(client).await,
            Err(error) => Err(error),
        }
    }
}

fn is_clickhouse_keeper() -> Error {
    let message = format!(
        "this is a ClickHouse Keeper ({CLICKHOUSE_KEEPER} exists): after a reconnect a client has \
         another session there without notice, so two could hold one lock; expected a ZooKeeper"
    );
    Error::new(ErrorKind::Refused, message)
}
