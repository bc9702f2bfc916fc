//! What the servers of an ensemble say to each other, led through proxies.
//!
//! Other ports in each server's `zoo.cfg` would not do: a server tells its peers in elections where
//! it really listens, and they connect there. So each Java machine makes its connections through a
//! SOCKS proxy of its own, a door, which knows who wants to talk to whom, and hands them to the
//! proxy between these two, the wire. A server that does not listen yet is refused, as on a real
//! network: an accepted connection that ends at once makes an election take over ten seconds.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::proxy::Proxy;

#[derive(Debug)]
pub(super) struct PeerLinks {
    network: Arc<Network>,
    /// The port of each server's door.
    doors: Vec<u16>,
    /// Dropping them ends everything that came in by them, too.
    _porters: JoinSet<()>,
}

#[derive(Debug)]
struct Network {
    /// Whose port it is.
    owners: HashMap<u16, usize>,
    /// Between each two servers, the lower place first.
    links: HashMap<(usize, usize), Proxy>,
}

impl PeerLinks {
    /// Between servers that listen for each other on these ports.
    pub(super) async fn between(ports: &[[u16; 2]]) -> io::Result<PeerLinks> {
        let owners = ports.iter().enumerate();
        let owners = owners.flat_map(|(server, own)| own.map(|port| (port, server))).collect();
        let mut links = HashMap::new();
        for server in 0..ports.len() {
            for lower in 0..server {
                links.insert((lower, server), Proxy::wire().await?);
            }
        }
        let network = Arc::new(Network { owners, links });
        let (mut doors, mut porters) = (Vec::new(), JoinSet::new());
        for server in 0..ports.len() {
            // No port to come back to: it stays open for as long as its server can ask for it.
            let door = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            doors.push(door.local_addr()?.port());
            porters.spawn(keep(door, network.clone(), server));
        }
        Ok(PeerLinks { network, doors, _porters: porters })
    }

    /// What has a server connect through its door, to its peers on this machine too. Clients
    /// connect to the server, and so do not meet it.
    pub(super) fn java_args(&self, server: usize) -> [OsString; 4] {
        [
            "-DsocksProxyHost=127.0.0.1".into(),
            format!("-DsocksProxyPort={}", self.doors[server]).into(),
            "-DsocksProxyVersion=4".into(),
            "-DsocksNonProxyHosts=".into(),
        ]
    }

    pub(super) fn of(&self, server: usize) -> impl Iterator<Item = &Proxy> {
        let links = self.network.links.iter();
        links.filter(move |((a, b), _)| *a == server || *b == server).map(|(_, wire)| wire)
    }
}

async fn keep(door: TcpListener, network: Arc<Network>, server: usize) {
    let mut guests = JoinSet::new();
    loop {
        tokio::select! {
            guest = door.accept() => match guest {
                Ok((guest, _)) => {
                    let network = network.clone();
                    guests.spawn(async move {
                        // A guest that cannot be helped is closed.
                        let _ = network.connect(server, guest).await;
                    });
                }
                // Out of file descriptors, say: it lasts.
                Err(_) => sleep(Duration::from_millis(10)).await,
            },
            Some(_) = guests.join_next() => {}
        }
    }
}

impl Network {
    /// SOCKS 4: one request, one reply, and from then on the connection is the peer's.
    async fn connect(&self, from: usize, mut guest: TcpStream) -> io::Result<()> {
        const CONNECT: [u8; 2] = [4, 1];
        const GRANTED: [u8; 8] = [0, 90, 0, 0, 0, 0, 0, 0];
        const REJECTED: [u8; 8] = [0, 91, 0, 0, 0, 0, 0, 0];
        let mut request = [0; 8];
        guest.read_exact(&mut request).await?;
        // A user's name, up to its end.
        while guest.read_u8().await? != 0 {}
        let [a, b, high, low, host @ ..] = request;
        let port = u16::from_be_bytes([high, low]);
        let wire = self.owners.get(&port).and_then(|to| {
            self.links.get(&(from.min(*to), from.max(*to))).filter(|_| [a, b] == CONNECT)
        });
        let Some(wire) = wire else { return guest.write_all(&REJECTED).await };
        match TcpStream::connect((Ipv4Addr::from(host), port)).await {
            Ok(peer) => {
                guest.write_all(&GRANTED).await?;
                wire.carry(guest, peer).await;
                Ok(())
            }
            Err(_) => guest.write_all(&REJECTED).await,
        }
    }
}
