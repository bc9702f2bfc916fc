//! Proxies before servers that name each other to their clients, such as those of a cluster.
//!
//! Such clients leave any proxy that does not stand where the servers say that they are. So these
//! listen at the servers' own ports, on a loopback address of their own, and in whatever they pass
//! on to a client the servers' address, 127.0.0.1, becomes theirs. It has as many characters, so
//! that no length in the protocol changes. A reply is changed as a whole, however it came, up to
//! what the proxy holds of one. What servers say to each other does not go this way.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::try_join_all;

use super::{Framing, Proxy};

/// A proxy before each of some servers.
#[derive(Debug)]
pub struct Front {
    host: Ipv4Addr,
    proxies: Arc<[Proxy]>,
}

impl Front {
    /// Proxies before these servers, which listen on 127.0.0.1 only.
    ///
    /// # Errors
    /// When one of them cannot listen.
    pub async fn before(
        servers: impl IntoIterator<Item = SocketAddr>,
        framing: Framing,
    ) -> io::Result<Front> {
        let host = fresh_host();
        let proxies = servers.into_iter().map(|server| Proxy::in_place_of(server, host, framing));
        Ok(Front { host, proxies: try_join_all(proxies).await?.into() })
    }

    /// The proxies, in the order of the servers.
    #[must_use]
    pub fn proxies(&self) -> &Arc<[Proxy]> {
        &self.proxies
    }

    /// Where clients find one of the servers. One that is not behind these proxies is not there.
    #[must_use]
    pub fn addr_of(&self, server: SocketAddr) -> SocketAddr {
        SocketAddr::from((self.host, server.port()))
    }
}

/// 127.1.1.1 to 127.9.9.9, by turns. Two that have the same one have it at the ports of different servers.
fn fresh_host() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let turn = NEXT.fetch_add(1, Ordering::Relaxed);
    let [a, b, c] = [turn / 81, turn / 9, turn].map(|it| u8::try_from(it % 9 + 1).unwrap_or(1));
    Ipv4Addr::new(127, a, b, c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_as_long_as_the_usual_one() {
        let hosts: Vec<_> = (0..729).map(|_| fresh_host().to_string()).collect();
        assert!(hosts.iter().all(|host| host.len() == "127.0.0.1".len()));
        let different: std::collections::BTreeSet<_> = hosts.iter().collect();
        assert_eq!(different.len(), hosts.len());
    }
}
