//! Faults of the lines between clients and servers, for every store that is reached through
//! proxies.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep};

use super::{Fault, Traffic, unknown};
use crate::proxy::{AfterDrop, Close, Direction, DropReply, Framing, Front, NewConnections, Proxy};

/// How clients reach the servers of a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// Through proxies, which can break and which count.
    Proxied,
    /// Straight, for measurements of speed.
    Direct,
}

/// The ways to servers, with a proxy on each unless they are direct.
#[derive(Debug)]
pub(super) struct Lines {
    proxies: Arc<[Proxy]>,
    hosts: Vec<String>,
}

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
        wiring: Wiring,
    ) -> io::Result<Lines> {
        let servers: Vec<String> = servers.into_iter().collect();
        if wiring == Wiring::Direct {
            return Ok(Lines { proxies: Arc::new([]), hosts: servers });
        }
        let proxies = servers.into_iter().map(|server| Proxy::framed(server, framing));
        let proxies: Arc<[Proxy]> = try_join_all(proxies).await?.into();
        let hosts = proxies.iter().map(|line| line.addr().to_string()).collect();
        Ok(Lines { proxies, hosts })
    }

    /// To servers that name each other to their clients. All are needed that clients may be sent
    /// to; of these, clients are told the first `entrances`.
    pub(super) async fn to_those_who_name_each_other(
        servers: impl IntoIterator<Item = SocketAddr>,
        entrances: usize,
        framing: Framing,
        wiring: Wiring,
    ) -> io::Result<Lines> {
        let servers: Vec<SocketAddr> = servers.into_iter().collect();
        let entrance = servers[..entrances].to_vec();
        let texts = |all: Vec<SocketAddr>| all.iter().map(SocketAddr::to_string).collect();
        if wiring == Wiring::Direct {
            return Ok(Lines { proxies: Arc::new([]), hosts: texts(entrance) });
        }
        let front = Front::before(servers, framing).await?;
        let hosts = texts(entrance.into_iter().map(|server| front.addr_of(server)).collect());
        Ok(Lines { proxies: front.proxies().clone(), hosts })
    }

    /// `host:port` of each, separated by commas.
    pub(super) fn hosts(&self) -> String {
        self.hosts.join(",")
    }

    /// What can be done to them.
    pub(super) fn faults(&self) -> &'static [Fault] {
        if self.proxies.is_empty() { &[] } else { &Lines::FAULTS }
    }

    /// What has gone through so far, of those that are proxied.
    pub(super) fn traffic(&self) -> Option<Traffic> {
        let all = self.proxies.iter().map(|proxy| {
            let stats = proxy.stats();
            Traffic {
                requests: stats.requests,
                bytes_to_servers: stats.to_server.forwarded,
                bytes_from_servers: stats.to_client.forwarded,
            }
        });
        all.reduce(|sum, one| Traffic {
            requests: sum.requests + one.requests,
            bytes_to_servers: sum.bytes_to_servers + one.bytes_to_servers,
            bytes_from_servers: sum.bytes_from_servers + one.bytes_from_servers,
        })
    }

    /// Leads all to another server, and ends what leads to the old one.
    pub(super) async fn lead_to(&self, server: SocketAddr) {
        for line in self.proxies.iter() {
            line.lead_to(server);
            line.close_connections(Close::Reset).await;
        }
    }

    /// The fault on all lines.
    pub(super) async fn inflict(&self, fault: Fault, during: Duration) -> io::Result<()> {
        self.inflict_on(self.proxies.len(), fault, during).await
    }

    /// The fault on the first `count` lines.
    pub(super) async fn inflict_on(
        &self,
        count: usize,
        fault: Fault,
        during: Duration,
    ) -> io::Result<()> {
        let lines = &self.proxies[..count];
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
