//! PostgreSQL servers of the test's own: one, or a primary with its standby.
//!
//! They run from the programs of Debian's package, or from those in the directory that
//! `FENCELOCK_POSTGRES` names. Clients log in with a password; the administrator, who reads and breaks what
//! the library has written, comes through a Unix socket that only the tests can reach.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::OnceCell;

use self::options::{PostgresOptions, blocking, certify, data_in};
use self::template::REPLICATOR;
use self::wire::socket_in;
use super::eventually::{PATIENCE, eventually, not_yet};
use super::instance::{ANSWER, Instance};
use super::process::Watchdog;
use super::unprivileged::{self, make_home};
use super::{ServerError, failed, started};

pub(super) mod options;
mod standby;
#[cfg(feature = "stores")]
pub(super) mod tables;
mod template;
pub(super) mod wire;

pub(super) use self::template::{ADMIN, USER};

const SERVER: &str = "PostgreSQL";
const READY: Duration = Duration::from_secs(60);
/// Of the roles that can log in.
pub(super) const PASSWORD: &str = "correct-horse-battery";
/// The database of clients, unless they have one of their own.
pub(super) const DATABASE: &str = "postgres";

/// A running PostgreSQL server, and one of its databases. Dropping the last handle of a server ends it and
/// deletes its data.
#[derive(Debug)]
pub struct TestPostgres {
    running: Arc<Running>,
    /// The one of this handle's clients and statements.
    database: String,
}

#[derive(Debug)]
struct Running {
    instance: Instance,
    /// What belongs to the server's user: its data, and its Unix socket.
    home: PathBuf,
    options: PostgresOptions,
}

/// The server's process and directory. To [kill](Instance::kill) it is to crash it: all its processes end at
/// once, without a word to the disk, and its next start recovers.
impl Deref for TestPostgres {
    type Target = Instance;

    fn deref(&self) -> &Instance {
        &self.running.instance
    }
}

/// By their options. They outlive their tests, so a watchdog deletes their data after the end of the process.
type SharedServers = HashMap<String, Arc<OnceCell<(TestPostgres, Watchdog)>>>;
static SHARED: Mutex<Option<SharedServers>> = Mutex::new(None);

impl PostgresOptions {
    /// A database of its own on a server with these options, which the tests of this process share, and which
    /// ends with the process. A test that changes the server, its roles, or other databases starts its own.
    ///
    /// # Errors
    /// When it is not installed, or does not get ready.
    pub async fn shared(self) -> Result<TestPostgres, ServerError> {
        let server = {
            let mut servers = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
            servers.get_or_insert_default().entry(format!("{self:?}")).or_default().clone()
        };
        let started = server.get_or_try_init(|| async {
            let server = self.start().await?;
            let deleted = Watchdog::that_deletes(server.directory());
            let watchdog = deleted.map_err(failed(SERVER, "watching"))?;
            Ok((server, watchdog))
        });
        started.await?.0.database("").await
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    /// When it is not installed, or does not get ready.
    pub async fn start(self) -> Result<TestPostgres, ServerError> {
        started(|| self.clone().start_once(None)).await
    }

    /// Starts a standby of the server at that address, which may be a proxy's, and waits until it replicates.
    ///
    /// # Errors
    /// When it is not installed, or does not get ready.
    pub async fn start_as_standby(self, primary: SocketAddr) -> Result<TestPostgres, ServerError> {
        started(|| self.clone().start_once(Some(primary))).await
    }

    async fn start_once(self, primary: Option<SocketAddr>) -> Result<TestPostgres, ServerError> {
        let instance = Instance::new(SERVER, "postgresql")?;
        let programs = self.programs_or_missing().map_err(|missing| instance.missing(missing))?;
        let home = make_home(instance.directory()).map_err(failed(SERVER, "preparing"))?;
        if let Some(tls) = &self.tls {
            let certified = certify(tls, instance.directory(), &home);
            certified.map_err(failed(SERVER, "making certificates for"))?;
        }
        if primary.is_none() {
            let data = data_in(&home);
            let initialised = blocking(move || template::copy_to(&data, &programs)).await;
            initialised.map_err(failed(SERVER, "making the data of"))?;
        }
        let running = Arc::new(Running { instance, home, options: self });
        let postgres = TestPostgres { running, database: DATABASE.to_owned() };
        match primary {
            Some(primary) => postgres.become_standby_of(primary).await?,
            None => {
                postgres.configure(None).map_err(failed(SERVER, "configuring"))?;
                postgres.launch().await?;
            }
        }
        Ok(postgres)
    }
}

impl TestPostgres {
    /// Starts a server with the defaults of [`PostgresOptions`].
    ///
    /// # Errors
    /// When it is not installed, or does not get ready.
    pub async fn start() -> Result<Self, ServerError> {
        PostgresOptions::new().start().await
    }

    /// A database of its own on a server that the tests of this process share: see
    /// [`PostgresOptions::shared`].
    ///
    /// # Errors
    /// When the server is not installed, or does not get ready.
    pub async fn shared() -> Result<Self, ServerError> {
        PostgresOptions::new().shared().await
    }

    /// Another database of this server, which the role of clients owns; `options` are those of `CREATE
    /// DATABASE`, such as `ENCODING 'LATIN1' TEMPLATE template0`.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn database(&self, options: &str) -> Result<Self, ServerError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let database = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let create = format!("CREATE DATABASE {database} OWNER {USER} {options}");
        self.sql_within(&create, PATIENCE).await.map_err(failed(SERVER, "making a database of"))?;
        Ok(Self { running: self.running.clone(), database })
    }

