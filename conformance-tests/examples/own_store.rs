//! A complete store of your own across a network, and the suite that checks it:
//! `cargo run -p fencelock-conformance --example own_store`.
//!
//! The server stands for any that has keys with versions, compare-and-set, a clock, and watches. A lock
//! is one key: the record of its `Queue`, whose rules are the core's. Each method reads the record, changes
//! it, and writes it back unless another client did so first. Three things make that enough:
//!
//! - The time in the record is the server's, which answers it with each reading. The client's own clock
//!   says only until when this client relies on a grant.
//! - Requests may overtake each other. A release therefore always writes: a write of the same claim that
//!   is still on its way has an older version then, and fails.
//! - A record stays when its queue is empty, for the numbers in it. A server whose keys can end by
//!   themselves lets it end after a day.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use fencelock_conformance::{Backdoor, Harness, How, Params, Store};
use fencelock_core::backend::{
    Backoff, ClaimRegistry, Entry, LastNumbers, Now, Queue, QueueStep, Stage, StoreTime, closed,
    current_runtime, start_clock, unreachable,
};
use fencelock_core::sync::Mutex;
use fencelock_core::{
    Acquisition, AttemptOutcome, BootClock, Claim, Clock, DistributedLock, FencingToken, Label,
    Liveness, LockName, Locks, Mode, Modes, Order, OwnerToken, ParticipantId, Profile, Reach,
    ReleaseOutcome, RenewOutcome, RenewalPlan, Result, Snapshot, TokenOrder, Ttl, WaiterCheck,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

static PROFILE: Profile = Profile {
    store: "own",
    reach: Reach::Network,
    liveness: Liveness::Lease,
    renewal: RenewalPlan::ThirdOfTtl,
    longest_ttl: Ttl::MAX,
    order: Order::Arrival,
    modes: Modes::ALL,
    downgrade: true,
    tokens: TokenOrder::Process,
    max_local_handoffs: 1_024,
    cells: None,
    exclusion_fails_when: Cow::Borrowed(&[]),
};

/// How long a request may take.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// A waiter that has not been seen for so long is dead. The core checks each of them every two seconds.
const DEAD_AFTER: Duration = Duration::from_secs(10);
/// A waiter is marked as seen this long after the last time: each mark is a write.
const SEEN_EVERY: Duration = Duration::from_secs(3);

struct OwnStore {
    client: Arc<Client>,
    runtime: Handle,
    /// The claims that a change of their record may wake.
    claims: Arc<ClaimRegistry<OwnerToken>>,
    watching: AbortHandle,
}

impl OwnStore {
    async fn connect(server: SocketAddr, record_time: RecordTime) -> Result<Arc<OwnStore>> {
        let (client, runtime) = (Client::new(server, record_time)?, current_runtime()?);
        let (client, claims) = (Arc::new(client), Arc::default());
        // Before the first attempt: a change after a reading must not be missed.
        let watch = client.watch().await.map_err(no_answer)?;
        let watching = runtime.spawn(watch_on(client.clone(), watch, Arc::clone(&claims)));
        let watching = watching.abort_handle();
        Ok(Arc::new(OwnStore { client, runtime, claims, watching }))
    }

    /// Changes the record of a lock in one step, on the store's own runtime: a future that its caller does not
    /// poll must not keep others from theirs. Of one that is dropped, the last request may still be executed.
    async fn change<T: Send + 'static>(
        &self,
        lock: &LockName,
        write: Write,
        change: impl Fn(&mut QueueStep<'_, StoreTime>, StoreTime) -> T + Send + 'static,
    ) -> Result<T> {
        let (client, lock) = (self.client.clone(), lock.clone());
        let changing =
            async move { timeout(ANSWERED_WITHIN, client.change(&lock, write, change)).await };
        let changing = AbortOnDropHandle::new(self.runtime.spawn(changing));
        let changed = changing.await.map_err(|_| closed())?;
        changed.map_err(|_| unreachable("no answer"))?.map_err(no_answer)
    }
}

/// The time of a step, from the one that the server answered. For the tests of the suite, which make it
/// the client's own, as no store may.
pub(crate) type RecordTime = fn(answered: StoreTime, own: &BootClock) -> StoreTime;

/// A client of the server: a connection for each request under way, and one that watches.
struct Client {
    clock: BootClock,
    record_time: RecordTime,
    server: SocketAddr,
    idle: Mutex<Vec<Connection>>,
    /// One for each lock, by its hash: a hundred changes of one client would refuse each other's.
    turns: [tokio::sync::Mutex<()>; 64],
}

impl Client {
    fn new(server: SocketAddr, record_time: RecordTime) -> Result<Client> {
        let (clock, idle) = (start_clock()?, Mutex::default());
        let turns = std::array::from_fn(|_| tokio::sync::Mutex::default());
        Ok(Client { clock, record_time, server, idle, turns })
    }

    /// `write` says whether it is written also if it stays as it is.
    async fn change<T>(
        &self,
        lock: &LockName,
        write: Write,
        change: impl Fn(&mut QueueStep<'_, StoreTime>, StoreTime) -> T,
    ) -> io::Result<T> {
        let mut hasher = DefaultHasher::new();
        lock.key().hash(&mut hasher);
        let _turn = self.turns[hasher.finish() as usize % self.turns.len()].lock().await;
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(20));
        loop {
            let sent = self.clock.now();
            let there = self.ask(&Request::Read { key: lock.key().to_owned() }).await?;
            let now = (self.record_time)(StoreTime::from_nanos(there.now), &self.clock);
            let (mut queue, mut last) = there.record.parsed();
            queue
                .entries
                .retain(|entry| entry.is_granted() || now.duration_since(entry.waker) < DEAD_AFTER);
            // Whom to wake, each client sees in the change itself.
            let (result, _) =
                queue.change(Now::new(now, sent), &mut last, |queue| change(queue, now));
            let record = Record::of(&queue, last);
            if write == Write::IfChanged && record == there.record {
                return Ok(result);
            }
            let (key, version) = (lock.key().to_owned(), there.version);
            if self.ask(&Request::Swap { key, version, record }).await?.swapped {
                return Ok(result);
            }
            // Another client was first; the two must not meet again.
            tokio::time::sleep(backoff.next((sent, std::process::id()))).await;
        }
    }

    async fn open(&self) -> io::Result<Connection> {
        let stream = TcpStream::connect(self.server).await?;
        stream.set_nodelay(true)?;
        Ok(BufReader::new(stream))
    }

    async fn ask(&self, request: &Request) -> io::Result<Reply> {
        let idle = self.idle.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.open().await?,
        };
        send(&mut connection, request).await?;
        let reply = receive(&mut connection).await?;
        self.idle.lock().push(connection);
        Ok(reply)
    }

    async fn watch(&self) -> io::Result<Connection> {
        let mut connection = self.open().await?;
        send(&mut connection, &Request::Watch).await?;
        receive::<Reply>(&mut connection).await.map(|_| connection)
    }
}

