//! What all servers have in common: a directory, a log, and a process that comes and goes.
//!
//! A server is ready when it answers as the process that was started here, asked again and again
//! until a deadline; an answer alone could come from another process, which was faster on the port. The
//! directory is deleted at the end, or kept with the log in it when the test fails.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

use super::process::{Invocation, Process};
use super::version::missing;
use super::{ServerError, certificates, failed};
use crate::port::Port;

/// How long one question to a server may take.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

/// The process, the port for clients and the directory of one server.
#[derive(Debug)]
pub struct Instance {
    server: &'static str,
    package: &'static str,
    port: Port,
    // Before the directory: the server must be gone when its directory is deleted.
    process: Mutex<Option<Process>>,
    directory: Directory,
    starts: AtomicU32,
}

impl Instance {
    pub(super) fn new(server: &'static str, package: &'static str) -> Result<Self, ServerError> {
        Self::on(Port::lease(), server, package)
    }

    pub(super) fn on(
        port: io::Result<Port>,
        server: &'static str,
        package: &'static str,
    ) -> Result<Self, ServerError> {
        let directory = tempfile::Builder::new().prefix(&format!("fencelock-{package}-")).tempdir();
        let directory = directory.map_err(failed(server, "making a directory for"))?;
        Ok(Self {
            server,
            package,
            port: port.map_err(failed(server, "finding a port for"))?,
            process: Mutex::default(),
            directory: Directory { server, tree: Some(directory), keep: AtomicBool::new(false) },
            starts: AtomicU32::new(0),
        })
    }

