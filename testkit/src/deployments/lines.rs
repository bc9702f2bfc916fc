//! Faults of the lines between clients and servers, for every store that is reached through
//! proxies.

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fencelock_conformance::ServerClock;
use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep, sleep_until};

use super::fault::Fault;
use crate::proxy::{Close, Framing, Front, NetworkFault, NewConnections, Proxy};

/// The traffic between clients and servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests of clients, a script's call as one.
    pub requests: u64,
    /// Bytes from clients.
    pub bytes_to_servers: u64,
    /// Bytes from the servers.
    pub bytes_from_servers: u64,
    /// Connections that are open now.
    pub connections: u64,
}

/// How clients reach the servers of a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// Through proxies, which can break and which count.
    Proxied,
    /// Through proxies that also stand for a network with this round trip.
    Distant(Duration),
    /// Straight, for measurements of speed.
    Direct,
}

impl Wiring {
    /// Makes these proxies stand for the network that it says, if any.
    pub(super) fn set_up<'a>(self, proxies: impl IntoIterator<Item = &'a Proxy>) -> io::Result<()> {
        match self {
            Wiring::Distant(round_trip) => {
                proxies.into_iter().try_for_each(|proxy| proxy.set_round_trip(round_trip))
            }
            Wiring::Proxied | Wiring::Direct => Ok(()),
        }
    }

    /// Clocks for so many servers, to be started instead of `server`: where faults are wanted, and
    /// where the machine has a C compiler for the shim. Else none.
    pub(super) fn clocks(self, count: usize, server: &OsStr) -> io::Result<Vec<ServerClock>> {
        if self != Wiring::Proxied || !ServerClock::is_possible() {
            return Ok(Vec::new());
        }
        (0..count).map(|_| ServerClock::of(&server.to_string_lossy())).collect()
    }
}

/// The faults of lines, by the names that a deployment's have.
const FAULTS: [(Fault, NetworkFault); 8] = [
    (Fault::CutOff, NetworkFault::CutOff),
    (Fault::RequestsLost, NetworkFault::RequestsLost),
    (Fault::RepliesLost, NetworkFault::RepliesLost),
    (Fault::ConnectionsReset, NetworkFault::ConnectionsReset),
    (
        Fault::Flapping,
        NetworkFault::Flapping { down: Duration::from_millis(500), new: NewConnections::Refused },
    ),
    (Fault::SlowReplies, NetworkFault::SlowReplies(Duration::from_millis(200))),
    (Fault::RepliesDropped, NetworkFault::ReplyDropped),
    (Fault::Stalled, NetworkFault::Stalled),
];

/// The ways to servers, with a proxy on each unless they are direct.
#[derive(Debug)]
pub(super) struct Lines {
    proxies: Arc<[Proxy]>,
    hosts: Vec<String>,
}

impl Lines {
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
        wiring.set_up(&*proxies)?;
        let hosts = proxies.iter().map(|line| line.addr().to_string()).collect();
        Ok(Lines { proxies, hosts })
    }

    /// To servers that name each other to their clients. All are needed that clients may be sent
    /// to; clients know the first `entrances` of these.
    pub(super) async fn to_servers_that_name_each_other(
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
        wiring.set_up(&**front.proxies())?;
        let hosts = texts(entrance.into_iter().map(|server| front.addr_of(server)).collect());
        Ok(Lines { proxies: front.proxies().clone(), hosts })
    }

    /// `host:port` of each, separated by commas.
    pub(super) fn hosts(&self) -> String {
        self.hosts.join(",")
    }

    /// What can be done to them.
    pub(super) fn faults(&self) -> impl Iterator<Item = Fault> {
        let faults = if self.proxies.is_empty() { &[][..] } else { &FAULTS };
        faults.iter().map(|(fault, _)| *fault)
    }

    /// What a fault is to the lines, if it is one of theirs.
    pub(super) fn fault(fault: Fault) -> Option<NetworkFault> {
        FAULTS.iter().find(|(known, _)| *known == fault).map(|(_, of_lines)| *of_lines)
    }

    /// What has gone through so far, of those that are proxied.
    pub(super) fn traffic(&self) -> Option<Traffic> {
        let all = self.proxies.iter().map(|proxy| {
            let stats = proxy.stats();
            Traffic {
                requests: stats.requests,
                bytes_to_servers: stats.to_server.forwarded,
                bytes_from_servers: stats.to_client.forwarded,
                connections: stats.open,
            }
        });
        all.reduce(|sum, one| Traffic {
            requests: sum.requests + one.requests,
            bytes_to_servers: sum.bytes_to_servers + one.bytes_to_servers,
            bytes_from_servers: sum.bytes_from_servers + one.bytes_from_servers,
            connections: sum.connections + one.connections,
        })
    }

    /// Leads all to another server, and ends what leads to the old one.
    pub(super) async fn lead_to(&self, server: SocketAddr) {
        for line in self.proxies.iter() {
            line.lead_to(server);
            line.close_connections(Close::Reset).await;
        }
    }

    /// Injects the fault into all lines, and heals them.
    pub(super) async fn inflict(&self, fault: NetworkFault, during: Duration) -> io::Result<()> {
        self.inflict_on(self.proxies.len(), fault, during).await
    }

    /// Injects the fault into the first `count` lines, and heals them.
    pub(super) async fn inflict_on(
        &self,
        count: usize,
        fault: NetworkFault,
        during: Duration,
    ) -> io::Result<()> {
        let lines = &self.proxies[..count];
        let end = Instant::now() + during;
        loop {
            for line in lines {
                line.apply(fault).await?;
            }
            match is_momentary(fault) {
                true => sleep(Duration::from_millis(150)).await,
                false => sleep_until(end).await,
            }
            for line in lines {
                line.heal().await?;
            }
            if Instant::now() >= end {
                return Ok(());
            }
        }
    }
}

/// Whether a fault is injected several times a second, with an end to each.
fn is_momentary(fault: NetworkFault) -> bool {
    let momentary =
        [NetworkFault::ConnectionsReset, NetworkFault::ReplyDropped, NetworkFault::Stalled];
    momentary.contains(&fault)
}
