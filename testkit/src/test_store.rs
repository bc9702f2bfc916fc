//! A test's own part of a store, and the faults that touch no other test.
//!
//! Each test has a fresh prefix, or a directory, and a proxy between its clients and the server. The
//! faults of connections act on that proxy, a lost lock on that prefix; what hits a whole server is
//! only done to a server that no other test uses.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fencelock_core::memory::Memory;
use fencelock_core::url::Connecting;
use fencelock_core::{Error, ErrorKind, Locks, Result, Scratch, Settings, Ttl, parse_duration};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::proxy::{Direction, NetworkFault, Proxy};
use crate::servers::Instance;

mod case;
mod server;
pub(crate) mod url;

pub(crate) use case::MISSING;
pub(crate) use case::chain;
pub use case::{Case, StoreKind};
pub(crate) use server::Unavailable;
use server::{Opened, Server};

/// The store of one test, and its faults. Clones are the same store.
///
/// A fault that the store cannot have is an error of the kind [`ErrorKind::Unsupported`], which says
/// why: memory and files have no connections, and a server that others may use is not frozen.
///
/// | fault | mem, file | postgres, redis, zk | with `own_server` | given by a URL |
/// |---|---|---|---|---|
/// | [`lose`](TestStore::lose) | yes | yes | yes | yes |
/// | [`cut_off`](TestStore::cut_off), [`slow`](TestStore::slow) | no | yes | yes | without TLS, for servers that do not refer clients to others |
/// | [`freeze`](TestStore::freeze), [`restart`](TestStore::restart) | no | no | yes | no |
#[derive(Clone)]
pub struct TestStore {
    inner: Arc<Inner>,
}

struct Inner {
    kind: StoreKind,
    connect: fn(&str) -> Connecting,
    clients_are: Clients,
    /// Between the clients and the servers; none where there can be none.
    proxies: Vec<Proxy>,
    /// A client that no fault touches.
    operator: OnceCell<Locks>,
    /// All clients that were handed out, to be closed at the end.
    clients: Mutex<Vec<Locks>>,
    scratch: Scratch,
    opened: Opened,
}

/// How clients reach the store.
enum Clients {
    /// In this process.
    OfMemory { store: Memory, settings: Settings },
    Of {
        /// Through the proxies.
        url: String,
        /// Past the proxies.
        direct: String,
    },
}

impl TestStore {
    /// The kind of store that this test runs on.
    #[must_use]
    pub fn kind(&self) -> StoreKind {
        self.inner.kind
    }

    /// What clients connect to: a service under test, also in another process.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for memory, where each connection by a URL is another store: use
    /// [`connect`](TestStore::connect).
    pub fn url(&self) -> Result<&str> {
        match &self.inner.clients_are {
            Clients::Of { url, .. } => Ok(url),
            Clients::OfMemory { .. } => Err(self.cannot(
                "url",
                "each connection to mem:// is a store of its own; hand TestStore::connect's \
                 Locks to the service",
            )),
        }
    }

    /// One more client of the same locks, such as another replica of the service. It is closed when
    /// the test has ended.
    ///
    /// # Errors
    /// Those of `fencelock::connect`.
    pub async fn connect(&self) -> Result<Locks> {
        let client = match &self.inner.clients_are {
            Clients::OfMemory { store, settings } => store.locks(settings.clone())?,
            Clients::Of { url, .. } => (self.inner.connect)(url).await?,
        };
        let mut clients = self.inner.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.push(client.clone());
        Ok(client)
    }

