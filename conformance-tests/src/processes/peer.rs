//! Another process that is a client of the store under test, to be frozen or killed.
//!
//! It is this program, executed again; its `main` recognises that by an environment variable. The
//! store's address, which may hold a password, goes through its standard input, not through
//! arguments that every user of the machine can read.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::oneshot;

use crate::harness::Params;
use crate::stopping::stop;

pub(crate) mod process;
pub(crate) mod protocol;
mod torture;
mod work;

use protocol::{Answer, Hello, Reply, Request, Want};

use crate::how::How;
use crate::time::clock::ServerClock;

/// Why a peer did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The library said no.
    #[error("{message}")]
    Failed {
        /// The kind of its error, in words.
        kind: String,
        /// The error.
        message: String,
    },
    /// The process has ended.
    #[error("the peer process is gone")]
    Gone,
    /// The process could not be started, signalled or understood.
    #[error("{0}")]
    Trouble(String),
}

impl From<std::io::Error> for PeerError {
    fn from(error: std::io::Error) -> PeerError {
        PeerError::Trouble(error.to_string())
    }
}

type Pending = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Answer>>>>>;

/// A peer process. Dropping it kills it.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    pid: Pid,
    input: tokio::sync::Mutex<ChildStdin>,
    pending: Pending,
    last_id: AtomicU64,
}

impl Peer {
    /// Starts this program as a peer, with a client of the store at `address` that it knows by
    /// `harness`. The program must call [`peer_main_if_asked`](crate::peer_main_if_asked), or
    /// [`main`](crate::main), before anything else.
    ///
    /// # Errors
    /// When it cannot be started, or cannot connect.
    pub async fn start(harness: &str, address: &str, params: &Params) -> Result<Peer, PeerError> {
        Peer::start_as(Command::new(this_program()?), harness, address, params).await
    }

    /// A clock for peers of this program: it is right.
    ///
    /// # Errors
    /// As [`ServerClock::of`].
    pub fn clock() -> std::io::Result<ServerClock> {
        ServerClock::of(&this_program()?.to_string_lossy())
    }