#[derive(PartialEq)]
enum Write {
    IfChanged,
    Always,
}

impl DistributedLock for OwnStore {
    type Acquisition = OwnAcquisition;

    fn profile(&self) -> &Profile {
        &PROFILE
    }

    fn clock(&self) -> &dyn Clock {
        &self.client.clock
    }

    fn begin(self: &Arc<Self>, claim: Arc<Claim>) -> OwnAcquisition {
        self.claims.insert(*claim.owner(), &claim);
        OwnAcquisition { store: self.clone(), claim }
    }

    async fn renew(&self, held: &OwnAcquisition) -> Result<RenewOutcome> {
        held.change(Write::IfChanged, |queue, claim, _| queue.renew(claim)).await
    }

    async fn check_waiters(
        &self,
        lock: &LockName,
        waiting: &[&OwnAcquisition],
    ) -> Result<Vec<WaiterCheck>> {
        let claims: Vec<_> = waiting.iter().map(|waiter| waiter.claim.clone()).collect();
        let check = move |queue: &mut QueueStep<'_, StoreTime>, now: StoreTime| {
            for entry in queue.entries.iter_mut() {
                let is_ours = claims.iter().any(|claim| *claim.owner() == entry.owner);
                if is_ours && now.duration_since(entry.waker) >= SEEN_EVERY {
                    entry.waker = now;
                }
            }
            queue.check(claims.iter().map(|claim| &**claim))
        };
        self.change(lock, Write::IfChanged, check).await
    }

    async fn inspect(&self, lock: &LockName) -> Result<Snapshot> {
        self.change(lock, Write::IfChanged, |queue, _| queue.snapshot()).await
    }

    async fn evict(&self, lock: &LockName, who: &ParticipantId) -> Result<ReleaseOutcome> {
        let who = who.clone();
        self.change(lock, Write::IfChanged, move |queue, _| queue.evict(&who)).await
    }

    async fn close(&self) -> Result<()> {
        self.watching.abort();
        Ok(())
    }
}

