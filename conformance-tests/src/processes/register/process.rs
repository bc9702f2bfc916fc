//! Protected registers in a process of their own, which no fault hits: an independent register.
//!
//! There are two for each lock, one that checks tokens and one that does not, and two such ledgers
//! with an account for each. Every client writes to both: what the check prevented is what the other
//! one shows.
//!
//! It is this program, executed again, as the peers are. It listens on a Unix socket and answers
//! one JSON object per line.

use std::collections::HashMap;
use std::io;
use std::ops::Add;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};

use super::ledger::{Entry, Ledger};
use super::{ProtectedRegister, Seen, Writes};

/// Set for a program that is to be the register, to its socket's path.
const ASKED: &str = "FENCELOCK_CONFORMANCE_REGISTER";

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Read {
        register: String,
        token: u64,
    },
    Write {
        register: String,
        token: u64,
        values: Both<u64>,
    },
    /// The balances of accounts.
    Balances(Vec<(String, u64)>),
    Transfer(Both<Vec<Entry>>),
    Count,
}

/// What a client read of, or writes to, both: the one that checks tokens and the one that does not.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Both<T> {
    /// `None` once a token was stale.
    checked: Option<T>,
    unchecked: T,
}

impl<T> Both<T> {
    pub(crate) fn map<U>(self, change: impl Fn(T) -> U) -> Both<U> {
        Both { checked: self.checked.map(&change), unchecked: change(self.unchecked) }
    }
}

/// A transfer: every account but the first gives `amount` to the first.
fn collected(accounts: &[(String, u64)], balances: Vec<i64>, amount: i64) -> Vec<Entry> {
    let others = i64::try_from(balances.len()).unwrap_or(i64::MAX) - 1;
    let changes = std::iter::once(amount * others).chain(std::iter::repeat(-amount));
    let changed = accounts.iter().zip(balances).zip(changes);
    let entry = |(((account, token), balance), change): ((&(String, u64), i64), i64)| Entry {
        account: account.clone(),
        token: *token,
        balance: balance + change,
    };
    changed.map(entry).collect()
}

/// The process. Dropping it ends it.
#[derive(Debug)]
pub struct RegisterServer {
    socket: PathBuf,
    _child: Child,
}

impl RegisterServer {
    /// Starts one that listens at `socket`. The program must call
    /// [`peer_main_if_asked`](crate::peer_main_if_asked) before anything else.
    ///
    /// # Errors
    /// When this program cannot be executed again.
    pub async fn start(socket: PathBuf) -> io::Result<RegisterServer> {
        let mut command = Command::new(crate::processes::peer::this_program()?);
        command.env(ASKED, &socket).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let mut ready = [0];
        let out = child.stdout.as_mut().ok_or_else(|| io::Error::other("no output"))?;
        out.read_exact(&mut ready).await?;
        Ok(RegisterServer { socket, _child: child })
    }

    /// Where clients connect to it.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What became of all writes to all registers since this was asked last.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn seen(&self) -> io::Result<Seen> {
        Registers::connect(&self.socket).await?.ask(&Request::Count).await
    }
}

/// A client's way to the register.
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

    pub(crate) async fn read(&mut self, register: &str, token: u64) -> io::Result<Both<u64>> {
        self.ask(&Request::Read { register: register.to_owned(), token }).await
    }

    pub(crate) async fn write(
        &mut self,
        register: &str,
        token: u64,
        values: Both<u64>,
    ) -> io::Result<()> {
        self.ask(&Request::Write { register: register.to_owned(), token, values }).await
    }

    /// The balances of accounts, each by the token of its lock.
    pub(crate) async fn balances(
        &mut self,
        accounts: &[(String, u64)],
    ) -> io::Result<Both<Vec<i64>>> {
        self.ask(&Request::Balances(accounts.to_vec())).await
    }

    /// Moves `amount` from each of the other accounts to the first, in one transaction that begins at
    /// what was read.
    pub(crate) async fn collect(
        &mut self,
        accounts: &[(String, u64)],
        read: Both<Vec<i64>>,
        amount: i64,
    ) -> io::Result<()> {
        let entries = read.map(|balances| collected(accounts, balances, amount));
        self.ask(&Request::Transfer(entries)).await
    }

    /// Each request has an answer of its own type.
    async fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> io::Result<T> {
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

/// Becomes the register and never returns, if this program was executed as one.
pub(crate) fn serve_if_asked() {
    let Some(socket) = std::env::var_os(ASKED) else { return };
    let all = Arc::new(All::default());
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
            // A client that was killed does not matter to the register.
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

/// All registers and accounts.
struct All(Mutex<[Resources; 2]>);

/// Those that check tokens, or those that do not.
struct Resources {
    register: fn() -> ProtectedRegister,
    registers: HashMap<String, ProtectedRegister>,
    ledger: Ledger,
}

impl Default for All {
    fn default() -> All {
        let of = |register, ledger| Resources { register, registers: HashMap::new(), ledger };
        All(Mutex::new([
            of(ProtectedRegister::checking, Ledger::checking()),
            of(ProtectedRegister::trusting, Ledger::trusting()),
        ]))
    }
}

impl All {
    async fn serve(&self, client: UnixStream) -> io::Result<()> {
        let (output, mut input) = client.into_split();
        let mut lines = BufReader::new(output).lines();
        while let Some(request) = lines.next_line().await? {
            let answer = self.answer(serde_json::from_str(&request)?)?;
            input.write_all(&answer).await?;
        }
        Ok(())
    }

    fn answer(&self, request: Request) -> io::Result<Vec<u8>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let [checked, unchecked] = &mut *all;
        // Those that do not check always have a value.
        match request {
            Request::Read { register, token } => line(&Both {
                checked: checked.register(&register).read_with(token),
                unchecked: unchecked.register(&register).read_with(token).unwrap_or_default(),
            }),
            Request::Write { register, token, values } => {
                if let Some(value) = values.checked {
                    checked.register(&register).write(token, value);
                }
                unchecked.register(&register).write(token, values.unchecked);
                line(&())
            }
            Request::Balances(accounts) => line(&Both {
                checked: checked.ledger.read(&accounts),
                unchecked: unchecked.ledger.read(&accounts).unwrap_or_default(),
            }),
            Request::Transfer(entries) => {
                if let Some(entries) = entries.checked {
                    checked.ledger.transfer(&entries);
                }
                unchecked.ledger.transfer(&entries.unchecked);
                line(&())
            }
            Request::Count => {
                line(&Seen { checked: checked.take_writes(), unchecked: unchecked.take_writes() })
            }
        }
    }
}

impl Resources {
    fn register(&mut self, name: &str) -> &ProtectedRegister {
        self.registers.entry(name.to_owned()).or_insert_with(self.register)
    }

    fn take_writes(&mut self) -> Writes {
        let each = self.registers.values().map(ProtectedRegister::take_writes);
        each.fold(self.ledger.take_writes(), Writes::add)
    }
}
