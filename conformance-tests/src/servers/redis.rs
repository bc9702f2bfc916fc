//! A `redis-server` of the test's own.
//!
//! One server without replicas, since most faults need no more; what it takes to run one is in
//! `instance.rs`, for topologies of several to build on. It is asked through a connection of its
//! own for each command, so that no client library's behaviour gets into a test's set-up.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::instance::{Instance, ask};
use super::port::Port;
use super::process::Invocation;
use super::{STARTS, ServerError};
use crate::proxy::{Direction, Frame, framing};

const SERVER: &str = "redis-server";
const READY: Duration = Duration::from_secs(30);

/// How to start a [`TestRedis`].
#[derive(Debug, Clone)]
pub struct RedisOptions {
    program: OsString,
    args: Vec<OsString>,
    password: Option<String>,
    append_only: bool,
    unix_socket: bool,
}

impl RedisOptions {
    /// No password, no persistence, TCP only, `DEBUG` allowed.
    #[must_use]
    pub fn new() -> Self {
        Self {
            program: SERVER.into(),
            args: Vec::new(),
            password: None,
            append_only: false,
            unix_socket: false,
        }
    }

    /// Another program than the `redis-server` on the search path.
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

    /// Demands this password of every client.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Keeps an append-only file, so that data outlives a restart and a kill.
    #[must_use]
    pub fn append_only(mut self) -> Self {
        self.append_only = true;
        self
    }

    /// Listens on a Unix socket too: [`TestRedis::unix_socket`].
    #[must_use]
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    /// When it is not installed, or does not get ready.
    pub async fn start(self) -> Result<TestRedis, ServerError> {
        let mut attempts = 1..STARTS;
        loop {
            match self.clone().start_once().await {
                Err(ServerError::PortTaken { .. }) if attempts.next().is_some() => {}
                done => return done,
            }
        }
    }

    async fn start_once(self) -> Result<TestRedis, ServerError> {
        let instance = Instance::new(SERVER, "redis-server")?;
        let port = Port::lease().map_err(|e| instance.io("finding a port for", e))?;
        let redis = TestRedis { instance, port, options: self };
        redis.launch().await?;
        Ok(redis)
    }
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// A running `redis-server`. Dropping it kills the server and deletes its data.
#[derive(Debug)]
pub struct TestRedis {
    instance: Instance,
    port: Port,
    options: RedisOptions,
}

impl TestRedis {
    /// Starts a server with the defaults of [`RedisOptions`].
    ///
    /// # Errors
    /// When it is not installed, or does not get ready.
    pub async fn start() -> Result<Self, ServerError> {
        RedisOptions::new().start().await
    }

    /// The port on 127.0.0.1, the same over all restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The URL for clients, with the password.
    #[must_use]
    pub fn url(&self) -> String {
        let password = match &self.options.password {
            Some(password) => format!(":{}@", escape(password)),
            None => String::new(),
        };
        format!("redis://{password}127.0.0.1:{}/", self.port())
    }

    /// The Unix socket, if there is one.
    #[must_use]
    pub fn unix_socket(&self) -> Option<PathBuf> {
        self.options.unix_socket.then(|| self.directory().join("redis.sock"))
    }

    /// Where the server keeps its data and its logs (`server.N.log` of the N-th start).
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.instance.directory()
    }

    /// The process id of the latest start.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.instance.pid()
    }

    /// Keeps the directory after the end and prints its path, as a panic of the test does.
    pub fn keep(&self) {
        self.instance.keep();
    }

    /// Stops all threads of the server; connections stay up. It has stopped on return.
    ///
    /// # Errors
    /// When it is not running.
    pub async fn freeze(&self) -> Result<(), ServerError> {
        self.instance.freeze().await
    }

    /// Lets a frozen server go on.
    ///
    /// # Errors
    /// When it is not running.
    pub fn thaw(&self) -> Result<(), ServerError> {
        self.instance.thaw()
    }

    /// Ends the server by SIGKILL. It is gone on return.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn kill(&self) -> Result<(), ServerError> {
        self.instance.kill()
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
        let answer = ask(self.port(), &question, |answer| {
            replies(answer).take(replies_before + 1).count() == replies_before + 1
        })
        .await?;
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

    async fn launch(&self) -> Result<(), ServerError> {
        self.instance.launch(&self.invocation())?;
        let own = format!("process_id:{}", self.pid());
        self.instance
            .ready(READY, async || {
                // PING fails while data is loading; INFO says whose answer it is.
                self.command(&["PING"]).await?;
                let info = self.command(&["INFO", "server"]).await?;
                Ok(info.lines().any(|line| line.trim_end() == own))
            })
            .await
    }

    fn invocation(&self) -> Invocation {
        let options = &self.options;
        let mut args: Vec<OsString> = vec!["--port".into(), self.port().to_string().into()];
        args.extend(["--bind", "127.0.0.1", "--save", "", "--daemonize", "no"].map(Into::into));
        args.extend(["--enable-debug-command", "local", "--dir"].map(Into::into));
        args.push(self.directory().into());
        args.push("--appendonly".into());
        args.push(if options.append_only { "yes" } else { "no" }.into());
        if let Some(password) = &options.password {
            args.extend(["--requirepass", password].map(Into::into));
        }
        if let Some(socket) = self.unix_socket() {
            args.extend(["--unixsocket".into(), socket.into()]);
        }
        args.extend(options.args.iter().cloned());
        Invocation { program: options.program.clone(), args }
    }
}

fn encode(command: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for word in command {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
    bytes
}

/// The whole replies at the start of the bytes.
fn replies(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || match framing::resp(Direction::ToClient, 0, bytes) {
        Frame::Message(len) | Frame::Aside(len) if len <= bytes.len() => {
            let (reply, rest) = bytes.split_at(len);
            bytes = rest;
            Some(reply)
        }
        _ => None,
    })
}

/// Appends a reply in the protocol's first version as text, each value on a line.
fn render(reply: &[u8], text: &mut String) -> io::Result<()> {
    let mut rest = reply;
    while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
        let line = String::from_utf8_lossy(&rest[1..end]).trim_end().to_owned();
        let kind = rest[0];
        rest = &rest[end + 1..];
        match kind {
            b'-' => return Err(io::Error::other(line)),
            b'*' => continue,
            b'$' => {
                // A nil has the length -1.
                let len = line.parse().unwrap_or(0).min(rest.len());
                text.push_str(&String::from_utf8_lossy(&rest[..len]));
                rest = &rest[(len + 2 * usize::from(line != "-1")).min(rest.len())..];
            }
            _ => text.push_str(&line),
        }
        text.push('\n');
    }
    Ok(())
}

fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}