impl Drop for OwnStore {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

struct OwnAcquisition {
    store: Arc<OwnStore>,
    claim: Arc<Claim>,
}

impl OwnAcquisition {
    async fn change<T: Send + 'static>(
        &self,
        write: Write,
        change: fn(&mut QueueStep<'_, StoreTime>, &Claim, StoreTime) -> T,
    ) -> Result<T> {
        let claim = self.claim.clone();
        let change = move |queue: &mut QueueStep<'_, _>, now| change(queue, &claim, now);
        self.store.change(self.claim.name(), write, change).await
    }
}

impl Acquisition for OwnAcquisition {
    fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    async fn attempt(&self) -> Result<AttemptOutcome> {
        let attempt = |queue: &mut QueueStep<'_, _>, claim: &Claim, now| {
            let mine = queue.entries.iter_mut().find(|entry| entry.owner == *claim.owner());
            mine.into_iter().for_each(|entry| entry.waker = now);
            queue.attempt(claim, now)
        };
        self.change(Write::IfChanged, attempt).await
    }

    async fn release(&self) -> Result<ReleaseOutcome> {
        self.store.claims.remove(self.claim.owner());
        // An attempt that was dropped may still be on its way: it must find another version.
        self.change(Write::Always, |queue, claim, _| queue.release(claim)).await
    }

    async fn downgrade(&self) -> Result<RenewOutcome> {
        self.change(Write::IfChanged, |queue, claim, _| queue.downgrade(claim)).await
    }
}

/// Wakes the claims that a change concerns: those that it grants the lock, and those that it removes.
async fn watch_on(
    client: Arc<Client>,
    mut watch: Connection,
    claims: Arc<ClaimRegistry<OwnerToken>>,
) {
    let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
    loop {
        while let Ok(Change { before, after }) = receive(&mut watch).await {
            let granted = after.entries.iter().filter(|entry| entry.stage == GRANTED);
            let is_gone = |owner| after.entries.iter().all(|entry| entry.owner != owner);
            let gone = before.entries.iter().filter(|entry| is_gone(entry.owner));
            granted.chain(gone).for_each(|entry| claims.wake(&OwnerToken::from_bytes(entry.owner)));
        }
        loop {
            tokio::time::sleep(backoff.next(0)).await;
            if let Ok(again) = client.watch().await {
                watch = again;
                break;
            }
        }
        // What changed meanwhile was not seen.
        claims.wake_all();
    }
}

fn no_answer(cause: io::Error) -> fencelock_core::Error {
    unreachable("the server cannot be asked").caused_by(cause)
}