    /// The URL for clients, with the password. Its role owns the database.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_through(&self.addr().to_string())
    }

    /// The URL for clients that reach the server, or several, through these `HOST:PORT`, separated by
    /// commas.
    #[must_use]
    pub fn url_through(&self, hosts: &str) -> String {
        url_of(hosts, &self.database)
    }

    /// The name of its database, which needs no quotes.
    #[must_use]
    pub fn database_name(&self) -> &str {
        &self.database
    }

    /// The password of the roles that can log in.
    #[must_use]
    pub fn password(&self) -> &'static str {
        PASSWORD
    }

    /// Runs statements as the superuser and returns their rows as `psql -At` prints them: columns separated
    /// by `|`, one row per line. Several statements are one transaction.
    ///
    /// # Errors
    /// When the server answers with an error (`SQLSTATE: message`), or not within 5 s.
    pub async fn sql(&self, statements: &str) -> io::Result<String> {
        self.sql_within(statements, ANSWER).await
    }

    /// The same, for statements that take their time.
    ///
    /// # Errors
    /// When the server answers with an error (`SQLSTATE: message`), or not in time.
    pub async fn sql_within(&self, statements: &str, within: Duration) -> io::Result<String> {
        wire::ask(&self.socket(), ADMIN, &self.database, statements, within).await
    }

    /// Makes another role that can log in, with no more rights than `PUBLIC` has.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn create_role(&self, name: &str, password: &str) -> io::Result<()> {
        let (name, password) = (name.replace('"', "\"\""), password.replace('\'', "''"));
        self.sql(&format!("CREATE ROLE \"{name}\" LOGIN PASSWORD '{password}'")).await.map(drop)
    }

    /// Starts the server again on the same port and data and waits until it answers; ends it in order before
    /// if it still runs, which ends its clients' sessions.
    ///
    /// # Errors
    /// When it does not get ready.
    pub async fn restart(&self) -> Result<(), ServerError> {
        self.running.instance.stop().await?;
        self.launch().await
    }

    /// Ends the server in order, which ends its clients' sessions. A standby that is connected has all its
    /// writes.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub async fn stop(&self) -> Result<(), ServerError> {
        self.running.instance.stop().await
    }

    /// Kills one process of the server by SIGKILL. The server then ends all sessions and recovers, without
    /// being restarted. It serves again on return.
    ///
    /// # Errors
    /// When it does not get ready.
    pub async fn kill_backend(&self) -> Result<(), ServerError> {
        let refused = failed(SERVER, "killing a process of");
        // It lives as long as the server, so that its id is not another process's by now.
        let writer = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'";
        let before = self.sql(writer).await.map_err(refused)?;
        let id = before.parse().ok().and_then(Pid::from_raw);
        let id = id.ok_or_else(|| refused(io::Error::other("it has no WAL writer")))?;
        kill_process(id, Signal::KILL).map_err(|e| refused(e.into()))?;
        eventually(SERVER, "its recovery", PATIENCE, || async {
            match self.sql(writer).await? {
                now if now == before || now.is_empty() => Err(not_yet("it has not noticed")),
                _ => Ok(()),
            }
        })
        .await
    }

    /// Ends all sessions of clients in its database.
    ///
    /// # Errors
    /// When the server refuses.
    pub async fn end_sessions(&self) -> io::Result<()> {
        let end = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE backend_type = 'client backend' AND usename <> '{ADMIN}'
               AND datname = current_database()"
        );
        self.sql(&end).await.map(drop)
    }

    fn socket(&self) -> PathBuf {
        socket_in(&self.running.home, self.port())
    }

    fn configure(&self, primary: Option<SocketAddr>) -> io::Result<()> {
        let mut standby = String::new();
        if let Some(primary) = primary {
            // Writing to a string cannot fail.
            let _ = writeln!(
                standby,
                "primary_conninfo = 'host={} port={} user={REPLICATOR} password={PASSWORD} \
                 application_name=standby sslmode=disable'",
                primary.ip(),
                primary.port()
            );
        }
        self.running.options.configure(&self.running.home, self.port(), &standby)
    }

    async fn launch(&self) -> Result<(), ServerError> {
        let invocation = self.running.options.invocation(&self.running.home);
        let invocation = invocation.map_err(|missing| self.running.instance.missing(missing))?;
        self.running.instance.launch(&invocation)?;
        self.running.instance.ready(READY, || is_served_from(self.directory(), self.port())).await
    }
}

/// Whether the server on this port was started in this directory: its socket is there.
pub(super) async fn is_served_from(directory: &Path, port: u16) -> io::Result<bool> {
    let socket = socket_in(&unprivileged::home(directory), port);
    Ok(wire::ask(&socket, ADMIN, DATABASE, "SELECT 1", ANSWER).await? == "1")
}

/// The URL for clients that reach a [`TestPostgres`] through these `HOST:PORT`.
pub(crate) fn url_at(hosts: &str) -> String {
    url_of(hosts, DATABASE)
}

pub(super) fn url_of(hosts: &str, database: &str) -> String {
    format!("postgres://{USER}:{PASSWORD}@{hosts}/{database}")
}
