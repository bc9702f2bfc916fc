//! Real servers on demand, for tests that need one.
//!
//! Each server runs on a free loopback port in a temporary directory of its own, and is ended by
//! its process id, also when the test panics or is killed; only the directory is left behind by a
//! killed test. Faults that hit all clients of a server (`FLUSHALL`, a kill, a restart) are methods
//! of these types only, which are made by starting a server: a test cannot aim them at one that
//! others depend on.

use std::io;
use std::time::Duration;

mod certificates;
mod eventually;
mod instance;
mod pgbouncer;
mod postgres;
pub(crate) mod process;
mod redis;
mod scripted_server;
pub(crate) mod shared;
mod unprivileged;
mod version;
mod zookeeper;

#[cfg(feature = "stores")]
pub use fencelock_conformance::ServerClock;
pub use instance::Instance;
pub use pgbouncer::{PgBouncerOptions, PoolMode, TestPgBouncer};
pub use postgres::TestPostgres;
pub use postgres::options::PostgresOptions;
#[cfg(feature = "stores")]
pub use postgres::tables::PostgresTables;
pub(crate) use postgres::url_at as postgres_url;
pub use redis::TestRedis;
pub use redis::cluster::TestCluster;
pub use redis::cluster::migration::SlotMigration;
pub use redis::options::RedisOptions;
pub use redis::sentinel::TestSentinel;
pub use scripted_server::ScriptedServer;
pub use shared::{SharedKind, SharedServer};
#[cfg(feature = "stores")]
pub use version::postgres_program;
#[cfg(feature = "stores")]
pub(crate) use version::redis_program;
pub use zookeeper::{TestZooKeeper, ZooKeeperOptions, ZooKeeperServer};

/// Why a server is not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// What it takes to run the server is not installed.
    #[error(
        "cannot start {server}: {missing} not found; on Debian and Ubuntu: apt-get install {package}"
    )]
    NotInstalled {
        /// The server's name.
        server: &'static str,
        /// The program or file that is missing.
        missing: String,
        /// The Debian package that brings it.
        package: &'static str,
    },
    /// The server ended, or was not ready in time.
    #[error("{server} did not start: {reason}; the end of its log:\n{log}")]
    NotReady {
        /// The server's name.
        server: &'static str,
        /// What was seen of it.
        reason: String,
        /// The last lines of its log.
        log: String,
    },
    /// Another process listens on the server's port.
    #[error("{server} did not start: its port is in use")]
    PortTaken {
        /// The server's name.
        server: &'static str,
    },
    /// Several servers did not agree in time.
    #[error("{server}: no sign of {awaited} within {within:?}; the last that was seen: {seen}")]
    Unsettled {
        /// The servers' name.
        server: &'static str,
        /// What was waited for.
        awaited: &'static str,
        /// How long.
        within: Duration,
        /// What was the case instead.
        seen: io::Error,
    },
    /// The operating system, or a server, refused something.
    #[error("{doing} {server} failed")]
    Io {
        /// The server's name.
        server: &'static str,
        /// What was being done.
        doing: &'static str,
        /// Its answer.
        source: io::Error,
    },
}

/// Starts a server; again, up to so many times, when another process took the port in the meantime.
async fn started<S, F>(start: impl Fn() -> F) -> Result<S, ServerError>
where
    F: Future<Output = Result<S, ServerError>>,
{
    const STARTS: u32 = 5;
    let mut attempts = 1..STARTS;
    loop {
        match start().await {
            Err(ServerError::PortTaken { .. }) if attempts.next().is_some() => {}
            done => return done,
        }
    }
}

/// What became of the server, for an error while doing something to it.
fn failed(server: &'static str, doing: &'static str) -> impl Fn(io::Error) -> ServerError + Copy {
    move |source| ServerError::Io { server, doing, source }
}