    /// Takes the lock `name` from all its holders, as an operator does by
    /// [`Locks::evict`](fencelock_core::Locks::evict). A holder notices at once where the store
    /// notifies it, and at its next renewal elsewhere.
    ///
    /// # Errors
    /// [`ErrorKind::NotHeld`] when no client holds it; the store's.
    pub async fn lose(&self, name: impl AsRef<str>) -> Result<()> {
        let name = name.as_ref();
        let operator = self.operator().await?;
        let mut lost = false;
        for holder in operator.inspect(name).await?.holders {
            lost |= operator.evict(name, &holder.id).await?;
        }
        if lost {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NotHeld, "expected a holder, from whom to take the lock")
            .on(name))
    }

    /// Cuts this test's clients off from the servers, in silence: connections stay up, and nothing
    /// passes, until [`heal`](TestStore::heal).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`]: see [`TestStore`].
    pub async fn cut_off(&self) -> Result<()> {
        for proxy in self.proxies("cut_off")? {
            let applied = proxy.apply(NetworkFault::CutOff).await;
            applied.map_err(|cause| self.failed("cut_off", &cause))?;
        }
        Ok(())
    }

    /// Delays each answer to this test's clients by this much, until [`heal`](TestStore::heal). A
    /// zero ends the delay.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`]: see [`TestStore`].
    pub fn slow(&self, by: Duration) -> Result<()> {
        for proxy in self.proxies("slow")? {
            proxy.delay(Direction::ToClient, by);
        }
        Ok(())
    }

    /// Stops all processes and threads of the server, until [`heal`](TestStore::heal); connections stay up. It has
    /// stopped on return. The test must have `own_server`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`]: see [`TestStore`].
    pub async fn freeze(&self) -> Result<()> {
        let own = self.inner.opened.server.own();
        let own = own.ok_or_else(|| self.needs_own_server("freeze"))?;
        own.freeze().await.map_err(|cause| self.failed("freeze", &cause))
    }

    /// Ends the server and starts it again with its data: Redis has an append-only file. It serves
    /// again on return. The test must have `own_server`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`]: see [`TestStore`]; [`ErrorKind::Unreachable`] when the server does
    /// not get ready.
    pub async fn restart(&self) -> Result<()> {
        let restarted = match &self.inner.opened.server {
            Server::Postgres(postgres) => postgres.restart().await,
            Server::Redis(redis) => redis.restart().await,
            Server::ZooKeeper(zookeeper) => zookeeper.restart().await,
            _ => return Err(self.needs_own_server("restart")),
        };
        restarted.map_err(|cause| self.failed("restart", &cause))
    }

    /// Ends [`cut_off`](TestStore::cut_off), [`slow`](TestStore::slow) and
    /// [`freeze`](TestStore::freeze). Connections that have lost something are reset, and clients
    /// connect again by themselves. Without a fault it does nothing.
    ///
    /// # Errors
    /// When a server that was frozen has ended.
    pub async fn heal(&self) -> Result<()> {
        let thawed = self.inner.opened.server.own().map_or(Ok(()), Instance::thaw);
        thawed.map_err(|cause| self.failed("heal", &cause))?;
        for proxy in &self.inner.proxies {
            proxy.heal().await.map_err(|cause| self.failed("heal", &cause))?;
        }
        Ok(())
    }

    pub(crate) fn open(
        case: Case,
        runtime: &Runtime,
    ) -> std::result::Result<TestStore, Unavailable> {
        let opened = server::open(case, runtime)?;
        // The variable is what has to be changed, and may be set far from the test.
        let from = match opened.server {
            Server::Given(variable) => format!("{variable}: "),
            _ => String::new(),
        };
        let made = runtime.block_on(TestStore::new(case, opened));
        made.map_err(|error| Unavailable::new(format!("{from}{error:#}")))
    }

    async fn new(case: Case, opened: Opened) -> Result<TestStore> {
        let is_given = matches!(opened.server, Server::Given(_));
        let given_url = opened.url.clone();
        // Access rights may depend on the user's own prefix. The test's name is for people.
        let stem = given_url.as_deref().map(url::prefix).transpose()?.unwrap_or_default();
        let test = case.name.rsplit("::").nth(1).unwrap_or_default();
        let scratch = Scratch::fresh(&stem, test);
        let mut proxies = Vec::new();
        let clients_are = match given_url {
            None => {
                let mut settings = Settings::default();
                if let Some(ttl) = case.ttl {
                    settings = settings.ttl(Ttl::new(parse_duration(ttl)?)?);
                }
                Clients::OfMemory { store: Memory::new(), settings }
            }
            Some(store) => {
                let direct = with_settings(case, &store, &scratch);
                let servers = url::proxied(&store)?.map(|(_, servers)| servers);
                for server in servers.unwrap_or_default() {
                    let proxy = Proxy::start(server).await.map_err(|cause| {
                        Error::new(ErrorKind::Refused, "cannot start a proxy").caused_by(cause)
                    })?;
                    proxies.push(proxy);
                }
                let hosts: Vec<_> = proxies.iter().map(|it| it.addr().to_string()).collect();
                let url = match hosts.is_empty() {
                    true => direct.clone(),
                    false => url::at_hosts(&direct, &hosts.join(",")),
                };
                Clients::Of { url, direct }
            }
        };
        let store = TestStore {
            inner: Arc::new(Inner {
                kind: case.kind,
                connect: case.connect,
                clients_are,
                proxies,
                operator: OnceCell::new(),
                clients: Mutex::default(),
                scratch,
                opened,
            }),
        };
        if is_given {
            // Past the proxies: an error names what the user named.
            store.operator().await?;
        }
        Ok(store)
    }

    /// Closes the test's clients, and removes what they left in a store that outlives the test.
    pub(crate) async fn end(&self) -> Result<()> {
        /// A client whose test has ended has nothing to wait for but its releases.
        const CLOSING: Duration = Duration::from_secs(5);
        /// A server may have millions of keys of others to search.
        const CLEARING: Duration = Duration::from_secs(30);
        // The server may have ended in the test's last step.
        let _ = self.heal().await;
        let clients =
            std::mem::take(&mut *self.inner.clients.lock().unwrap_or_else(PoisonError::into_inner));
        for client in clients {
            // What is not released ends with its server, or is removed below.
            let _ = timeout(CLOSING, client.close()).await;
        }
        let Some(operator) = self.inner.operator.get() else { return Ok(()) };
        let cleared = match self.inner.opened.server {
            Server::Given(_) => operator.clear(&self.inner.scratch, CLEARING).await,
            _ => Ok(()),
        };
        let _ = timeout(CLOSING, operator.close()).await;
        cleared
    }

    async fn operator(&self) -> Result<&Locks> {
        let connecting = || async {
            match &self.inner.clients_are {
                Clients::OfMemory { store, settings } => store.locks(settings.clone()),
                Clients::Of { direct, .. } => (self.inner.connect)(direct).await,
            }
        };
        self.inner.operator.get_or_try_init(connecting).await
    }

    fn proxies(&self, fault: &str) -> Result<&[Proxy]> {
        if !self.inner.proxies.is_empty() {
            return Ok(&self.inner.proxies);
        }
        let why = match self.inner.kind {
            StoreKind::Memory => "a memory store has no connection",
            StoreKind::File => "a file store has no connection",
            StoreKind::Postgres => {
                "no proxy can be put in front of a server with TLS; add sslmode=disable to the URL if \
                 its network may see the password"
            }
            StoreKind::Redis | StoreKind::ZooKeeper => {
                "no proxy can be put in front of servers with TLS, or of servers that refer their \
                 clients to each other; use a redis:// or zk:// URL without TLS"
            }
        };
        Err(self.cannot(fault, why))
    }

    fn needs_own_server(&self, fault: &str) -> Error {
        let why = match &self.inner.opened.server {
            Server::Given(variable) => format!(
                "others may use the server of {variable}; without that variable the test gets a \
                 server of its own"
            ),
            Server::None => "it has no server; use postgres, redis or zk".to_owned(),
            _ => "the other tests use the same server; add own_server to the attribute: \
                  #[fencelock_testkit::test(redis, own_server)]"
                .to_owned(),
        };
        self.cannot(fault, &why)
    }

    fn cannot(&self, fault: &str, why: &str) -> Error {
        let store = self.inner.kind.as_str();
        Error::new(ErrorKind::Unsupported, format!("{fault} on {store}: {why}"))
    }

    fn failed(&self, fault: &str, cause: &dyn std::error::Error) -> Error {
        let store = self.inner.kind.as_str();
        Error::new(ErrorKind::Unreachable, format!("{fault} on {store} failed: {}", chain(cause)))
    }
}

impl fmt::Debug for TestStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may contain a password.
        f.debug_struct("TestStore")
            .field("kind", &self.inner.kind)
            .field("prefix", &self.inner.scratch.prefix())
            .finish_non_exhaustive()
    }
}

/// The URL with the test's prefix, and its lease.
fn with_settings(case: Case, store: &str, scratch: &Scratch) -> String {
    let mut params = vec![("prefix", scratch.prefix())];
    if let Some(ttl) = case.ttl {
        params.push(("ttl", ttl));
        if case.kind == StoreKind::ZooKeeper {
            // Its locks last as long as the session.
            params.push(("session", ttl));
        }
    }
    fencelock_conformance::with_params(store, &params)
}
