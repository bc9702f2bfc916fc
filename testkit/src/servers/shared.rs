//! One server for all test processes of a run.
//!
//! `cargo test` runs one test program after the other, nextest a process for each test, and a server
//! for each of them would cost seconds. So the first process starts the server under a keeper, a
//! small shell script that belongs to no test process; the others find it through the registry, a
//! locked file in the target directory. Every process holds the write end of one pipe: when the
//! last has ended, in order or by SIGKILL, the keeper sees the end of the pipe, waits a moment for
//! the next test program, and ends the server.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::instance::ready;
use super::process::Invocation;
use super::unprivileged::{home, make_home};
use super::version::missing;
use super::{PostgresOptions, RedisOptions, ServerError, ZooKeeperOptions, failed, started};
use crate::port::Port;

mod registry;

use registry::Registry;

/// How long the server outlives its last user: longer than the pause between two test programs.
const GRACE: Duration = Duration::from_secs(2);

/// A server that is shared by the test processes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SharedKind {
    /// A PostgreSQL server with the defaults of [`PostgresOptions`].
    Postgres,
    /// A Redis server with the defaults of [`RedisOptions`].
    Redis,
    /// A standalone ZooKeeper server with the defaults of [`ZooKeeperOptions`], except that sessions
    /// may last 40 s.
    ZooKeeper,
}

/// A process's use of a shared server, which runs until every process has dropped its own.
#[derive(Debug)]
pub struct SharedServer {
    directory: PathBuf,
    port: u16,
    /// The write end of the keeper's pipe.
    _user: File,
}

impl SharedServer {
    /// Joins the users of this run's server, or starts one.
    ///
    /// # Errors
    /// When it is not installed, or does not get ready.
    pub async fn join(kind: SharedKind) -> Result<SharedServer, ServerError> {
        // Also of a server that an earlier run has left for a moment: whether tests run must not
        // depend on that.
        kind.invocation(Path::new(""), 0)?;
        // Held until the server is ready, so that a run has one: the others wait here.
        let registry = Registry::lock(kind.package(), &kind.version()).await;
        let mut registry = registry.map_err(failed(kind.server(), "finding the run's"))?;
        if let Some(directory) = registry.current()
            && let Some(server) = SharedServer::join_at(kind, directory).await
        {
            return Ok(server);
        }
        let server = SharedServer::start(kind).await?;
        registry.set(&server.directory).map_err(failed(kind.server(), "registering"))?;
        Ok(server)
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where the server keeps its data, its log and its process id (`pid`).
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The server in this directory, unless it has ended or is about to.
    async fn join_at(kind: SharedKind, directory: PathBuf) -> Option<SharedServer> {
        let user = enter(&directory).ok()?;
        // After entering: see the keeper.
        let port = std::fs::read_to_string(directory.join(OPEN)).ok()?.trim().parse().ok()?;
        let answers = kind.answers(&directory, port).await.unwrap_or(false);
        answers.then_some(SharedServer { directory, port, _user: user })
    }

    async fn start(kind: SharedKind) -> Result<SharedServer, ServerError> {
        started(|| SharedServer::start_once(kind)).await
    }

    async fn start_once(kind: SharedKind) -> Result<SharedServer, ServerError> {
        let directory = tempfile::Builder::new()
            .prefix(&format!("fencelock-{}-", kind.package()))
            .permissions(Permissions::from_mode(0o700))
            .tempdir();
        let directory = directory.map_err(failed(kind.server(), "making a directory for"))?;
        let port = Port::lease().map_err(failed(kind.server(), "finding a port for"))?;
        let invocation = kind.invocation(directory.path(), port.number())?;
        let configured = kind.configure(directory.path(), port.number());
        configured.map_err(failed(kind.server(), "configuring"))?;
        let (user, mut keeper) =
            keep(directory.path(), &invocation).map_err(failed(kind.server(), "starting"))?;
        // From here on the keeper deletes it.
        let directory = directory.keep();
        kind.ready(&directory, port.number(), &mut keeper).await?;
        // Now others may join.
        std::fs::write(directory.join(OPEN), format!("{}\n", port.number()))
            .map_err(failed(kind.server(), "registering"))?;
        Ok(SharedServer { directory, port: port.number(), _user: user })
    }
}

impl SharedKind {
    fn server(self) -> &'static str {
        match self {
            SharedKind::Postgres => "PostgreSQL",
            SharedKind::Redis => "redis-server",
            SharedKind::ZooKeeper => "ZooKeeper",
        }
    }

