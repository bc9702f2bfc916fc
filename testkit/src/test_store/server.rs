//! Where a test's store comes from: a URL in the environment, the run's shared server, or a server
//! of the test's own.

use std::fmt;
use std::ops::Deref;
use std::sync::OnceLock;

use fencelock_core::url::StoreUrl;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::case::{Case, MISSING, StoreKind, chain};
use crate::servers::postgres_url;
use crate::servers::process::Watchdog;
use crate::servers::shared::zookeeper_options;
use crate::servers::{
    Instance, RedisOptions, ServerError, SharedKind, SharedServer, TestPostgres, TestRedis,
    TestZooKeeper,
};

/// What the test's store runs on.
#[derive(Debug)]
pub(super) enum Server {
    /// Nothing but this process and its files.
    None,
    /// A server that others may use, too, named by this variable.
    Given(&'static str),
    /// A server of this run's tests.
    Shared,
    /// A server of this test.
    Postgres(Box<TestPostgres>),
    /// A server of this test.
    Redis(Box<TestRedis>),
    /// A server of this test.
    ZooKeeper(TestZooKeeper),
}

impl Server {
    /// The server of this test.
    pub(super) fn own(&self) -> Option<&Instance> {
        match self {
            Server::Postgres(postgres) => Some(postgres),
            Server::Redis(redis) => Some(redis),
            Server::ZooKeeper(zookeeper) => zookeeper.servers().first().map(Deref::deref),
            Server::None | Server::Given(_) | Server::Shared => None,
        }
    }
}

/// A store that can be connected to.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) server: Server,
    /// Without the test's prefix. None for memory.
    pub(super) url: Option<String>,
    /// Where a file store has its locks. Deleted when it is dropped.
    _directory: Option<TempDir>,
    /// After a kill of this process it deletes the directory of the test's own server or file store.
    _watchdog: Option<Watchdog>,
}

impl Opened {
    fn at(server: Server, url: String, directory: Option<TempDir>) -> Result<Opened, Unavailable> {
        let own = server.own().map(Instance::directory);
        let own = own.or_else(|| directory.as_ref().map(TempDir::path));
        let watchdog = own.map(Watchdog::that_deletes).transpose();
        let watchdog = watchdog
            .map_err(|error| Unavailable::new(format!("cannot watch over a directory: {error}")))?;
        Ok(Opened { server, url: Some(url), _directory: directory, _watchdog: watchdog })
    }
}

/// Why a test has no store.
#[derive(Clone, Debug)]
pub(crate) struct Unavailable {
    what: String,
    /// What to do about a server that is not installed.
    advice: Option<String>,
}

impl Unavailable {
    pub(super) fn new(what: impl Into<String>) -> Unavailable {
        Unavailable { what: what.into(), advice: None }
    }

    /// Whether its server is not installed.
    pub(crate) fn is_missing(&self) -> bool {
        self.advice.is_some()
    }

