//! The ways in which a network harms every connection, as values: what a suite for any store asks
//! of the proxies in front of it.

use std::io;
use std::time::Duration;

use super::state::lock;
use super::{Close, Direction, NewConnections, Proxy};

/// Something that befalls all connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NetworkFault {
    /// Nothing reaches the server any more; its replies would.
    RequestsLost,
    /// The server does what it is asked, and nobody hears of it.
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

impl Proxy {
    /// Brings this over all connections, until [`heal`](Self::heal) where it lasts.
    ///
    /// # Errors
    /// As [`cut`](Self::cut).
    pub async fn apply(&self, fault: NetworkFault) -> io::Result<()> {
        match fault {
            NetworkFault::RequestsLost => self.black_hole(Direction::ToServer),
            NetworkFault::RepliesLost => self.black_hole(Direction::ToClient),
            NetworkFault::Resets => self.close_connections(Close::Reset).await,
            NetworkFault::Flapping => {
                let (down, up) = (Duration::from_millis(330), Duration::from_millis(670));
                self.flap(down, up, Close::Reset, NewConnections::Closed).await?;
            }
            NetworkFault::Garbage => {
                self.inject(b"\x00\xff\x13 garbage \xfe\r\n\x7f\x00\x00");
            }
            NetworkFault::Torn => self.tear_next_reply(),
            NetworkFault::Flipped => {
                self.mangle_next_reply(|reply| reply.iter_mut().for_each(|byte| *byte ^= 0xff));
            }
            NetworkFault::Narrow => {
                self.throttle(Direction::ToServer, 20_000);
                self.throttle(Direction::ToClient, 20_000);
            }
        }
        Ok(())
    }

    /// Passes half of the next reply, whichever it is, and ends its connection by a FIN. It counts
    /// as dropped. Needs a framing.
    pub fn tear_next_reply(&self) {
        lock(&self.control.shared.armed).tear = true;
    }

    /// Lets each connection pass so many bytes a second in this direction; 0 is no limit. Bytes
    /// wait for each other, unlike behind a [`delay`](Self::delay).
    pub fn throttle(&self, direction: Direction, bytes_per_second: usize) {
        self.set(|settings| settings.rate[direction as usize] = bytes_per_second);
    }
}
