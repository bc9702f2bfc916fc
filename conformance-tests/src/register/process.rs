//! Protected registers in a process of their own, which no fault hits: an independent witness.
//!
//! It is this program, executed again, as the peers are. It listens on a Unix socket and answers
//! one JSON object per line.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};

use super::{ProtectedRegister, Writes};

/// Set for a program that is to be the witness, to its socket's path.
const ASKED: &str = "FENCELOCK_CONFORMANCE_REGISTER";
/// Set with it for one that takes every write.
const TRUSTS: &str = "FENCELOCK_CONFORMANCE_REGISTER_TRUSTS";

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Read { register: String, token: u64 },
    Write { register: String, token: u64, value: u64 },
    Count,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Value(Option<u64>),
    Accepted(bool),
    Writes(Writes),
}

/// The process. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Witness {
    socket: PathBuf,
    _child: Child,
}

impl Witness {
    /// Starts one that listens at `socket`.
    pub(crate) async fn start(socket: PathBuf, checks: bool) -> io::Result<Witness> {
        let mut command = Command::new(crate::peer::this_program()?);
        command.env(ASKED, &socket).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        if !checks {
            command.env(TRUSTS, "1");
        }
        let mut child = command.spawn()?;
        let mut ready = [0];
        let out = child.stdout.as_mut().ok_or_else(|| io::Error::other("no output"))?;
        out.read_exact(&mut ready).await?;
        Ok(Witness { socket, _child: child })
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// What became of all writes to all registers so far.
    pub(crate) async fn writes(&self) -> io::Result<Writes> {
        Registers::connect(&self.socket).await?.writes().await
    }
}

/// A client's way to the witness.
#[derive(Debug)]
pub(crate) struct Registers {
    input: OwnedWriteHalf,
    output: Lines<BufReader<OwnedReadHalf>>,
}

impl Registers {
    pub(crate) async fn connect(socket: &Path) -> io::Result<Registers> {
        let (output, input) = UnixStream::connect(socket).await?.into_split();
        Ok(Registers { input, output: BufReader::new(output).lines() })
    }

    /// `None` when the token is stale.
    pub(crate) async fn read(&mut self, register: &str, token: u64) -> io::Result<Option<u64>> {
        match self.ask(&Request::Read { register: register.to_owned(), token }).await? {
            Answer::Value(value) => Ok(value),
            other => Err(unexpected(&other)),
        }
    }

    /// `false` when the token is stale.
    pub(crate) async fn write(
        &mut self,
        register: &str,
        token: u64,
        value: u64,
    ) -> io::Result<bool> {
        match self.ask(&Request::Write { register: register.to_owned(), token, value }).await? {
            Answer::Accepted(accepted) => Ok(accepted),
            other => Err(unexpected(&other)),
        }
    }

    async fn writes(&mut self) -> io::Result<Writes> {
        match self.ask(&Request::Count).await? {
            Answer::Writes(writes) => Ok(writes),
            other => Err(unexpected(&other)),
        }
    }

    async fn ask(&mut self, request: &Request) -> io::Result<Answer> {
        self.input.write_all(&line(request)?).await?;
        let answer = self.output.next_line().await?;
        Ok(serde_json::from_str(&answer.ok_or(io::ErrorKind::UnexpectedEof)?)?)
    }
}

fn line(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

fn unexpected(answer: &Answer) -> io::Error {
    io::Error::other(format!("the register answered {answer:?}"))
}

/// Becomes the witness and never returns, if this program was executed as one.
pub(crate) fn serve_if_asked() {
    let Some(socket) = std::env::var_os(ASKED) else { return };
    let all =
        Arc::new(All { checks: std::env::var_os(TRUSTS).is_none(), registers: Mutex::default() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime.and_then(|runtime| runtime.block_on(serve(Path::new(&socket), &all)));
    std::process::exit(i32::from(served.is_err()));
}

/// Until the parent has ended.
async fn serve(socket: &Path, all: &Arc<All>) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let mut out = tokio::io::stdout();
    out.write_all(b".").await?;
    out.flush().await?;
    let accepting = async {
        loop {
            let (client, _) = listener.accept().await?;
            let all = all.clone();
            // A client that was killed is no trouble of the register's.
            tokio::spawn(async move { all.serve(client).await });
        }
    };
    let mut rest = Vec::new();
    let mut parent = tokio::io::stdin();
    tokio::select! {
        failed = accepting => failed,
        _ = parent.read_to_end(&mut rest) => Ok(()),
    }
}

struct All {
    checks: bool,
    registers: Mutex<HashMap<String, ProtectedRegister>>,
}

impl All {
    async fn serve(&self, client: UnixStream) -> io::Result<()> {
        let (output, mut input) = client.into_split();
        let mut lines = BufReader::new(output).lines();
        while let Some(request) = lines.next_line().await? {
            let answer = self.answer(serde_json::from_str(&request)?);
            input.write_all(&line(&answer)?).await?;
        }
        Ok(())
    }

    fn answer(&self, request: Request) -> Answer {
        let mut registers = self.registers.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || match self.checks {
            true => ProtectedRegister::checking(),
            false => ProtectedRegister::trusting(),
        };
        match request {
            Request::Read { register, token } => {
                Answer::Value(registers.entry(register).or_insert_with(new).read_with(token))
            }
            Request::Write { register, token, value } => {
                Answer::Accepted(registers.entry(register).or_insert_with(new).write(token, value))
            }
            Request::Count => {
                let all = registers.values().map(ProtectedRegister::writes);
                Answer::Writes(all.fold(Writes::default(), |sum, one| sum + one))
            }
        }
    }
}
