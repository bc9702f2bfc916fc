//! pgbouncer in front of a PostgreSQL server: clients share a few of its sessions.
//!
//! In transaction mode, two statements of one client may run in different sessions, and whatever belongs to
//! a session is lost: notifications, prepared statements, settings.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::instance::{ANSWER, Instance};
use super::postgres::wire::{self, socket_in};
use super::postgres::{ADMIN, DATABASE, PASSWORD, USER, url_of};
use super::unprivileged::{self, make_home};
use super::version::pgbouncer_program;
use super::{ServerError, failed, started};

const SERVER: &str = "pgbouncer";
const READY: Duration = Duration::from_secs(30);

/// For how long a client has a session of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolMode {
    /// For a transaction.
    Transaction,
    /// For as long as it is connected.
    Session,
}

/// How to start a [`TestPgBouncer`].
#[derive(Debug, Clone)]
pub struct PgBouncerOptions {
    program: OsString,
    mode: PoolMode,
    pool_size: usize,
    database: String,
    config: String,
}

impl PgBouncerOptions {
    /// Transaction mode, with up to four sessions for each database and role.
    #[must_use]
    pub fn new() -> Self {
        Self {
            program: pgbouncer_program(),
            mode: PoolMode::Transaction,
            pool_size: 4,
            database: DATABASE.to_owned(),
            config: String::new(),
        }
    }

    /// Another program.
    #[must_use]
    pub fn program(mut self, program: impl Into<OsString>) -> Self {
        self.program = program.into();
        self
    }

    /// For how long a client has a session of the server.
    #[must_use]
    pub fn mode(mut self, mode: PoolMode) -> Self {
        self.mode = mode;
        self
    }

    /// How many sessions of the server there are, for each database and role.
    #[must_use]
    pub fn pool_size(mut self, sessions: usize) -> Self {
        self.pool_size = sessions;
        self
    }

    /// The database of its URL: of those of the server, any can be named.
    #[must_use]
    pub fn database(mut self, name: &str) -> Self {
        name.clone_into(&mut self.database);
        self
    }

    /// One more line for the section `[pgbouncer]` of its configuration.
    #[must_use]
    pub fn config(mut self, line: &str) -> Self {
        self.config.push_str(line);
        self.config.push('\n');
        self
    }

    /// Starts it in front of a [`TestPostgres`](super::TestPostgres) at that address, which may be a
    /// proxy's, and waits until it answers.
    ///
    /// # Errors
    /// When it is not installed, or does not get ready.
    pub async fn start(self, server: SocketAddr) -> Result<TestPgBouncer, ServerError> {
        started(|| self.start_once(server)).await
    }

    async fn start_once(&self, server: SocketAddr) -> Result<TestPgBouncer, ServerError> {
        let instance = Instance::new(SERVER, "pgbouncer")?;
        let home = make_home(instance.directory()).map_err(failed(SERVER, "preparing"))?;
        let (program, database) = (self.program.clone(), self.database.clone());
        let pooler = TestPgBouncer { instance, home, program, database };
        self.configure(&pooler, server).map_err(failed(SERVER, "configuring"))?;
        pooler.launch().await?;
        Ok(pooler)
    }

    fn configure(&self, pooler: &TestPgBouncer, server: SocketAddr) -> io::Result<()> {
        let mode = match self.mode {
            PoolMode::Transaction => "transaction",
            PoolMode::Session => "session",
        };
        let file = |name: &str| pooler.home.join(name).display().to_string();
        let config = format!(
            "[databases]\n* = host={} port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {}\nunix_socket_dir = {}\nauth_type = hba\nauth_hba_file = {}\n\
             auth_file = {}\nadmin_users = {ADMIN}\npool_mode = {mode}\ndefault_pool_size = {}\n\
             max_client_conn = 1000\nserver_login_retry = 0.1\n{}",
            server.ip(),
            server.port(),
            pooler.port(),
            pooler.home.display(),
            file("hba.conf"),
            file("users.txt"),
            self.pool_size,
            self.config,
        );
        let access = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
        let users = format!("\"{USER}\" \"{PASSWORD}\"\n\"{ADMIN}\" \"\"\n");
        unprivileged::write(&pooler.home.join("pgbouncer.ini"), &config)?;
        unprivileged::write(&pooler.home.join("hba.conf"), access)?;
        unprivileged::write(&pooler.home.join("users.txt"), &users)
    }
}

impl Default for PgBouncerOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// A running pgbouncer. Dropping it ends it.
#[derive(Debug)]
pub struct TestPgBouncer {
    instance: Instance,
    home: PathBuf,
    program: OsString,
    database: String,
}

/// Its process and directory.
impl Deref for TestPgBouncer {
    type Target = Instance;

    fn deref(&self) -> &Instance {
        &self.instance
    }
}

impl TestPgBouncer {
    /// Starts it with the defaults of [`PgBouncerOptions`].
    ///
    /// # Errors
    /// When it is not installed, or does not get ready.
    pub async fn start(server: SocketAddr) -> Result<Self, ServerError> {
        PgBouncerOptions::new().start(server).await
    }

    /// The URL for clients, with the password.
    #[must_use]
    pub fn url(&self) -> String {
        url_of(&self.addr().to_string(), &self.database)
    }

    /// A command of its console, such as `PAUSE`, `RESUME` or `SHOW POOLS`; rows as `psql -At` prints them.
    ///
    /// # Errors
    /// When it answers with an error, or not within 5 s.
    pub async fn console(&self, command: &str) -> io::Result<String> {
        let socket = socket_in(&self.home, self.port());
        wire::ask(&socket, ADMIN, "pgbouncer", command, ANSWER).await
    }

    /// Ends it, with its clients' connections, and starts it again on the same port.
    ///
    /// # Errors
    /// When it does not get ready.
    pub async fn restart(&self) -> Result<(), ServerError> {
        self.instance.stop().await?;
        self.launch().await
    }

    async fn launch(&self) -> Result<(), ServerError> {
        if !Path::new(&self.program).is_file() {
            return Err(self.instance.missing(self.program.to_string_lossy()));
        }
        let config = self.home.join("pgbouncer.ini");
        let invocation = unprivileged::invocation(self.program.clone(), vec![config.into()]);
        self.instance.launch(&invocation)?;
        // Its socket is in its own directory: whatever answers is this process.
        self.instance
            .ready(READY, || async { self.console("SHOW VERSION").await.map(|_| true) })
            .await
    }
}
