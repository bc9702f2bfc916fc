//! The public conformance suite on the Postgres store: on one server, with a standby for which commits wait,
//! or behind pgbouncer.
//!
//! The behaviours share the servers, whose start costs more than most of them. Each has a schema of its own
//! there, and reaches it through a proxy of its own, which breaks connections. The tests of the store are
//! these harnesses and its scheme:
//!
//! ```no_run
//! # let connect: fencelock_conformance::Connect = |_| unimplemented!();
//! use fencelock_testkit::postgres_harness::{PostgresHarness, Servers};
//!
//! fencelock_conformance::main_of(&[
//!     PostgresHarness::new(Servers::Alone, connect),
//!     PostgresHarness::new(Servers::Pooled, connect),
//! ]);
//! ```

use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use fencelock_conformance::{Backdoor, Connect, Harness, Params, Store};
use fencelock_core::{Locks, Result};
use tokio::sync::OnceCell;

use crate::proxied::{self, cannot};
use crate::proxy::{NetworkFault, Proxy, framing};
use crate::servers::{PostgresOptions, PostgresTables, ServerError, TestPgBouncer, TestPostgres};

/// With this variable every primary has a standby. Commits wait for that of `postgres-sync` only.
const STANDBY: &str = "FENCELOCK_POSTGRES_STANDBY";

/// The servers of the behaviours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Servers {
    /// One server: `postgres`.
    Alone,
    /// A primary, and a standby for which its commits wait: `postgres-sync`.
    Synchronous,
    /// One server behind pgbouncer in transaction mode, one for each behaviour: `pgbouncer`.
    Pooled,
}

/// The suite on one kind of servers.
#[derive(Debug)]
pub struct PostgresHarness {
    kind: Servers,
    connect: Connect,
    started: OnceCell<Arc<Started>>,
    behaviours: AtomicUsize,
}

#[derive(Debug)]
struct Started {
    server: TestPostgres,
    _standby: Option<TestPostgres>,
}

impl PostgresHarness {
    /// On these servers; `connect` connects to the store that a URL names, as `fencelock::connect` does.
    #[must_use]
    #[expect(clippy::new_ret_no_self, reason = "the suite takes shared harnesses of all stores")]
    pub fn new(kind: Servers, connect: Connect) -> Arc<dyn Harness> {
        let (started, behaviours) = (OnceCell::new(), AtomicUsize::new(0));
        Arc::new(PostgresHarness { kind, connect, started, behaviours })
    }

    async fn start(&self) -> std::result::Result<Arc<Started>, ServerError> {
        let server = TestPostgres::start().await?;
        let mut standby = None;
        if self.kind == Servers::Synchronous || std::env::var_os(STANDBY).is_some() {
            standby = Some(PostgresOptions::new().start_as_standby(server.addr()).await?);
        }
        if self.kind == Servers::Synchronous {
            server.wait_for_standby_at_commits().await?;
        }
        Ok(Arc::new(Started { server, _standby: standby }))
    }
}

/// The part of one behaviour.
struct Part {
    // Before the servers that they lead to.
    proxy: Proxy,
    _pooler: Option<TestPgBouncer>,
    servers: Arc<Started>,
    schema: String,
    connect: Connect,
    prefix: String,
    backdoors: Vec<Backdoor>,
}

#[async_trait]
impl Harness for PostgresHarness {
    fn name(&self) -> &str {
        match self.kind {
            Servers::Alone => "postgres",
            Servers::Synchronous => "postgres-sync",
            Servers::Pooled => "pgbouncer",
        }
    }

    async fn open(&self, prefix: &str) -> Result<Box<dyn Store>> {
        let failed = |error: ServerError| cannot("start the servers", error);
        let servers = self.started.get_or_try_init(|| self.start()).await;
        let servers = servers.map_err(failed)?.clone();
        let pooler = match self.kind {
            Servers::Pooled => {
                Some(TestPgBouncer::start(servers.server.addr()).await.map_err(failed)?)
            }
            Servers::Alone | Servers::Synchronous => None,
        };
        let upstream = pooler.as_ref().map_or(servers.server.addr(), |pooler| pooler.addr());
        let proxy = Proxy::framed(upstream, framing::postgres).await;
        let proxy = proxy.map_err(|error| cannot("start the proxy", error))?;
        Ok(Box::new(Part {
            proxy,
            _pooler: pooler,
            servers,
            schema: format!("behaviour_{}", self.behaviours.fetch_add(1, Ordering::Relaxed)),
            connect: self.connect,
            prefix: prefix.to_owned(),
            // The data of the behaviour's schema.
            backdoors: [proxied::BACKDOORS, &[Backdoor::LoseData]].concat(),
        }))
    }

    async fn connect_peer(&self, address: &str, params: &Params) -> Result<Locks> {
        (self.connect)(&params.on_url(address)).await
    }
}

impl Part {
    fn tables(&self) -> PostgresTables<'_> {
        self.servers.server.tables(&self.schema)
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

#[async_trait]
impl Store for Part {
    async fn connect(&self, params: &Params) -> Result<Locks> {
        (self.connect)(&params.on_url(&self.peer_address())).await
    }

    fn backdoors(&self) -> &[Backdoor] {
        &self.backdoors
    }

    fn secrets(&self) -> Vec<String> {
        vec![self.servers.server.password().to_owned()]
    }

    fn connections(&self) -> Option<u64> {
        Some(self.proxy.stats().open)
    }

    async fn leftovers(&self) -> Result<Vec<String>> {
        // Under any prefix: nothing else is there.
        let failed = |error| cannot("read the tables", error);
        self.tables().leftovers().await.map_err(failed)
    }

    async fn is_locked(&self, name: &str) -> Result<bool> {
        let locked = self.tables().is_locked(&self.key(name)).await;
        locked.map_err(|error| cannot("read the tables", error))
    }

    async fn expire(&self, name: &str) -> Result<()> {
        let expired = self.tables().expire(&self.key(name)).await;
        expired.map_err(|error| cannot("change the tables", error))
    }

    async fn inject_fault(&self, fault: NetworkFault) -> Result<()> {
        proxied::inject_fault(slice::from_ref(&self.proxy), fault).await
    }

    async fn heal(&self) -> Result<()> {
        proxied::heal(slice::from_ref(&self.proxy)).await
    }

    async fn lose_data(&self) -> Result<()> {
        self.tables().lose().await.map_err(|error| cannot("delete the data", error))
    }

    fn peer_address(&self) -> String {
        let url = self.servers.server.url_through(&self.proxy.addr().to_string());
        format!("{url}?schema={}", self.schema)
    }
}