    /// As [`start`](Peer::start), by a program that becomes this one, such as that of a
    /// [`clock`](Peer::clock).
    ///
    /// # Errors
    /// As [`start`](Peer::start).
    pub async fn start_as(
        program: impl Into<Command>,
        harness: &str,
        address: &str,
        params: &Params,
    ) -> Result<Peer, PeerError> {
        let mut child = program
            .into()
            .env(process::ASKED, harness)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(PeerError::Gone);
        };
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let (ready, is_ready) = oneshot::channel();
        let pending: Pending = Arc::new(Mutex::new(Some(HashMap::from([(0, ready)]))));
        tokio::spawn(listen(output, pending.clone()));
        let peer = Peer {
            child,
            pid: pid.ok_or(PeerError::Gone)?,
            input: tokio::sync::Mutex::new(input),
            pending,
            last_id: AtomicU64::new(0),
        };
        let hello = Hello { address: address.to_owned(), params: params.clone() };
        peer.send(&hello).await?;
        understood(is_ready.await.map_err(|_| PeerError::Gone)?).map(|_| peer)
    }

    async fn send(&self, message: &impl serde::Serialize) -> Result<(), PeerError> {
        let line = serde_json::to_string(message);
        let line = line.map_err(|error| PeerError::Trouble(error.to_string()))? + "\n";
        let mut input = self.input.lock().await;
        input.write_all(line.as_bytes()).await?;
        Ok(input.flush().await?)
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    /// Asks for `want` and waits for the answer.
    ///
    /// # Errors
    /// [`PeerError::Failed`] as the library answered there; [`PeerError::Gone`] when the process
    /// ends first.
    pub async fn ask(&self, want: Want) -> Result<Answer, PeerError> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (answer, answered) = oneshot::channel();
        {
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            pending.as_mut().ok_or(PeerError::Gone)?.insert(id, answer);
        }
        self.send(&Request { id, want }).await?;
        understood(answered.await.map_err(|_| PeerError::Gone)?)
    }

    /// Acquires `name` and keeps it in `slot`: its fencing token.
    ///
    /// # Errors
    /// As [`ask`](Peer::ask).
    pub async fn acquire(&self, slot: u64, name: &str, how: How) -> Result<u64, PeerError> {
        self.acquire_for(slot, name, how, None).await
    }

    /// As [`acquire`](Peer::acquire), with a TTL of its own.
    ///
    /// # Errors
    /// As [`ask`](Peer::ask).
    pub async fn acquire_for(
        &self,
        slot: u64,
        name: &str,
        how: How,
        ttl: Option<Duration>,
    ) -> Result<u64, PeerError> {
        let name = name.to_owned();
        let want = Want::Acquire { slot, name, how, wait_at_most: None, ttl, local_handoffs: 1 };
        self.granted(want).await
    }

    /// Asks for an acquisition: its fencing token.
    ///
    /// # Errors
    /// As [`ask`](Peer::ask).
    pub(crate) async fn granted(&self, want: Want) -> Result<u64, PeerError> {
        match self.ask(want).await? {
            Answer::Granted { token } => Ok(token),
            other => Err(PeerError::Trouble(format!("unexpected answer {other:?}"))),
        }
    }

    /// Releases what is in `slot`.
    ///
    /// # Errors
    /// As [`ask`](Peer::ask).
    pub async fn release(&self, slot: u64) -> Result<(), PeerError> {
        self.ask(Want::Release { slot }).await.map(|_| ())
    }

    /// Whether the guard in `slot` believes that it holds.
    ///
    /// # Errors
    /// As [`ask`](Peer::ask).
    pub async fn is_held(&self, slot: u64) -> Result<bool, PeerError> {
        Ok(self.ask(Want::IsHeld { slot }).await? == Answer::Is(true))
    }

    /// What its wall clock shows, in seconds since 1970.
    ///
    /// # Errors
    /// As [`ask`](Peer::ask).
    pub(crate) async fn wall_clock(&self) -> Result<u64, PeerError> {
        match self.ask(Want::WallClock).await? {
            Answer::Count(seconds) => Ok(seconds),
            other => Err(PeerError::Trouble(format!("unexpected answer {other:?}"))),
        }
    }

    /// Stops the process as SIGSTOP does, and waits until all its threads have stopped.
    ///
    /// # Errors
    /// When the process is gone.
    pub async fn freeze(&self) -> Result<(), PeerError> {
        Ok(stop(self.pid).await?)
    }

    /// Lets a frozen process continue.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn thaw(&self) -> Result<(), PeerError> {
        self.signal(Signal::CONT)
    }

    /// Kills the process. Whatever it was asked answers that it is gone.
    ///
    /// # Errors
    /// When it has ended and has no process id.
    pub fn send_kill(&self) -> Result<(), PeerError> {
        self.signal(Signal::KILL)
    }

    /// Kills the process and waits for its end.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn kill(&mut self) -> Result<(), PeerError> {
        Ok(self.child.kill().await?)
    }

    /// Waits for the end of a process that was asked to crash.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn ended(&mut self) -> Result<(), PeerError> {
        self.child.wait().await?;
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<(), PeerError> {
        // Until it is waited for, which only `self` does, the id is this child's.
        kill_process(self.pid, signal).map_err(|error| PeerError::Trouble(error.to_string()))
    }
}

/// This program, for a child to become, also when its file was replaced meanwhile.
pub(crate) fn this_program() -> std::io::Result<PathBuf> {
    let link = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
    if link.exists() { Ok(link) } else { std::env::current_exe() }
}

async fn listen(output: ChildStdout, pending: Pending) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(reply) = serde_json::from_str::<Reply>(&line) else { continue };
        let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(asked) = pending.as_mut().and_then(|pending| pending.remove(&reply.id)) {
            let _ = asked.send(reply.answer);
        }
    }
    // There will be no more answers; dropping the senders reports that.
    *pending.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

fn understood(answer: Answer) -> Result<Answer, PeerError> {
    match answer {
        Answer::Failed { kind, message } => Err(PeerError::Failed { kind, message }),
        other => Ok(other),
    }
}