/// A `Queue` with its numbers, as it is stored.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
struct Record {
    ticket: u64,
    token: u64,
    entries: Vec<StoredEntry>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct StoredEntry {
    ticket: u64,
    owner: [u8; 16],
    mode: How,
    tokens: u32,
    label: String,
    since: u64,
    /// When the client of a waiter last said that it lives.
    seen: u64,
    stage: u8,
    token: u64,
    until: u64,
}

const WAITS: u8 = 0;
const LAPSED: u8 = 1;
const GRANTED: u8 = 2;
const HELD: u8 = 3;

impl Record {
    fn of(queue: &Queue<StoreTime>, last: LastNumbers) -> Record {
        let entries = queue.entries.iter().map(|entry| {
            let (stage, token, until) = match entry.stage {
                Stage::Waits => (WAITS, 0, 0),
                Stage::Lapsed => (LAPSED, 0, 0),
                Stage::Granted { token, until } => (GRANTED, token.get(), until.as_nanos()),
                Stage::Held { token, until } => (HELD, token.get(), until.as_nanos()),
            };
            let mode = match entry.mode {
                Mode::Exclusive => How::Exclusive,
                Mode::Shared => How::Shared,
                Mode::Permits(permits) => How::Permits { n: permits.n(), limit: permits.limit() },
            };
            StoredEntry {
                ticket: entry.ticket,
                owner: entry.owner.reveal().into_bytes(),
                mode,
                tokens: entry.tokens,
                label: entry.label.to_string(),
                since: entry.since.as_nanos(),
                seen: entry.waker.as_nanos(),
                stage,
                token,
                until,
            }
        });
        Record { ticket: last.ticket, token: last.token, entries: entries.collect() }
    }

    fn parsed(&self) -> (Queue<StoreTime>, LastNumbers) {
        let entries = self.entries.iter().filter_map(|entry| {
            let token = FencingToken::new(entry.token);
            let until = StoreTime::from_nanos(entry.until);
            Some(Entry {
                ticket: entry.ticket,
                owner: OwnerToken::from_bytes(entry.owner),
                mode: entry.mode.mode()?,
                tokens: entry.tokens,
                label: Label::new(&entry.label),
                since: StoreTime::from_nanos(entry.since),
                stage: match entry.stage {
                    WAITS => Stage::Waits,
                    LAPSED => Stage::Lapsed,
                    GRANTED => Stage::Granted { token, until },
                    _ => Stage::Held { token, until },
                },
                waker: StoreTime::from_nanos(entry.seen),
            })
        });
        let last = LastNumbers { ticket: self.ticket, token: self.token };
        (Queue { entries: entries.collect() }, last)
    }
}

/// What a client sends: a line of JSON.
#[derive(Serialize, Deserialize)]
enum Request {
    Read {
        key: String,
    },
    /// Writes if the version is still that of the reading.
    Swap {
        key: String,
        version: u64,
        record: Record,
    },
    /// Reports each change from now on.
    Watch,
}

#[derive(Default, Serialize, Deserialize)]
struct Reply {
    version: u64,
    record: Record,
    swapped: bool,
    /// The server's clock.
    now: u64,
}

#[derive(Serialize, Deserialize)]
struct Change {
    before: Record,
    after: Record,
}

type Connection = BufReader<TcpStream>;

async fn send(connection: &mut Connection, message: &impl Serialize) -> io::Result<()> {
    let line = serde_json::to_string(message)? + "\n";
    connection.write_all(line.as_bytes()).await
}

async fn receive<T: for<'de> Deserialize<'de>>(connection: &mut Connection) -> io::Result<T> {
    let mut line = String::new();
    match connection.read_line(&mut line).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(serde_json::from_str(&line)?),
    }
}

/// The server: keys with versions.
struct Server {
    started: Instant,
    data: Mutex<Data>,
}

#[derive(Default)]
struct Data {
    keys: HashMap<String, (u64, Record)>,
    watches: Vec<UnboundedSender<String>>,
}

