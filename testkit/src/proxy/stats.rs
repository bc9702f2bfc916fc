//! What a proxy counts.
//!
//! The counts are the events of a test: it waits until enough has been received or
//! dropped, and needs no sleep. They are of all connections together, since a test seldom knows
//! which of a client's connections carries what.

/// What has gone through a proxy so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Connections accepted while the proxy was up.
    pub accepted: u64,
    /// Connections that are up now, on both sides.
    pub open: u64,
    /// Bytes from clients.
    pub to_server: Traffic,
    /// Bytes from the server.
    pub to_client: Traffic,
    /// Requests passed on. Always 0 without a framing, like the next four.
    pub requests: u64,
    /// Replies passed on.
    pub replies: u64,
    /// Replies dropped by [`Proxy::drop_reply`](super::Proxy::drop_reply).
    pub dropped_replies: u64,
    /// Replies changed by [`Proxy::mangle_next_reply`](super::Proxy::mangle_next_reply); chunks of them without a framing.
    pub mangled_replies: u64,
    /// Streams that turned out not to be the framing's protocol and passed uncounted since.
    pub garbled: u64,
    /// How often the proxy was cut, by [`Proxy::cut`](super::Proxy::cut) or [`Proxy::flap`](super::Proxy::flap).
    pub cuts: u64,
}

/// The bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Traffic {
    /// Received by the proxy.
    pub received: u64,
    /// Handed to the receiver's socket, injected bytes included.
    pub forwarded: u64,
}