    fn package(self) -> &'static str {
        match self {
            SharedKind::Postgres => "postgresql",
            SharedKind::Redis => "redis-server",
            SharedKind::ZooKeeper => "zookeeper",
        }
    }

    /// What distinguishes the servers of two runs that use one target directory.
    fn version(self) -> String {
        match self {
            SharedKind::Postgres => {
                let options = PostgresOptions::new();
                format!("{options:?} {:?}", options.programs_or_missing())
            }
            SharedKind::Redis => format!("{:?}", RedisOptions::new()),
            SharedKind::ZooKeeper => format!("{:?}", zookeeper_options()),
        }
    }

    /// Writes the configuration to the directory.
    fn configure(self, directory: &Path, port: u16) -> io::Result<()> {
        match self {
            SharedKind::Postgres => {
                let (options, home) = (PostgresOptions::new(), make_home(directory)?);
                options.initialise(&home)?;
                options.configure(&home, port, "")
            }
            SharedKind::Redis => RedisOptions::new().configure(directory),
            SharedKind::ZooKeeper => zookeeper_options().configure(directory, port, 1, ""),
        }
    }

    /// The command that starts the server, if it is installed.
    fn invocation(self, directory: &Path, port: u16) -> Result<Invocation, ServerError> {
        let invocation = match self {
            SharedKind::Postgres => {
                let invocation = PostgresOptions::new().invocation(&home(directory));
                invocation.map_err(|program| self.missing(program))?
            }
            SharedKind::Redis => RedisOptions::new().invocation(directory, port),
            SharedKind::ZooKeeper => {
                zookeeper_options().invocation(directory).map_err(|jar| self.missing(jar))?
            }
        };
        // The keeper starts it, and could not say so.
        match is_program(Path::new(&invocation.program)) {
            true => Ok(invocation),
            false => Err(self.missing(invocation.program.to_string_lossy())),
        }
    }

    /// Whether the server of this directory answers on this port.
    async fn answers(self, directory: &Path, port: u16) -> io::Result<bool> {
        match self {
            SharedKind::Postgres => super::postgres::is_served_from(directory, port).await,
            SharedKind::Redis => super::redis::is_served_from(directory, port).await,
            SharedKind::ZooKeeper => super::zookeeper::is_served_from(directory, port).await,
        }
    }

    async fn ready(
        self,
        directory: &Path,
        port: u16,
        keeper: &mut Child,
    ) -> Result<(), ServerError> {
        const READY: Duration = Duration::from_secs(60);
        let log = || {
            let log = std::fs::read(directory.join("server.log")).unwrap_or_default();
            String::from_utf8_lossy(&log).into_owned()
        };
        let exited = || match (std::fs::read_to_string(directory.join("exited")), keeper.try_wait())
        {
            (Ok(code), _) => Ok(Some(format!("it ended with code {}", code.trim()))),
            (_, Ok(Some(status))) => Ok(Some(format!("its keeper ended ({status})"))),
            _ => Ok(None),
        };
        ready(self.server(), READY, || self.answers(directory, port), exited, log).await
    }

    fn missing(self, path: impl Into<String>) -> ServerError {
        ServerError::NotInstalled {
            server: self.server(),
            missing: missing(&path.into()),
            package: self.package(),
        }
    }
}

/// A server for services: their sessions have the length that they have in production.
pub(crate) fn zookeeper_options() -> ZooKeeperOptions {
    ZooKeeperOptions::new().config("maxSessionTimeout=40000")
}

/// The file with the port: as long as it exists, processes may join.
const OPEN: &str = "open";
/// The pipe whose write end every user holds.
const USERS: &str = "users";

/// Starts the keeper and its server, with this process as the first user.
fn keep(directory: &Path, server: &Invocation) -> io::Result<(File, Child)> {
    let pipe = directory.join(USERS);
    // The command, since the system call is not everywhere available without unsafe code. A server of another
    // user makes it possible to pass through the directory.
    let mut command = Command::new("mkfifo");
    let made = command.args(["-m", "600"]).env("PATH", search_path()).arg(&pipe).status()?;
    if !made.success() {
        return Err(io::Error::other(format!("mkfifo {} failed ({made})", pipe.display())));
    }
    // Open without a writer, which there can only be once there is a reader.
    let reader = rustix::fs::open(
        &pipe,
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let user = enter(directory)?;
    rustix::fs::fcntl_setfl(&reader, OFlags::empty())?;
    let keeper = Command::new("/bin/sh")
        .args(["-c", include_str!("shared/keeper.sh"), "keeper"])
        .arg(directory)
        .arg(GRACE.as_secs().to_string())
        .arg(server.end_at_once.as_raw().to_string())
        .arg(&server.program)
        .args(&server.args)
        .stdin(Stdio::from(reader))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Out of reach of the terminal's interrupt, and of a runner that kills the test's group.
        .process_group(0)
        .spawn()?;
    Ok((user, keeper))
}

/// Becomes a user of the server in this directory; an error if its keeper has ended.
fn enter(directory: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut user = File::from(rustix::fs::open(directory.join(USERS), flags, Mode::empty())?);
    user.write_all(b"\n")?;
    Ok(user)
}

fn is_program(program: &Path) -> bool {
    if program.components().count() > 1 {
        return program.is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn search_path() -> std::ffi::OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/bin:/bin");
    path
}
