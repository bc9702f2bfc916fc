//! How a `redis-server` is started; one builder for a single server and for topologies of several.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::servers::certificates::{self, Clients, Tls};
use crate::servers::process::Invocation;
use crate::servers::version::{redis_major, redis_program};
use crate::servers::{ServerError, failed};

pub(super) const SERVER: &str = "redis-server";

/// How to start a [`TestRedis`](super::TestRedis), or a topology of several.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    pub(super) program: OsString,
    pub(super) args: Vec<OsString>,
    pub(super) config: String,
    pub(super) password: Option<String>,
    pub(super) sentinel_password: Option<String>,
    pub(super) unix_socket: bool,
    pub(super) in_cluster: bool,
    pub(super) tls: Option<Tls>,
    /// A command for each time the server is ready, for what no configuration expresses.
    pub(super) after_start: &'static [&'static str],
}

impl RedisOptions {
    /// No password, no persistence, TCP only, `DEBUG` allowed; the `redis-server` on the search path,
    /// or the program that `FENCELOCK_REDIS_SERVER` names.
    #[must_use]
    pub fn new() -> Self {
        Self {
            program: redis_program(),
            args: Vec::new(),
            config: String::new(),
            password: None,
            sentinel_password: None,
            unix_socket: false,
            in_cluster: false,
            tls: None,
            after_start: &[],
        }
    }

    /// Another program.
    #[must_use]
    pub fn program(mut self, program: impl Into<OsString>) -> Self {
        self.program = program.into();
        self
    }

    /// One more argument for the command line, after ours: `.arg("--maxmemory").arg("4mb")`.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// One more line for `redis.conf`, which the command line overrides. The file is written once:
    /// what the server itself changes there outlives a restart.
    #[must_use]
    pub fn config(mut self, line: &str) -> Self {
        self.config.push_str(line);
        self.config.push('\n');
        self
    }

    /// One more user, as an ACL file has it after the word `user`:
    /// `.acl_user("limited on >secret ~lock:* &lock:* +@all")`.
    #[must_use]
    pub fn acl_user(self, user: &str) -> Self {
        self.config(&format!("user {user}"))
    }

    /// Demands this password of every client.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Demands this password of the sentinels' clients; [`RedisOptions::password`] is for the
    /// servers that they watch.
    #[must_use]
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.sentinel_password = Some(password.into());
        self
    }

    /// Keeps an append-only file, so that data outlives a restart and a kill.
    #[must_use]
    pub fn append_only(self) -> Self {
        self.config("appendonly yes")
    }

    /// Listens on a Unix socket too: [`TestRedis::unix_socket`](super::TestRedis::unix_socket).
    #[must_use]
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Speaks TLS on the port and nothing else, with a certificate for `127.0.0.1` and `localhost`
    /// of an authority made for this server or topology: [`ca_file`](crate::servers::Instance::ca_file).
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

    /// Writes the configuration file.
    pub(in crate::servers) fn configure(&self, directory: &Path) -> io::Result<()> {
        std::fs::write(config_file(directory), &self.config)
    }

    /// The command that starts such a server.
    pub(in crate::servers) fn invocation(&self, directory: &Path, port: u16) -> Invocation {
        let mut args: Vec<OsString> = vec![config_file(directory).into()];
        args.push(if self.tls.is_some() { "--tls-port" } else { "--port" }.into());
        args.push(port.to_string().into());
        if let Some(tls) = &self.tls {
            args.extend(tls_args(tls.clients, directory));
        }
        args.extend(["--bind", "127.0.0.1", "--save", "", "--daemonize", "no"].map(Into::into));
        // Before Redis 7 `DEBUG` is always allowed, and the option is unknown.
        if redis_major(&self.program).is_none_or(|major| major >= 7) {
            args.extend(["--enable-debug-command", "local"].map(Into::into));
        }
        args.push("--dir".into());
        args.push(directory.into());
        if let Some(password) = &self.password {
            args.extend(["--requirepass", password].map(Into::into));
        }
        if let Some(socket) = self.socket_in(directory) {
            args.extend(["--unixsocket".into(), socket.into()]);
        }
        if self.in_cluster {
            args.extend(["--cluster-enabled", "yes"].map(Into::into));
        }
        args.extend(self.args.iter().cloned());
        Invocation::new(self.program.clone(), args)
    }

    /// The Unix socket of a server in this directory, if it has one.
    pub(super) fn socket_in(&self, directory: &Path) -> Option<PathBuf> {
        let wanted = self.unix_socket || self.tls.is_some();
        wanted.then(|| directory.join("redis.sock"))
    }

    /// One that others replicate, or that replicates: at once, and with the password and the
    /// authority that all of the topology share.
    pub(super) fn replicating(mut self) -> Result<Self, ServerError> {
        let shared = self.tls.map(Tls::shared).transpose();
        self.tls = shared.map_err(failed(SERVER, "making certificates for"))?;
        let mut ours: Vec<OsString> =
            ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]
                .map(Into::into)
                .into();
        if let Some(password) = &self.password {
            ours.extend(["--masterauth", password].map(Into::into));
        }
        self.args.splice(..0, ours);
        Ok(self)
    }
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self::new()
    }
}

pub(super) fn config_file(directory: &Path) -> PathBuf {
    directory.join("redis.conf")
}

/// The arguments of a server that speaks TLS, with the directory of its certificates.
fn tls_args(clients: Clients, directory: &Path) -> Vec<OsString> {
    let clients = match clients {
        Clients::Any => "no",
        Clients::Certified => "yes",
    };
    // To its own kind it is a client as well.
    let yes = ["--tls-replication", "--tls-cluster"].map(|role| [role, "yes"]);
    let mut args: Vec<OsString> = yes.as_flattened().iter().map(Into::into).collect();
    args.extend(["--port", "0", "--tls-auth-clients", clients].map(Into::into));
    let files = [
        ("ca-cert", certificates::CA),
        ("cert", certificates::SERVER),
        ("key", certificates::SERVER_KEY),
    ];
    for (option, file) in files {
        args.extend([format!("--tls-{option}-file").into(), directory.join(file).into()]);
    }
    args
}
