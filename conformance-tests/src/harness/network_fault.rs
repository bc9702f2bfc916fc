//! The ways in which a network harms every connection, as values: what the suite asks of the proxies
//! in front of a store.

/// Something that befalls all connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NetworkFault {
    /// Nothing reaches the server any more; its replies would.
    RequestsLost,
    /// The server executes requests, and its replies are lost.
    RepliesLost,
    /// The connections there are end by an RST; new ones are welcome.
    Resets,
    /// Up and down once a second, down for a third of it.
    Flapping,
    /// Bytes that belong to no protocol come before the next reply.
    Garbage,
    /// The next reply ends in its middle, and the connection with it.
    Torn,
    /// The next reply arrives with every bit of it flipped.
    Flipped,
    /// A line that carries 20 kB a second.
    Narrow,
}
