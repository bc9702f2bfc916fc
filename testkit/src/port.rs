//! Ports that stay ours for as long as a server or a proxy may want to listen on them again.
//!
//! A port from `bind(0)` lies in the range of outgoing connections: while its server is down for a
//! restart, any client may be given it, and a client that reconnects in a loop can even connect to
//! itself. So ports are drawn from below that range, and each one is held by a UDP socket of the
//! same number, which keeps other test processes away and which the kernel frees whatever happens.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};

/// A loopback port, reserved among all that draw their ports here.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _reservation: UdpSocket,
}

impl Port {
    pub(crate) fn lease() -> io::Result<Port> {
        free(0, Port::reserve)
    }

    /// This port, if it is free.
    fn reserve(number: u16) -> Option<Port> {
        let reservation = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        // Programs that know nothing of the reservation: a server may still lose the race
        // against one of them, so starting one is retried with another port.
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Port { number, _reservation: reservation })
    }

    /// Two of which the second lies this much above the first.
    pub(crate) fn lease_two(above: u16) -> io::Result<(Port, Port)> {
        free(above, |first| Some((Port::reserve(first)?, Port::reserve(first + above)?)))
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

/// What `take` makes of a port that is free, as one so much above it is.
fn free<T>(above: u16, take: impl Fn(u16) -> Option<T>) -> io::Result<T> {
    const ATTEMPTS: usize = 1000;
    let ports = below_outgoing();
    // Some room, also where the outgoing range starts low.
    let room = (ports.end - ports.start).saturating_sub(above).max(1000);
    let taken = (0..ATTEMPTS).find_map(|_| take(ports.start + random_below(room)));
    taken.ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, "no free port on 127.0.0.1"))
}

fn below_outgoing() -> std::ops::Range<u16> {
    const FIRST: u16 = 10_000;
    const USUAL_END: u16 = 32_768;
    let end = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(USUAL_END);
    // Where the outgoing range starts low, some overlap is better than no ports.
    FIRST..if end > FIRST + 1000 { end } else { USUAL_END }
}

fn random_below(bound: u16) -> u16 {
    let word = RandomState::new().build_hasher().finish();
    u16::try_from(word % u64::from(bound)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leased_ports_differ_and_can_be_listened_on() {
        let leases: Vec<_> = (0..50).map(|_| Port::lease().unwrap()).collect();
        let mut numbers: Vec<_> = leases.iter().map(Port::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), leases.len());
        TcpListener::bind((Ipv4Addr::LOCALHOST, leases[0].number())).unwrap();
    }
}
