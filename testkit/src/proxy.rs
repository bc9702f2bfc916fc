//! A TCP proxy that breaks connections on purpose.
//!
//! What a network does to a lock client (half-open connections, lost replies, flapping links) can
//! seldom be had on demand on one machine; here each fault is a method, and its effect an event to
//! wait for instead of a sleep. The proxy needs no privileges and touches nothing but the
//! connections made through it, so it is safe against a server that is not the test's own.
//!
//! # How faults apply
//! - Faults decide at the proxy's exit: they apply to all connections, old and new, and also to
//!   what the proxy has already received but not yet passed on. Shortening a delay lets waiting
//!   bytes go earlier, a black hole swallows them, cutting throws them away. Bytes that are in the
//!   peer's kernel already are out of reach.
//! - The end of a stream (FIN, RST) is delayed, held and swallowed just as bytes are.
//! - A connection that has lost bytes is reset when the loss ends, as TCP never delivers a stream
//!   with a hole. For a partition that the connection survives, use [`Proxy::stall`].
//! - At most 1 MiB per direction and connection waits in the proxy. When it is full, the proxy
//!   stops reading, and TCP holds the sender back.
//! - The operating system accepts connections before the proxy sees them, so that connecting
//!   succeeds in a black hole or behind a delay, unlike over a real line.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencelock_core::BootClock;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::port::Port;

mod acceptor;
mod connection;
pub mod framing;
mod front;
mod kinds;
mod network_fault;
mod outlet;
mod splitter;
mod state;
mod stats;

pub use framing::{Frame, Framing};
pub use front::Front;
pub use kinds::{AfterDrop, Close, Direction};
pub use network_fault::{NetworkFault, NewConnections, lose_one_reply};
pub use state::DropReply;
pub use stats::{Stats, Traffic};

use acceptor::{Acceptor, Admission, Order};
use kinds::{Item, What};
use state::{Path, Settings, Shared, lock};

/// A TCP proxy on a loopback port of its own. Dropping it closes the port and all connections and
/// ends all its tasks.
pub struct Proxy {
    addr: SocketAddr,
    /// None where the port is a server's.
    _port: Option<Port>,
    control: Control,
    acceptor: JoinHandle<()>,
    flap: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    /// The number of replies dropped and mangled when the last such fault was armed.
    before: Mutex<Stats>,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and passes everything on to `upstream` (`host:port`),
    /// which need not be up yet: a client is reset if it is not up when the client connects.
    ///
    /// # Errors
    /// When no port can be listened on.
    pub async fn start(upstream: impl ToString) -> io::Result<Self> {
        Self::on_free_port(upstream.to_string(), None).await
    }

    /// Like [`start`](Self::start), with requests and replies distinguished by `framing`.
    ///
    /// # Errors
    /// When no port can be listened on.
    pub async fn framed(upstream: impl ToString, framing: Framing) -> io::Result<Self> {
        Self::on_free_port(upstream.to_string(), Some(framing)).await
    }

    /// At the port of a server on 127.0.0.1, on another loopback address of as many characters. To
    /// clients, the servers seem to be there: see [`Front`].
    async fn in_place_of(server: SocketAddr, host: Ipv4Addr, framing: Framing) -> io::Result<Self> {
        let listener = TcpListener::bind((host, server.port())).await?;
        let shared = Shared::new(server.to_string(), Some(framing), Some(host));
        Self::with(listener, None, shared)
    }

    /// A proxy for connections that others accept and make, as [`carry`](Self::carry) says. Its own
    /// port leads nowhere.
    pub(crate) async fn wire() -> io::Result<Self> {
        Self::on_free_port(String::new(), None).await
    }

    async fn on_free_port(upstream: String, framing: Option<Framing>) -> io::Result<Self> {
        let (port, listener) = listen().await?;
        Self::with(listener, Some(port), Shared::new(upstream, framing, None))
    }

    fn with(listener: TcpListener, port: Option<Port>, shared: Arc<Shared>) -> io::Result<Self> {
        let (orders, inbox) = mpsc::channel(1);
        let addr = listener.local_addr()?;
        let acceptor = Acceptor::new(listener, Arc::clone(&shared), inbox)?;
        Ok(Self {
            addr,
            _port: port,
            control: Control { shared, orders },
            acceptor: tokio::spawn(acceptor.run()),
            flap: tokio::sync::Mutex::default(),
            before: Mutex::default(),
        })
    }

    /// Where clients connect.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Passes connections that are made from now on to another upstream, as an address that a
    /// failover moves. Those that exist stay where they are.
    pub fn lead_to(&self, upstream: SocketAddr) {
        self.control.shared.lead_to(upstream.to_string());
    }

