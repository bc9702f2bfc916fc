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
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};

use super::ledger::{Entry, Ledger};
use super::{ProtectedRegister, Seen};

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
        values: Values,
    },
    /// The balances of accounts.
    Balances(Vec<(String, u64)>),
    Transfer(Entries),
    Count,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Values(Values),
    Balances(Balances),
    Written,
    Seen(Seen),
}

/// What a client read, or writes, in both registers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Values {
    /// `None` once the token was stale.
    checked: Option<u64>,
    unchecked: u64,
}

impl Values {
    pub(crate) fn one_more(self) -> Values {
        Values { checked: self.checked.map(|it| it + 1), unchecked: self.unchecked + 1 }
    }
}

/// What a client read of accounts, in both ledgers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Balances {
    /// `None` once a token was stale.
    checked: Option<Vec<i64>>,
    unchecked: Vec<i64>,
}

/// A transfer, in both ledgers.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entries {
    checked: Option<Vec<Entry>>,
    unchecked: Vec<Entry>,
}

impl Balances {
    /// Every account but the first gives `amount` to the first.
    fn collected(self, accounts: &[(String, u64)], amount: i64) -> Entries {
        let entries = |balances: Vec<i64>| -> Vec<Entry> {
            let others = i64::try_from(balances.len()).unwrap_or(i64::MAX) - 1;
            let changes = std::iter::once(amount * others).chain(std::iter::repeat(-amount));
            let changed = accounts.iter().zip(balances).zip(changes);
            let entry = |((account, balance), change): ((&(String, u64), i64), i64)| Entry {
                account: account.0.clone(),
                token: account.1,
                balance: balance + change,
            };
            changed.map(entry).collect()
        };
        Entries { checked: self.checked.map(entries), unchecked: entries(self.unchecked) }
    }
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

    /// What became of all writes to all registers so far.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn seen(&self) -> io::Result<Seen> {
        Registers::connect(&self.socket).await?.seen().await
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

    pub(crate) async fn read(&mut self, register: &str, token: u64) -> io::Result<Values> {
        match self.ask(&Request::Read { register: register.to_owned(), token }).await? {
            Answer::Values(values) => Ok(values),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) async fn write(
        &mut self,
        register: &str,
        token: u64,
        values: Values,
    ) -> io::Result<()> {
        match self.ask(&Request::Write { register: register.to_owned(), token, values }).await? {
            Answer::Written => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// The balances of accounts, each by the token of its lock.
    pub(crate) async fn balances(&mut self, accounts: &[(String, u64)]) -> io::Result<Balances> {
        match self.ask(&Request::Balances(accounts.to_vec())).await? {
            Answer::Balances(balances) => Ok(balances),
            other => Err(unexpected(&other)),
        }
    }

    /// Moves `amount` from each of the other accounts to the first, in one transaction that begins at
    /// what was read.
    pub(crate) async fn collect(
        &mut self,
        accounts: &[(String, u64)],
        read: Balances,
        amount: i64,
    ) -> io::Result<()> {
        match self.ask(&Request::Transfer(read.collected(accounts, amount))).await? {
            Answer::Written => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    async fn seen(&mut self) -> io::Result<Seen> {
        match self.ask(&Request::Count).await? {
            Answer::Seen(seen) => Ok(seen),
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
#[derive(Default)]
struct All(Mutex<Resources>);

struct Resources {
    registers: HashMap<String, Both>,
    checked: Ledger,
    unchecked: Ledger,
}

struct Both {
    checked: ProtectedRegister,
    unchecked: ProtectedRegister,
}

impl Default for Both {
    fn default() -> Both {
        Both { checked: ProtectedRegister::checking(), unchecked: ProtectedRegister::trusting() }
    }
}

impl Default for Resources {
    fn default() -> Resources {
        let (checked, unchecked) = (Ledger::checking(), Ledger::trusting());
        Resources { registers: HashMap::new(), checked, unchecked }
    }
}

impl All {
    async fn serve(&self, client: UnixStream) -> io::Result<()> {
        let (output, mut input) = client.into_split();
        let mut lines = BufReader::new(output).lines();
        while let Some(request) = lines.next_line().await? {
            let request = serde_json::from_str(&request)?;
            let answer = self.0.lock().unwrap_or_else(PoisonError::into_inner).answer(request);
            input.write_all(&line(&answer)?).await?;
        }
        Ok(())
    }
}

impl Resources {
    fn answer(&mut self, request: Request) -> Answer {
        match request {
            Request::Read { register, token } => {
                let both = self.registers.entry(register).or_default();
                let checked = both.checked.read_with(token);
                // The one that does not check always has a value.
                let unchecked = both.unchecked.read_with(token).unwrap_or_default();
                Answer::Values(Values { checked, unchecked })
            }
            Request::Write { register, token, values } => {
                let both = self.registers.entry(register).or_default();
                if let Some(value) = values.checked {
                    both.checked.write(token, value);
                }
                both.unchecked.write(token, values.unchecked);
                Answer::Written
            }
            Request::Balances(accounts) => {
                let checked = self.checked.read(&accounts);
                let unchecked = self.unchecked.read(&accounts).unwrap_or_default();
                Answer::Balances(Balances { checked, unchecked })
            }
            Request::Transfer(Entries { checked, unchecked }) => {
                if let Some(entries) = checked {
                    self.checked.transfer(&entries);
                }
                self.unchecked.transfer(&unchecked);
                Answer::Written
            }
            Request::Count => {
                let money =
                    Seen { checked: self.checked.writes(), unchecked: self.unchecked.writes() };
                let each = self.registers.values().map(|both| Seen {
                    checked: both.checked.writes(),
                    unchecked: both.unchecked.writes(),
                });
                Answer::Seen(each.fold(money, |sum, one| sum + one))
            }
        }
    }
}
