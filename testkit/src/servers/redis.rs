//! A `redis-server` of the test's own.
//!
//! One server, since most faults need no more; topologies (`sentinel.rs`, `cluster.rs`) are made of
//! several. It is asked through a connection of its own for each command, so that no client
//! library's behaviour gets into a test's set-up.

use std::io;
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::net::{TcpStream, UnixStream};

use self::options::{RedisOptions, SERVER, config_file};
use self::resp::{encode, render, replies};
use super::instance::{Instance, ask};
use super::{ServerError, failed, started};
use crate::port::Port;

pub(super) mod cluster;
pub(super) mod options;
mod replication;
mod resp;
pub(super) mod sentinel;

const READY: Duration = Duration::from_secs(30);

/// A running `redis-server`. Dropping it kills the server and deletes its data.
#[derive(Debug)]
pub struct TestRedis {
    instance: Instance,
    /// Reserved for the other nodes of its cluster, if it is in one.
    bus: Option<Port>,
    options: RedisOptions,
}

/// The server's process and directory.
impl Deref for TestRedis {
    type Target = Instance;

    fn deref(&self) -> &Instance {
        &self.instance
    }
}

/// By how much the port of a cluster's bus lies above that for clients: what Redis 6.2 has fixed.
const BUS_ABOVE: u16 = 10_000;

impl RedisOptions {
    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    /// When it is not installed, or does not get ready.
    pub async fn start(self) -> Result<TestRedis, ServerError> {
        started(|| self.clone().start_once()).await
    }

    async fn start_once(self) -> Result<TestRedis, ServerError> {
        let ports = if self.in_cluster {
            Port::lease_two(BUS_ABOVE).map(|(client, bus)| (client, Some(bus)))
        } else {
            Port::lease().map(|client| (client, None))
        };
        let (client, bus) =
            ports.map_or_else(|e| (Err(e), None), |(client, bus)| (Ok(client), bus));
        let instance = Instance::on(client, SERVER, "redis-server")?;
        self.configure(instance.directory()).map_err(failed(SERVER, "configuring"))?;
        if let Some(tls) = &self.tls {
            tls.certify(instance.directory()).map_err(failed(SERVER, "making certificates for"))?;
        }
        let redis = TestRedis { instance, bus, options: self };
        redis.launch().await?;
        Ok(redis)
    }
}

impl TestRedis {
    /// Starts a server with the defaults of [`RedisOptions`].
    ///
    /// # Errors
    /// When it is not installed, or does not get ready.
    pub async fn start() -> Result<Self, ServerError> {
        RedisOptions::new().start().await
    }

    /// The URL for clients, with the password.
    #[must_use]
    pub fn url(&self) -> String {
        let password = match &self.options.password {
            Some(password) => format!(":{}@", utf8_percent_encode(password, NON_ALPHANUMERIC)),
            None => String::new(),
        };
        let scheme = if self.options.tls.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{password}{}/", self.addr())
    }

    /// The Unix socket, if there is one: with [`RedisOptions::unix_socket`], and with TLS, where
    /// the server is asked through it.
    #[must_use]
    pub fn unix_socket(&self) -> Option<PathBuf> {
        self.options.socket_in(self.directory())
    }

    /// Starts the server again on the same port and directory and waits until it answers; ends it
    /// in order before if it still runs. Without [`RedisOptions::append_only`] its data is lost.
    ///
    /// # Errors
    /// When it does not get ready.
    pub async fn restart(&self) -> Result<(), ServerError> {
        self.instance.stop().await?;
        self.launch().await
    }

    /// Runs one command and returns the answer as `redis-cli` prints it to a pipe: the elements of
    /// an array one per line, nothing for a nil.
    ///
    /// # Errors
    /// When the server answers with an error (its text), or not within 5 s.
    pub async fn command(&self, command: &[&str]) -> io::Result<String> {
        let mut question = Vec::new();
        if let Some(password) = &self.options.password {
            question.extend(encode(&["AUTH", password]));
        }
        let replies_before = usize::from(!question.is_empty());
        question.extend(encode(command));
        let is_whole =
            |answer: &[u8]| replies(answer).take(replies_before + 1).count() == replies_before + 1;
        let answer = match self.unix_socket().filter(|_| self.options.tls.is_some()) {
            Some(socket) => ask(UnixStream::connect(socket), &question, is_whole).await?,
            None => ask(TcpStream::connect(self.addr()), &question, is_whole).await?,
        };
        // A refused password is reported as such, not as the NOAUTH that follows.
        let mut text = String::new();
        for reply in replies(&answer).take(replies_before + 1) {
            text.clear();
            render(reply, &mut text)?;
        }
        if replies(&answer).count() <= replies_before {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        text.truncate(text.trim_end_matches('\n').len());
        Ok(text)
    }

    fn password(&self) -> Option<&str> {
        self.options.password.as_deref()
    }

    async fn launch(&self) -> Result<(), ServerError> {
        let invocation = self.options.invocation(self.directory(), self.port());
        self.instance.launch(&invocation)?;
        let own = format!("process_id:{}", self.pid());
        self.instance
            .ready(READY, || async {
                // PING fails while data is loading; INFO says whose answer it is.
                self.command(&["PING"]).await?;
                let info = self.command(&["INFO", "server"]).await?;
                Ok(info.lines().any(|line| line.trim_end() == own))
            })
            .await?;
        if !self.options.after_start.is_empty() {
            self.command(self.options.after_start).await.map_err(failed(SERVER, "tuning"))?;
        }
        Ok(())
    }
}

/// Whether the server on this port of 127.0.0.1 was started in this directory.
pub(super) async fn is_served_from(directory: &Path, port: u16) -> io::Result<bool> {
    let connect = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    let is_whole = |answer: &[u8]| replies(answer).next().is_some();
    let answer = ask(connect, &encode(&["INFO", "server"]), is_whole).await?;
    let own = format!("config_file:{}", config_file(directory).display());
    Ok(String::from_utf8_lossy(&answer).lines().any(|line| line.trim_end() == own))
}

/// `host:port` of each, separated by commas.
fn hosts(servers: &[TestRedis]) -> String {
    servers.iter().map(|server| server.addr().to_string()).collect::<Vec<_>>().join(",")
}
