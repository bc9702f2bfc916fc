//! How a server is started; one builder for a single server and for a primary with its standby.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::template;
use crate::servers::certificates::{self, Clients, Tls};
use crate::servers::process::Invocation;
use crate::servers::unprivileged;
use crate::servers::version::postgres_programs;

/// How to start a [`TestPostgres`](super::TestPostgres).
#[derive(Debug, Clone, Default)]
pub struct PostgresOptions {
    pub(super) programs: Option<PathBuf>,
    server: Option<OsString>,
    settings: String,
    is_durable: bool,
    pub(super) tls: Option<Tls>,
}

impl PostgresOptions {
    /// Without waiting for the disk; the newest PostgreSQL that is installed, or the one that
    /// `FENCELOCK_POSTGRES` names.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Another directory of programs.
    #[must_use]
    pub fn programs(mut self, directory: impl Into<PathBuf>) -> Self {
        self.programs = Some(directory.into());
        self
    }

    /// Starts this instead of `postgres`, with its arguments; it runs `postgres` with another clock, for
    /// example.
    #[must_use]
    pub fn server(mut self, program: impl Into<OsString>) -> Self {
        self.server = Some(program.into());
        self
    }

    /// One more setting: `.setting("max_connections", "10")`.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        // Writing to a string cannot fail.
        let _ = writeln!(self.settings, "{name} = '{}'", value.replace('\'', "''"));
        self
    }

    /// Waits for the disk, as servers in production do. A crash of the server's processes loses nothing
    /// without it, but commits take as long as they really do.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.is_durable = true;
        self
    }

    /// Speaks TLS only, with a certificate for 127.0.0.1 and localhost.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = Some(Tls::with(Clients::Any));
        self
    }

    /// Speaks TLS, and only with clients that have a certificate of the same authority:
    /// [`client_certificate_file`](crate::servers::Instance::client_certificate_file).
    #[must_use]
    pub fn tls_for_certified_clients(mut self) -> Self {
        self.tls = Some(Tls::with(Clients::Certified));
        self
    }

    pub(in crate::servers) fn programs_or_missing(&self) -> Result<PathBuf, String> {
        match &self.programs {
            Some(programs) if programs.join("postgres").is_file() => Ok(programs.clone()),
            Some(programs) => Err(programs.join("postgres").display().to_string()),
            None => postgres_programs(),
        }
    }

    /// Makes the data of a server in this home, without a copy for others. Blocks.
    pub(in crate::servers) fn initialise(&self, home: &Path) -> io::Result<()> {
        let programs = self.programs_or_missing().map_err(io::Error::other)?;
        template::initialise(&data_in(home), &programs)
    }

    /// Writes the configuration of a server that was initialised; `standby` are the settings of one.
    pub(in crate::servers) fn configure(
        &self,
        home: &Path,
        port: u16,
        standby: &str,
    ) -> io::Result<()> {
        let on_off = if self.is_durable { "on" } else { "off" };
        let of_tls = self.tls.as_ref().map(|_| settings_of_tls(home)).unwrap_or_default();
        let config = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{}'\n\
             fsync = {on_off}\nmax_connections = 300\nshared_buffers = '32MB'\nhuge_pages = off\n\
             hot_standby = on\nwal_keep_size = '64MB'\nwal_sender_timeout = '10s'\n\
             wal_receiver_timeout = '10s'\nwal_retrieve_retry_interval = '100ms'\n{standby}{of_tls}{}",
            home.display().to_string().replace('\'', "''"),
            self.settings,
        );
        // The administrator, and nobody else, comes through the socket in the server's own directory.
        let (kind, certified) = match &self.tls {
            None => ("host", ""),
            Some(Tls { clients: Clients::Any, .. }) => ("hostssl", ""),
            Some(Tls { clients: Clients::Certified, .. }) => ("hostssl", " clientcert=verify-ca"),
        };
        let access = format!(
            "local all all trust\nlocal replication all trust\n\
             {kind} all all 127.0.0.1/32 scram-sha-256{certified}\n\
             host replication all 127.0.0.1/32 scram-sha-256\n"
        );
        let data = data_in(home);
        unprivileged::write(&data.join("postgresql.conf"), &config)?;
        unprivileged::write(&data.join("pg_hba.conf"), &access)
    }

    /// The command that starts the server in this home, or the program that is missing.
    pub(in crate::servers) fn invocation(&self, home: &Path) -> Result<Invocation, String> {
        let programs = self.programs_or_missing()?;
        let server = self.server.clone().unwrap_or_else(|| programs.join("postgres").into());
        let mut invocation =
            unprivileged::invocation(server, vec!["-D".into(), data_in(home).into()]);
        // SIGTERM would wait for its clients. SIGKILL would leave its other processes, which hold its
        // shared memory.
        (invocation.end_in_order, invocation.end_at_once) = (Signal::INT, Signal::QUIT);
        Ok(invocation)
    }
}

pub(super) fn data_in(home: &Path) -> PathBuf {
    home.join("data")
}

/// Makes the certificates. The server reads its own ones in its home: it refuses a key that others can read.
pub(super) fn certify(tls: &Tls, directory: &Path, home: &Path) -> io::Result<()> {
    tls.certify(directory)?;
    for file in [certificates::CA, certificates::SERVER, certificates::SERVER_KEY] {
        unprivileged::write(&home.join(file), &std::fs::read_to_string(directory.join(file))?)?;
    }
    Ok(())
}

fn settings_of_tls(home: &Path) -> String {
    let mut settings = "ssl = on\n".to_owned();
    let files = [
        ("ssl_ca_file", certificates::CA),
        ("ssl_cert_file", certificates::SERVER),
        ("ssl_key_file", certificates::SERVER_KEY),
    ];
    for (setting, file) in files {
        let path = home.join(file).display().to_string().replace('\'', "''");
        // Writing to a string cannot fail.
        let _ = writeln!(settings, "{setting} = '{path}'");
    }
    settings
}

/// Runs what blocks where it holds up no other task.
pub(super) async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(act).await.map_err(io::Error::other)?
}
