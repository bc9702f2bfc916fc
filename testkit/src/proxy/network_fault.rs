//! What proxies do for each [`NetworkFault`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use fencelock_conformance::{NetworkFault, NewConnections};

use super::state::lock;
use super::{AfterDrop, Close, Direction, DropReply, Proxy};

impl Proxy {
    /// Applies `fault` to all connections, until [`heal`](Self::heal) where it lasts.
    ///
    /// # Errors
    /// As [`cut`](Self::cut) and [`drop_reply`](Self::drop_reply).
    pub async fn apply(&self, fault: NetworkFault) -> io::Result<()> {
        match fault {
            NetworkFault::CutOff => {
                self.black_hole(Direction::ToServer);
                self.black_hole(Direction::ToClient);
            }
            NetworkFault::RequestsLost => self.black_hole(Direction::ToServer),
            NetworkFault::RepliesLost => self.black_hole(Direction::ToClient),
            NetworkFault::ConnectionsReset => self.close_connections(Close::Reset).await,
            NetworkFault::Flapping { down, new } => {
                let up = Duration::from_secs(1).saturating_sub(down);
                self.flap(down, up, Close::Reset, new).await?;
            }
            NetworkFault::SlowReplies(by) => self.delay(Direction::ToClient, by),
            NetworkFault::ReplyDropped => self.drop_reply(DropReply::first(AfterDrop::Reset))?,
            NetworkFault::Stalled => self.stall(Direction::ToServer),
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

/// Swallows the reply to the next request that passes one of these proxies, and resets its
/// connection.
///
/// # Errors
/// As [`Proxy::drop_reply`].
pub fn lose_one_reply(proxies: &[Proxy]) -> io::Result<()> {
    // Which of them the next request takes is not known: the first one takes the loss from all.
    let lost = Arc::new(AtomicBool::new(false));
    for proxy in proxies {
        let lost = lost.clone();
        let is_first = move |_: &[u8]| !lost.swap(true, Ordering::SeqCst);
        proxy.drop_reply(DropReply::first(AfterDrop::Reset).matching(is_first))?;
    }
    Ok(())
}