    /// What is the matter, without the advice.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    fn of(kind: StoreKind, error: &ServerError) -> Unavailable {
        let advice = matches!(error, ServerError::NotInstalled { .. }).then(|| {
            let (brew, variable) = match kind {
                StoreKind::ZooKeeper => (
                    "`brew install zookeeper` and FENCELOCK_ZOOKEEPER_JARS=DIR, the directory \
                     of its jars",
                    "FENCELOCK_TEST_ZK_URL=zk://HOST:PORT/ROOT",
                ),
                StoreKind::Postgres => (
                    "`brew install postgresql`",
                    "FENCELOCK_TEST_POSTGRES_URL=postgres://USER:PASSWORD@HOST/DATABASE",
                ),
                _ => ("`brew install redis`", "FENCELOCK_TEST_REDIS_URL=redis://HOST:PORT"),
            };
            format!(
                "with Homebrew: {brew}. Or set {variable} to test on a server that is running, or \
                 {MISSING}=ignore to leave out the tests of stores that are not installed"
            )
        });
        Unavailable { what: chain(error), advice }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.advice {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

/// Starts what the test needs, or joins the users of what runs already.
pub(super) fn open(case: Case, runtime: &Runtime) -> Result<Opened, Unavailable> {
    let Some(variable) = case.kind.variable() else {
        return Ok(Opened { server: Server::None, url: None, _directory: None, _watchdog: None });
    };
    let given = given(case.kind, variable)?;
    if case.kind == StoreKind::File {
        return in_directory(variable, given.as_deref());
    }
    if let Some(url) = given {
        return Opened::at(Server::Given(variable), url, None);
    }
    let started = match (case.kind, case.own_server) {
        (StoreKind::Postgres, true) => runtime.block_on(own_postgres()),
        (StoreKind::Postgres, false) => shared(SharedKind::Postgres, runtime)
            .map(|port| (Server::Shared, postgres_url(&format!("127.0.0.1:{port}")))),
        (StoreKind::Redis, true) => runtime.block_on(own_redis()),
        (StoreKind::Redis, false) => shared(SharedKind::Redis, runtime)
            .map(|port| (Server::Shared, format!("redis://127.0.0.1:{port}/0"))),
        (_, true) => runtime.block_on(own_zookeeper()),
        (_, false) => shared(SharedKind::ZooKeeper, runtime)
            .map(|port| (Server::Shared, format!("zk://127.0.0.1:{port}/"))),
    };
    let (server, url) = started?;
    Opened::at(server, url, None)
}

/// The URL of the environment, if there is one.
fn given(kind: StoreKind, variable: &str) -> Result<Option<String>, Unavailable> {
    let url = match std::env::var(variable) {
        Ok(url) if url.is_empty() => return Ok(None),
        Ok(url) => url,
        Err(std::env::VarError::NotPresent) => return Ok(None),
        // The cause would show the text, which may contain a password.
        Err(_) => return Err(Unavailable::new(format!("{variable} is not UTF-8"))),
    };
    let parsed = StoreUrl::parse(&url);
    let parsed = parsed.map_err(|error| Unavailable::new(format!("{variable}: {error}")))?;
    let fits = match kind {
        StoreKind::Memory => false,
        StoreKind::File => parsed.scheme() == "file",
        StoreKind::Postgres => ["postgres", "postgresql"].contains(&parsed.scheme()),
        StoreKind::Redis => {
            ["redis", "rediss", "redlock"].iter().any(|scheme| parsed.scheme().starts_with(scheme))
        }
        StoreKind::ZooKeeper => ["zk", "zookeeper"].contains(&parsed.scheme()),
    };
    if !fits {
        return Err(Unavailable::new(format!(
            "{variable}={parsed}: expected a URL of a {} store",
            kind.as_str()
        )));
    }
    Ok(Some(url))
}

/// A directory of the test's own, in that of the URL or among the temporary files.
fn in_directory(variable: &str, given: Option<&str>) -> Result<Opened, Unavailable> {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("fencelock-test-");
    let parent = match given {
        Some(url) => {
            let parsed =
                StoreUrl::parse(url).map_err(|error| Unavailable::new(format!("{error:#}")))?;
            Some(parsed.path().to_owned()).filter(|path| path.starts_with('/') && path != "/")
        }
        None => None,
    };
    let made = match &parent {
        Some(parent) => builder.tempdir_in(parent),
        None => builder.tempdir(),
    };
    let directory = made.map_err(|error| {
        let place = match &parent {
            Some(parent) => format!("{parent}, which {variable} names"),
            None => "the directory of temporary files".to_owned(),
        };
        Unavailable::new(format!("cannot make a directory in {place}: {error}"))
    })?;
    let Some(path) = directory.path().to_str() else {
        return Err(Unavailable::new("the directory of temporary files has a name without UTF-8"));
    };
    let query = given.and_then(|url| url.split_once('?')).map(|(_, query)| format!("?{query}"));
    let url = format!("file://{}{}", path.replace('%', "%25"), query.unwrap_or_default());
    Opened::at(Server::None, url, Some(directory))
}

/// The port of the run's server. This process uses it until its end.
fn shared(kind: SharedKind, runtime: &Runtime) -> Result<u16, Unavailable> {
    static JOINED: [OnceLock<Result<SharedServer, Unavailable>>; 3] =
        [const { OnceLock::new() }; 3];
    let store = match kind {
        SharedKind::Postgres => StoreKind::Postgres,
        SharedKind::Redis => StoreKind::Redis,
        SharedKind::ZooKeeper => StoreKind::ZooKeeper,
    };
    let joined = JOINED[kind as usize].get_or_init(|| {
        let joined = runtime.block_on(SharedServer::join(kind));
        joined.map_err(|error| Unavailable::of(store, &error))
    });
    joined.as_ref().map(SharedServer::port).map_err(Clone::clone)
}

async fn own_postgres() -> Result<(Server, String), Unavailable> {
    let started = TestPostgres::start().await;
    let postgres = started.map_err(|error| Unavailable::of(StoreKind::Postgres, &error))?;
    let url = postgres.url();
    Ok((Server::Postgres(Box::new(postgres)), url))
}

async fn own_redis() -> Result<(Server, String), Unavailable> {
    // What a restart loses then, the service loses in production too.
    let started = RedisOptions::new().append_only().start().await;
    let redis = started.map_err(|error| Unavailable::of(StoreKind::Redis, &error))?;
    let url = format!("redis://127.0.0.1:{}/0", redis.port());
    Ok((Server::Redis(Box::new(redis)), url))
}

async fn own_zookeeper() -> Result<(Server, String), Unavailable> {
    let started = zookeeper_options().standalone().await;
    let zookeeper = started.map_err(|error| Unavailable::of(StoreKind::ZooKeeper, &error))?;
    let url = format!("zk://{}/", zookeeper.connect_string());
    Ok((Server::ZooKeeper(zookeeper), url))
}