    /// The port for clients on 127.0.0.1, the same over all restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The address for clients.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port()))
    }

    /// The certificate of the authority that signed the server's, if it speaks TLS.
    #[must_use]
    pub fn ca_file(&self) -> Option<PathBuf> {
        self.tls_file(certificates::CA)
    }

    /// A certificate for clients, if the server speaks TLS.
    #[must_use]
    pub fn client_certificate_file(&self) -> Option<PathBuf> {
        self.tls_file(certificates::CLIENT)
    }

    /// The key of [`client_certificate_file`](Self::client_certificate_file).
    #[must_use]
    pub fn client_key_file(&self) -> Option<PathBuf> {
        self.tls_file(certificates::CLIENT_KEY)
    }

    fn tls_file(&self, name: &str) -> Option<PathBuf> {
        Some(self.directory().join(name)).filter(|file| file.exists())
    }

    /// Where the server keeps its data and its logs (`server.N.log` of the N-th start).
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Keeps the directory after the end and prints its path, as a panic of the test does.
    pub fn keep(&self) {
        self.directory.keep.store(true, Ordering::SeqCst);
    }

    /// Starts the process, without waiting for the server to be ready.
    pub(super) fn launch(&self, command: &Invocation) -> Result<(), ServerError> {
        // A log for each start: what an earlier one said must not explain this one's end.
        self.starts.fetch_add(1, Ordering::SeqCst);
        let process = Process::spawn(command, &self.log()).map_err(|source| {
            if source.kind() == io::ErrorKind::NotFound {
                self.missing(command.program.to_string_lossy())
            } else {
                failed(self.server, "starting")(source)
            }
        })?;
        *self.process() = Some(process);
        Ok(())
    }

    /// Waits until the server answers as it should.
    pub(super) async fn ready<Probe: Future<Output = io::Result<bool>>>(
        &self,
        within: Duration,
        probe: impl FnMut() -> Probe,
    ) -> Result<(), ServerError> {
        let exited = || {
            let exited = self.with("waiting for", Process::exited)?;
            Ok(exited.map(|status| format!("it ended ({status})")))
        };
        ready(self.server, within, probe, exited, || self.log_text()).await
    }

    /// The process id of the latest start.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.with("asking", |process| Ok(process.id())).unwrap_or_default()
    }

    /// Whether it runs and is not frozen.
    pub(super) fn is_live(&self) -> bool {
        // A process that is gone has no answer.
        self.with("asking", |process| Ok(!process.is_stopped()?)).unwrap_or(false)
    }

    /// Stops all processes and threads of the server; connections stay up. It has stopped on return.
    ///
    /// # Errors
    /// When it is not running.
    pub async fn freeze(&self) -> Result<(), ServerError> {
        self.with("freezing", |process| process.signal_all(Signal::STOP))?;
        // The signal is on its way only; the server might answer one more request.
        while !self.with("freezing", Process::is_stopped)? {
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Lets a frozen server continue.
    ///
    /// # Errors
    /// When it is not running.
    pub fn thaw(&self) -> Result<(), ServerError> {
        self.with("thawing", |process| process.signal_all(Signal::CONT))
    }

    /// Ends the server by SIGKILL, and Postgres by the signal with the same effect on its data, SIGQUIT. It
    /// is gone on return.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn kill(&self) -> Result<(), ServerError> {
        self.with("killing", Process::kill)
    }

    /// Ends it in order if it runs; by force if it takes too long.
    pub(super) async fn stop(&self) -> Result<(), ServerError> {
        const PATIENCE: Duration = Duration::from_secs(10);
        let deadline = Instant::now() + PATIENCE;
        if self.with("ending", Process::exited)?.is_some() {
            return Ok(());
        }
        // A frozen server hears of its end only when it continues.
        self.with("ending", Process::end_in_order)?;
        let _ = self.thaw();
        while self.with("ending", Process::exited)?.is_none() {
            if Instant::now() >= deadline {
                return self.kill();
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    pub(super) fn missing(&self, path: impl Into<String>) -> ServerError {
        let (server, package) = (self.server, self.package);
        ServerError::NotInstalled { server, missing: missing(&path.into()), package }
    }

    fn with<R>(
        &self,
        doing: &'static str,
        act: impl FnOnce(&mut Process) -> io::Result<R>,
    ) -> Result<R, ServerError> {
        match self.process().as_mut() {
            Some(process) => act(process),
            None => Err(io::Error::new(io::ErrorKind::NotFound, "it was never started")),
        }
        .map_err(failed(self.server, doing))
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self) -> PathBuf {
        self.directory().join(format!("server.{}.log", self.starts.load(Ordering::SeqCst)))
    }

    fn log_text(&self) -> String {
        let bytes = std::fs::read(self.log()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn tail(log: &str) -> String {
    const LINES: usize = 15;
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Waits until the server answers as it should; `exited` says how it ended, if it did.
pub(super) async fn ready<Probe: Future<Output = io::Result<bool>>>(
    server: &'static str,
    within: Duration,
    mut probe: impl FnMut() -> Probe,
    mut exited: impl FnMut() -> Result<Option<String>, ServerError>,
    log: impl Fn() -> String,
) -> Result<(), ServerError> {
    const PAUSE: Duration = Duration::from_millis(20);
    let deadline = Instant::now() + within;
    loop {
        let answer = probe().await;
        // After the answer: it counts only if our own process could have given it.
        let exited = exited()?;
        if exited.is_none() && matches!(answer, Ok(true)) {
            return Ok(());
        }
        let log = log();
        if log.contains("Address already in use") {
            return Err(ServerError::PortTaken { server });
        }
        let reason = match (exited, answer) {
            (Some(how), _) => how,
            (None, _) if Instant::now() < deadline => {
                sleep(PAUSE).await;
                continue;
            }
            (None, Err(error)) => format!("not ready after {within:?}: {error}"),
            (None, Ok(_)) => format!("not ready after {within:?}: it is not serving"),
        };
        return Err(ServerError::NotReady { server, reason, log: tail(&log) });
    }
}

/// The server's directory.
#[derive(Debug)]
struct Directory {
    server: &'static str,
    /// Some until the end.
    tree: Option<TempDir>,
    keep: AtomicBool,
}

impl Directory {
    fn path(&self) -> &Path {
        self.tree.as_ref().map_or(Path::new(""), TempDir::path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if (self.keep.load(Ordering::SeqCst) || std::thread::panicking())
            && let Some(tree) = self.tree.take()
        {
            eprintln!("the data and the logs of {} are in {}", self.server, tree.keep().display());
        }
    }
}

/// Sends a question on a connection of its own and reads until the answer is whole.
pub(super) async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    connect: impl Future<Output = io::Result<S>>,
    question: &[u8],
    is_whole: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<u8>> {
    let conversation = async {
        let mut server = connect.await?;
        server.write_all(question).await?;
        let mut answer = Vec::new();
        while !is_whole(&answer) && server.read_buf(&mut answer).await? > 0 {}
        Ok(answer)
    };
    timeout(ANSWER, conversation).await.map_err(|_| {
        io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {ANSWER:?}"))
    })?
}
