//! The ways through a proxy, what travels on them, and how connections end.

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

/// What may wait per direction of a connection, and how much of a message is held to judge it.
pub(super) const WINDOW: usize = 1024 * 1024;

/// One way through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the client to the server.
    ToServer = 0,
    /// From the server to the client.
    ToClient = 1,
}

/// How the proxy ends connections, towards both peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Close {
    /// In order, by a FIN: what a server does that shuts down.
    Fin,
    /// Abortively, by an RST: what a host does that knows nothing of the connection.
    Reset,
}

/// What follows on a connection after one of its replies was dropped.
///
/// The connection cannot continue: a client that took the next reply for the missing one would
/// see a fault that no network has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterDrop {
    /// The connection ends by a FIN.
    Fin,
    /// The connection ends by an RST.
    Reset,
    /// The connection stays up, and swallows everything in both directions until it is closed by
    /// [`Proxy::heal`](super::Proxy::heal).
    BlackHole,
}

/// What travels through the proxy in one direction.
pub(super) struct Item {
    pub(super) at: Instant,
    pub(super) what: What,
    /// The share of the window, given back when the item leaves the queue.
    pub(super) _room: Option<OwnedSemaphorePermit>,
}

pub(super) enum What {
    Bytes(Vec<u8>),
    /// Bytes of the test's own, which no framing may see.
    Injected(Vec<u8>),
    Fin,
    Reset,
}

impl Item {
    pub(super) fn new(what: What) -> Self {
        Self { at: Instant::now(), what, _room: None }
    }
}