    /// Takes over a client's connection and the server's that belongs to it, and breaks them like
    /// those that it has made itself. While the proxy is cut, both are closed.
    pub(crate) async fn carry(&self, client: TcpStream, server: TcpStream) {
        // It fails when the proxy has ended, and closes both.
        let _ = self.control.orders.send(Order::Carry { client, server }).await;
    }

    /// Holds each chunk of this direction back for this long. The order is kept and chunks wait
    /// side by side: it is a delay, not a limit of throughput (up to the bound on what waits).
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.set(|settings| settings.delay[direction as usize] = delay);
    }

    /// Stands for a network: from now on each chunk takes half of `round_trip` longer in each
    /// direction, to a tenth of a millisecond or so. Not a fault: healing does not end it.
    ///
    /// # Errors
    /// When no file descriptor is left for a timer.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn set_round_trip(&self, round_trip: Duration) -> io::Result<()> {
        let clock = &self.control.shared.clock;
        if clock.get().is_none() {
            // A second one, of another thread, ends unused.
            let _ = clock.set(BootClock::start()?);
        }
        self.set(|settings| settings.distance = round_trip / 2);
        Ok(())
    }

    /// Swallows everything in this direction; connections stay up. [`heal`](Self::heal) resets
    /// those that have lost something.
    pub fn black_hole(&self, direction: Direction) {
        self.set(|settings| settings.path[direction as usize] = Path::BlackHole);
    }

    /// Holds everything in this direction until [`heal`](Self::heal), and delivers it then: a
    /// partition short enough for TCP's retransmissions to bridge.
    pub fn stall(&self, direction: Direction) {
        self.set(|settings| settings.path[direction as usize] = Path::Stalled);
    }

    /// Ends a [`black_hole`](Self::black_hole) or [`stall`](Self::stall) of one direction and
    /// nothing else. Connections that have lost something in it are reset.
    pub fn pass(&self, direction: Direction) {
        self.set(|settings| settings.path[direction as usize] = Path::Open);
    }

    /// Ends the connections that exist now; new ones are welcome. They are closed on return.
    pub async fn close_connections(&self, how: Close) {
        self.control.close_connections(how).await;
    }

    /// Ends all connections and takes no new ones until [`heal`](Self::heal). Stops flapping.
    ///
    /// # Errors
    /// When a port that was refusing cannot be listened on again, to accept and close.
    pub async fn cut(&self, existing: Close, new: NewConnections) -> io::Result<()> {
        self.stop_flapping().await;
        self.control.cut(existing, new).await
    }

    /// Cuts the proxy now, lets it up again after `down`, cuts it after `up` and so on until
    /// [`heal`](Self::heal). The first cut has happened on return. Other faults stay on.
    ///
    /// # Errors
    /// As [`cut`](Self::cut).
    pub async fn flap(
        &self,
        down: Duration,
        up: Duration,
        existing: Close,
        new: NewConnections,
    ) -> io::Result<()> {
        let mut flap = self.flap.lock().await;
        stop(flap.take()).await;
        self.control.cut(existing, new).await?;
        let control = self.control.clone();
        *flap = Some(tokio::spawn(async move {
            loop {
                sleep(down).await;
                // A port that cannot be bound again stays refused for one more period.
                let _ = control.switch(Admission::Open).await;
                sleep(up).await;
                let _ = control.cut(existing, new).await;
            }
        }));
        Ok(())
    }

    /// Swallows the reply to one request, and then ends the connection as it says. Everything
    /// before that reply passes, and so does everything on other connections.
    ///
    /// Requests are counted over all connections as they leave the proxy towards the server, so
    /// those that a delay holds count too; replies owed from before do not. Arming again replaces
    /// what has not struck. A reply that never comes, because the connection ended in between, is
    /// not replaced by another.
    ///
    /// # Errors
    /// `Unsupported` for a proxy without a framing, `InvalidInput` for the 0th request.
    pub fn drop_reply(&self, which: DropReply) -> io::Result<()> {
        if self.control.shared.framing.is_none() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a proxy without a framing cannot distinguish replies: use Proxy::framed",
            ));
        }
        if which.to_go == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "requests count from 1"));
        }
        lock(&self.before).dropped_replies = self.stats().dropped_replies;
        lock(&self.control.shared.armed).drop = Some(which);
        Ok(())
    }

    /// Waits until the reply that [`drop_reply`](Self::drop_reply) chose last was swallowed.
    pub async fn dropped_reply(&self) {
        let before = lock(&self.before).dropped_replies;
        self.wait_for(|stats| stats.dropped_replies > before).await;
    }

    /// Changes the next reply on its way to a client, whichever it is: flips its bits, cuts it
    /// short, replaces it by garbage. Without a framing, the next chunk.
    pub fn mangle_next_reply(&self, mangle: impl FnOnce(&mut Vec<u8>) + Send + 'static) {
        lock(&self.before).mangled_replies = self.stats().mangled_replies;
        lock(&self.control.shared.armed).mangle = Some(Box::new(mangle));
    }

    /// Waits until the reply that [`mangle_next_reply`](Self::mangle_next_reply) was meant for
    /// has been mangled.
    pub async fn mangled_reply(&self) {
        let before = lock(&self.before).mangled_replies;
        self.wait_for(|stats| stats.mangled_replies > before).await;
    }

    /// Sends bytes to every connected client that no server has sent. They come after
    /// what the server sent before, with a framing after the last whole message. Returns the
    /// number of connections.
    pub fn inject(&self, bytes: &[u8]) -> usize {
        let links = self.control.shared.links();
        let injected = links
            .iter()
            .filter(|link| link.to_client.send(Item::new(What::Injected(bytes.to_vec()))).is_ok());
        injected.count()
    }

    /// Ends all faults. What was stalled or delayed is delivered, connections that have lost
    /// something are reset, and that is done on return.
    ///
    /// # Errors
    /// When the port cannot be listened on again after it was refused.
    pub async fn heal(&self) -> io::Result<()> {
        self.stop_flapping().await;
        *lock(&self.control.shared.armed) = state::Armed::default();
        let opened = self.control.switch(Admission::Open).await;
        self.set(|settings| {
            let Settings { heals, distance, .. } = *settings;
            *settings = Settings { heals: heals + 1, distance, ..Settings::default() };
        });
        let shared = &self.control.shared;
        let torn = shared.links().into_iter().filter(|link| link.is_torn()).map(|link| link.id);
        shared.gone(&torn.collect::<Vec<_>>()).await;
        opened
    }

    /// What has gone through so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        *self.control.shared.stats.borrow()
    }

    /// Waits until the statistics satisfy this, and returns them. It is asked after every change,
    /// though not for every intermediate state when changes come fast.
    pub async fn wait_for(&self, wanted: impl Fn(&Stats) -> bool) -> Stats {
        let mut stats = self.control.shared.stats.subscribe();
        match stats.wait_for(wanted).await {
            Ok(stats) => *stats,
            // The sender is part of `self`.
            Err(_) => self.stats(),
        }
    }

    /// Waits until exactly this many connections are up.
    pub async fn connections(&self, n: u64) {
        self.wait_for(|stats| stats.open == n).await;
    }

    /// Waits until at least this many connections have been accepted since the start.
    pub async fn accepted(&self, n: u64) {
        self.wait_for(|stats| stats.accepted >= n).await;
    }

    fn set(&self, change: impl FnOnce(&mut Settings)) {
        self.control.shared.settings.send_modify(change);
    }

    async fn stop_flapping(&self) {
        stop(self.flap.lock().await.take()).await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.acceptor.abort();
        if let Some(flap) = self.flap.get_mut().take() {
            flap.abort();
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("addr", &self.addr())
            .field("upstream", &self.control.shared.upstream())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// What the proxy and its flapping task do to the connections.
#[derive(Clone)]
struct Control {
    shared: Arc<Shared>,
    orders: mpsc::Sender<Order>,
}

impl Control {
    async fn cut(&self, existing: Close, new: NewConnections) -> io::Result<()> {
        // In this order, or a client that reconnects at once would slip through.
        let switched = self.switch(Admission::Shut(new)).await;
        self.close_connections(existing).await;
        self.shared.stats.send_modify(|stats| stats.cuts += 1);
        switched
    }

    async fn close_connections(&self, how: Close) {
        let links = self.shared.links();
        for link in &links {
            link.end.send_replace(Some(how));
        }
        self.shared.gone(&links.iter().map(|link| link.id).collect::<Vec<_>>()).await;
    }

    async fn switch(&self, admission: Admission) -> io::Result<()> {
        let ended = || io::Error::other("the proxy has ended");
        let (done, answer) = oneshot::channel();
        self.orders.send(Order::Switch { admission, done }).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}

async fn listen() -> io::Result<(Port, TcpListener)> {
    const ATTEMPTS: u32 = 20;
    for _ in 1..ATTEMPTS {
        let port = Port::lease()?;
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).await {
            return Ok((port, listener));
        }
    }
    let port = Port::lease()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).await?;
    Ok((port, listener))
}

/// Ends a task and waits until it has ended, so that it cannot act afterwards.
async fn stop(task: Option<JoinHandle<()>>) {
    if let Some(task) = task {
        task.abort();
        // The only error is that it was aborted.
        let _ = task.await;
    }
}
