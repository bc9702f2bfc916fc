//! How sessions are made: the transport's settings, the negotiation, and the root.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::{BootClock, Clock, Error, ErrorKind, Result};
use futures_util::future::join_all;
use zookeeper_client::{Acls, Client, Connector, CreateMode, Error as ZkError};

use crate::error::{RequestError, ZkResult};
use crate::probe::{Found, probe};
use crate::session::Session;

/// So many servers are asked what they are, when none gives a session.
const MAX_PROBED: usize = 8;

/// A node that every ClickHouse Keeper has (unless it was compiled in its ZooKeeper mode) and no
/// ZooKeeper:
/// <https://clickhouse.com/docs/operations/utilities/clickhouse-keeper-client>.
const CLICKHOUSE_KEEPER: &str = "/keeper/api_version";

/// So long the first session takes at most, usually.
const USUAL_OPEN_TIME: Duration = Duration::from_millis(300);

/// What every session of one store has in common: it has secrets, and is not for `Debug`.
pub(crate) struct Access {
    /// With login and certificates.
    pub(crate) connector: Connector,
    pub(crate) hosts: Vec<(String, u16)>,
    pub(crate) cluster: String,
    pub(crate) is_secure: bool,
    pub(crate) root: Arc<str>,
    pub(crate) acls: Acls<'static>,
    /// Of the root and what is above it: the paths that this client made, the uppermost first.
    pub(crate) created: Mutex<Vec<String>>,
}

impl Access {
    /// A new session that asks for this timeout.
    ///
    /// The transport's signs of life and its patience with a connection follow from the timeout,
    /// so with another one than was asked for it is asked again.
    pub(crate) async fn open(&self, clock: &Arc<BootClock>, timeout: Duration) -> Result<Session> {
        let mut sent = clock.now();
        let mut client = self.connect(timeout).await?;
        let negotiated = client.session_timeout();
        if negotiated != timeout {
            sent = clock.now();
            client = self.connect(negotiated).await?;
        }
        if client.check_stat(CLICKHOUSE_KEEPER).await.map_err(RequestError::from)?.is_some() {
            return Err(is_clickhouse_keeper());
        }
        self.create_root(&client).await.map_err(RequestError::from)?;
        Ok(Session::new(client, self.root.clone(), clock.clone(), sent))
    }

    /// The first one. When no server gives a session, the error says what was found instead.
    ///
    /// What is not a ZooKeeper server may keep the transport waiting, and send it as much as it
    /// likes meanwhile: while it takes long, the servers are looked at.
    pub(crate) async fn open_first(
        &self,
        clock: &Arc<BootClock>,
        timeout: Duration,
    ) -> Result<Session> {
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
                    match found.iter().all(|found| *found == Found::Nothing) {
                        true => Err(error),
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
        let seen =
            self.hosts.iter().zip(found).map(|((host, port), found)| {
                format!("{host}:{port} {}", found.advice(self.is_secure))
            });
        let seen = seen.collect::<Vec<_>>().join("; ");
        Error::new(ErrorKind::Unreachable, format!("no server gives a session: {seen}"))
    }

    async fn connect(&self, timeout: Duration) -> Result<Client> {
        let connector = self
            .connector
            .clone()
            .with_session_timeout(timeout)
            // A dead connection is found in a fifth of the timeout, and there is a sign of life
            // each tenth of it.
            .with_connection_timeout(timeout / 5)
            .with_fail_eagerly();
        let connected = match self.is_secure {
            #[cfg(feature = "tls")]
            true => connector.secure_connect(&self.cluster).await,
            #[cfg(not(feature = "tls"))]
            true => Err(ZkError::Unimplemented),
            false => connector.connect(&self.cluster).await,
        };
        Ok(connected.map_err(RequestError::from)?)
    }

    /// The root and what is above it. It stays: only locks come and go.
    pub(crate) async fn create_root(&self, client: &Client) -> Result<(), ZkError> {
        let options = CreateMode::Persistent.with_acls(self.acls);
        let ends = self.root.char_indices().skip(1).filter(|(_, c)| *c == '/').map(|(at, _)| at);
        for end in ends.chain([self.root.len()]) {
            let path = &self.root[..end];
            // Whoever may not create it may find it there.
            if path == "/" || client.check_stat(path).await?.is_some() {
                continue;
            }
            match client.create(path, b"", &options).await {
                Ok(_) => self.created().push(path.to_owned()),
                Err(ZkError::NodeExists) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn created(&self) -> MutexGuard<'_, Vec<String>> {
        self.created.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes what [`make_root`](Access::make_root) made, as far as nothing else is below it.
    pub(crate) async fn remove_root(&self, session: &Arc<Session>) -> ZkResult<()> {
        let created = std::mem::take(&mut *self.created());
        for path in created.iter().rev() {
            match session.delete(path).await {
                Ok(()) => {}
                // Removed by another client, or in use by one.
                Err(error) if error.is_no_node() || error.is_not_empty() => {}
                Err(error) => {
                    *self.created() = created;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The node of a lock, which the servers remove some time after its last child. With the root
    /// gone, that too.
    pub(crate) async fn create_lock(&self, client: &Client, lock: &str) -> Result<(), ZkError> {
        let options = CreateMode::Container.with_acls(self.acls);
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
         another session there without being told, so two could hold one lock; expected a ZooKeeper"
    );
    Error::new(ErrorKind::Refused, message)
}
