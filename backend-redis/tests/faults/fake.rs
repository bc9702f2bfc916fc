//! A simulated server whose replies a test chooses, such as those that no real one gives on demand.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// One call of a script.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The locks' keys, one for each step.
    pub(crate) locks: Vec<String>,
    /// The script's digest.
    digest: String,
    /// In a batch, the name, counts and values of each step.
    values: Vec<String>,
}

impl Call {
    /// Whether the call is a batch.
    pub(crate) fn is_shared(&self) -> bool {
        self.locks.len() > 1
    }

    /// The reply of a correct server on which every lock is free.
    pub(crate) fn good(&self) -> String {
        if !self.is_shared() {
            return good(NAMES[&self.digest]);
        }
        let mut values = self.values.iter();
        let mut answer = format!("*{}\r\n", self.locks.len());
        while let (Some(name), Some(counts)) = (values.next(), values.next()) {
            answer += &good(name);
            let count = usize::from(counts.as_bytes()[1] - b'0');
            values.by_ref().take(count).for_each(drop);
        }
        answer
    }
}

/// The steps by the digests of their scripts.
static NAMES: LazyLock<HashMap<String, &str>> = LazyLock::new(|| {
    let digest = |text| redis::Script::new(text).get_hash().to_owned();
    fencelock_redis::scripts().into_iter().map(|(name, text)| (digest(text), name)).collect()
});

fn good(step: &str) -> String {
    match step {
        "attempt" => "$16\r\n1700000000000000\r\n".to_owned(),
        "check_waiters" => "*3\r\n:1000\r\n:0\r\n$0\r\n\r\n".to_owned(),
        _ => ":1\r\n".to_owned(),
    }
}

type Answer<Command, Reply> = Box<dyn Fn(&Command) -> Reply + Send + Sync>;

/// What the server replies to calls, and to some of the other commands.
struct Script {
    answer: Answer<Call, String>,
    other: Answer<str, Option<String>>,
}

/// Dropping it closes the port and all connections.
pub(crate) struct FakeRedis {
    addr: SocketAddr,
    calls: Arc<Mutex<Vec<Call>>>,
    _connections: JoinSet<()>,
}

impl FakeRedis {
    /// Replies to each call by `answer`, and to any other command with OK or nothing.
    pub(crate) async fn start(
        answer: impl Fn(&Call) -> String + Send + Sync + 'static,
    ) -> FakeRedis {
        FakeRedis::with(answer, |_| None).await
    }

    /// Replies to the commands that `other` knows by that.
    pub(crate) async fn with(
        answer: impl Fn(&Call) -> String + Send + Sync + 'static,
        other: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> FakeRedis {
        let script = Arc::new(Script { answer: Box::new(answer), other: Box::new(other) });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("a port");
        let calls = Arc::new(Mutex::new(Vec::new()));
        let mut connections = JoinSet::new();
        connections.spawn(listen(listener, script, calls.clone()));
        FakeRedis { addr, calls, _connections: connections }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn url(&self, params: &str) -> String {
        format!("redis://{}/0?{params}", self.addr)
    }

    /// The calls so far.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for FakeRedis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeRedis").field("addr", &self.addr).finish_non_exhaustive()
    }
}

async fn listen(listener: TcpListener, script: Arc<Script>, calls: Arc<Mutex<Vec<Call>>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(serve(stream, script.clone(), calls.clone()));
    }
}

/// Serves one client until it disconnects.
async fn serve(mut stream: TcpStream, script: Arc<Script>, calls: Arc<Mutex<Vec<Call>>>) {
    let mut heard = Vec::new();
    while let Ok(1..) = stream.read_buf(&mut heard).await {
        let mut answers = String::new();
        while let Some((words, length)) = command(&heard) {
            heard.drain(..length);
            if let Some(known) = (script.other)(&words[0]) {
                answers += &known;
                continue;
            }
            match words[0].as_str() {
                "EVALSHA" => {
                    let call = call(&words);
                    calls.lock().unwrap_or_else(PoisonError::into_inner).push(call.clone());
                    answers += &(script.answer)(&call);
                }
                "HELLO" => answers += "%1\r\n$5\r\nproto\r\n:3\r\n",
                // Its settings are unknown.
                "INFO" => answers += "$0\r\n\r\n",
                _ => answers += "+OK\r\n",
            }
        }
        if stream.write_all(answers.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn call(words: &[String]) -> Call {
    let keys: usize = words[2].parse().expect("a number of keys");
    let (keys, values) = words[3..].split_at(keys);
    let is_lock = |key: &&String| !key.starts_with('{');
    let locks = keys.iter().filter(is_lock).cloned().collect();
    Call { locks, digest: words[1].clone(), values: values.to_vec() }
}

/// The first command in `heard`, and its length; `None` until it is complete.
fn command(heard: &[u8]) -> Option<(Vec<String>, usize)> {
    let mut at = 0;
    let count = number(heard, &mut at)?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let length = number(heard, &mut at)?;
        let word = heard.get(at..at + length)?;
        words.push(String::from_utf8_lossy(word).into_owned());
        at += length + 2;
    }
    (at <= heard.len()).then_some((words, at))
}

/// The number in the line at `at`, after its type character.
fn number(heard: &[u8], at: &mut usize) -> Option<usize> {
    let rest = heard.get(*at..)?;
    let end = rest.windows(2).position(|two| two == b"\r\n")?;
    *at += end + 2;
    Some(std::str::from_utf8(&rest[1..end]).ok()?.parse().expect("a number"))
}
