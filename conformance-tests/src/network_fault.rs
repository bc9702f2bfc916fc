//! The faults of a network, as values: for the suite, for proxies, and for whole deployments.

use std::time::Duration;

/// A fault of the connections between all clients and a store, until it is healed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NetworkFault {
    /// Nothing passes in either direction, and connections stay up.
    CutOff,
    /// No request reaches the server; its replies would pass.
    RequestsLost,
    /// The server executes requests, and its replies are lost.
    RepliesLost,
    /// Connections are reset; new ones are accepted.
    ConnectionsReset,
    /// The line goes down and up once a second.
    Flapping {
        /// How long it is down.
        down: Duration,
        /// What happens to clients that connect meanwhile.
        new: NewConnections,
    },
    /// Each reply arrives this much later.
    SlowReplies(Duration),
    /// The reply to the next request is lost, and its connection is reset.
    ReplyDropped,
    /// Requests are held back, and delivered all at once when it is healed.
    Stalled,
    /// Bytes that belong to no protocol come before the next reply.
    Garbage,
    /// The next reply ends in its middle, and the connection with it.
    Torn,
    /// The next reply arrives with every bit of it flipped.
    Flipped,
    /// The line carries 20 kB a second.
    Narrow,
}

/// What happens to clients that connect while the line is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NewConnections {
    /// There is no listener: connecting fails.
    Refused,
    /// Connecting succeeds, and a FIN follows.
    Closed,
}