impl Server {
    async fn start() -> io::Result<(SocketAddr, Arc<Server>)> {
        let server = Arc::new(Server { started: Instant::now(), data: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, serving) = (listener.local_addr()?, server.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = serving.clone();
                let _ = stream.set_nodelay(true);
                tokio::spawn(async move { server.serve(BufReader::new(stream)).await });
            }
        });
        Ok((address, server))
    }

    /// Ends with the connection.
    async fn serve(&self, mut client: Connection) -> io::Result<()> {
        let mut changes = loop {
            let request = receive(&mut client).await?;
            let (watch, changes) = unbounded_channel();
            let is_watch = matches!(request, Request::Watch);
            let reply = self.answer(request, watch);
            send(&mut client, &reply).await?;
            if is_watch {
                break changes;
            }
        };
        loop {
            tokio::select! {
                Some(change) = changes.recv() => client.write_all(change.as_bytes()).await?,
                // It asks nothing more, so this is its end.
                _ = client.fill_buf() => return Ok(()),
            }
        }
    }

    fn answer(&self, request: Request, watch: UnboundedSender<String>) -> Reply {
        let mut data = self.data.lock();
        let mut reply = Reply::default();
        match request {
            Request::Read { key } => {
                (reply.version, reply.record) = data.keys.get(&key).cloned().unwrap_or_default();
            }
            Request::Swap { key, version, record } => {
                let there = data.keys.entry(key).or_default();
                reply.swapped = there.0 == version;
                if reply.swapped {
                    let before = std::mem::replace(there, (version + 1, record.clone())).1;
                    data.notify(&Change { before, after: record });
                }
            }
            Request::Watch => data.watches.push(watch),
        }
        reply.now = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        reply
    }
}

impl Data {
    fn notify(&mut self, change: &Change) {
        let change = serde_json::to_string(change).expect("plain data") + "\n";
        self.watches.retain(|watch| watch.send(change.clone()).is_ok());
    }
}

pub(crate) struct OwnHarness(pub(crate) RecordTime);

/// What one behaviour uses: a server of its own, and the prefix of its names.
struct OwnPart(SocketAddr, Arc<Server>, String, RecordTime);

async fn connect(server: SocketAddr, time: RecordTime, params: &Params) -> Result<Locks> {
    Locks::new(OwnStore::connect(server, time).await?, "own://", params.settings()?)
}

#[async_trait]
impl Harness for OwnHarness {
    fn name(&self) -> &str {
        "own"
    }

    async fn open(&self, prefix: &str) -> Result<Box<dyn Store>> {
        let (address, server) = Server::start().await.map_err(no_answer)?;
        Ok(Box::new(OwnPart(address, server, prefix.to_owned(), self.0)))
    }

    async fn connect_peer(&self, address: &str, params: &Params) -> Result<Locks> {
        connect(address.parse().expect("as peer_address gave it"), self.0, params).await
    }
}

#[async_trait]
impl Store for OwnPart {
    async fn connect(&self, params: &Params) -> Result<Locks> {
        connect(self.0, self.3, params).await
    }

    fn backdoors(&self) -> &[Backdoor] {
        &[Backdoor::Inspect, Backdoor::Expire, Backdoor::Processes]
    }

    async fn leftovers(&self) -> Result<Vec<String>> {
        let data = self.1.data.lock();
        let used = data.keys.iter().filter(|(_, (_, record))| !record.entries.is_empty());
        Ok(used.map(|(key, _)| key.clone()).collect())
    }

    async fn is_locked(&self, name: &str) -> Result<bool> {
        let (data, name) = (self.1.data.lock(), LockName::with_prefix(&self.2, name)?);
        let record = data.keys.get(name.key()).map(|(_, record)| record);
        Ok(record.is_some_and(|it| it.entries.iter().any(|entry| entry.stage >= GRANTED)))
    }

    async fn expire(&self, name: &str) -> Result<()> {
        let (mut data, name) = (self.1.data.lock(), LockName::with_prefix(&self.2, name)?);
        if let Some((version, record)) = data.keys.get_mut(name.key()) {
            record.entries.retain(|entry| entry.stage < GRANTED);
            *version += 1;
        }
        Ok(())
    }

    fn peer_address(&self) -> String {
        self.0.to_string()
    }
}

fn main() {
    fencelock_conformance::main(OwnHarness(|answered, _| answered));
}
