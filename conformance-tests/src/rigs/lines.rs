//! Faults of the lines between clients and servers, for every store that is reached through
//! proxies.

use std::io;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep};

use super::{Fault, unknown};
use crate::proxy::{AfterDrop, Close, Direction, DropReply, Framing, NewConnections, Proxy};

/// A proxy before each server.
#[derive(Debug)]
pub(super) struct Lines(Vec<Proxy>);

impl Lines {
    pub(super) const FAULTS: [Fault; 8] = [
        Fault::CutOff,
        Fault::RequestsLost,
        Fault::RepliesLost,
        Fault::ConnectionsReset,
        Fault::Flapping,
        Fault::SlowReplies,
        Fault::RepliesDropped,
        Fault::Stalled,
    ];

    pub(super) async fn to(
        servers: impl IntoIterator<Item = String>,
        framing: Framing,
    ) -> io::Result<Lines> {
        let proxies = servers.into_iter().map(|server| Proxy::framed(server, framing));
        Ok(Lines(try_join_all(proxies).await?))
    }

    /// `host:port` of each, separated by commas.
    pub(super) fn hosts(&self) -> String {
        self.0.iter().map(|line| line.addr().to_string()).collect::<Vec<_>>().join(",")
    }

    /// The fault on all lines.
    pub(super) async fn inflict(&self, fault: Fault, during: Duration) -> io::Result<()> {
        self.inflict_on(self.0.len(), fault, during).await
    }

    /// The fault on the first `count` lines.
    pub(super) async fn inflict_on(
        &self,
        count: usize,
        fault: Fault,
        during: Duration,
    ) -> io::Result<()> {
        let lines = &self.0[..count];
        match fault {
            Fault::CutOff => lines.iter().for_each(|line| {
                line.black_hole(Direction::ToServer);
                line.black_hole(Direction::ToClient);
            }),
            Fault::RequestsLost => lines.iter().for_each(|it| it.black_hole(Direction::ToServer)),
            Fault::RepliesLost => lines.iter().for_each(|it| it.black_hole(Direction::ToClient)),
            Fault::SlowReplies => {
                let by = Duration::from_millis(200);
                lines.iter().for_each(|line| line.delay(Direction::ToClient, by));
            }
            Fault::Flapping => {
                let half = Duration::from_millis(500);
                for line in lines {
                    line.flap(half, half, Close::Reset, NewConnections::Refused).await?;
                }
            }
            Fault::ConnectionsReset | Fault::RepliesDropped | Fault::Stalled => {
                return repeat(lines, fault, during).await;
            }
            other => return Err(unknown(other)),
        }
        sleep(during).await;
        heal(lines).await
    }
}

async fn heal(lines: &[Proxy]) -> io::Result<()> {
    for line in lines {
        line.heal().await?;
    }
    Ok(())
}

/// What lasts but a moment, several times a second.
async fn repeat(lines: &[Proxy], fault: Fault, during: Duration) -> io::Result<()> {
    let end = Instant::now() + during;
    while Instant::now() < end {
        for line in lines {
            match fault {
                Fault::ConnectionsReset => line.close_connections(Close::Reset).await,
                Fault::RepliesDropped => line.drop_reply(DropReply::first(AfterDrop::Reset))?,
                _ => line.stall(Direction::ToServer),
            }
        }
        sleep(Duration::from_millis(150)).await;
        heal(lines).await?;
    }
    Ok(())
}
