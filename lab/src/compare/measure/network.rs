//! What the proxies' delay really is: on a busy machine it may be more than what was asked for.

use std::time::{Duration, Instant};

use fencelock::Result;
use fencelock_testkit::proxy::Proxy;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use crate::compare::data::Network;

/// Round trips of a byte, of which the middle one counts.
const TIMES: usize = 101;

/// Measures a proxy with this round trip against the same proxy without.
pub(crate) async fn measure(round_trip: Duration) -> Result<Network> {
    // A second of it at most.
    let times = (Duration::from_secs(1).as_micros() / round_trip.as_micros().max(1)) as usize;
    let with = middle(round_trip, times.clamp(3, TIMES)).await.map_err(super::broken)?;
    let without = middle(Duration::ZERO, TIMES).await.map_err(super::broken)?;
    let in_us = |time: Duration| time.as_secs_f64() * 1e6;
    Ok(Network {
        round_trip_us: in_us(round_trip),
        measured_us: in_us(with.saturating_sub(without)),
    })
}

async fn middle(round_trip: Duration, times: usize) -> std::io::Result<Duration> {
    let server = TcpListener::bind("127.0.0.1:0").await?;
    let proxy = Proxy::start(server.local_addr()?).await?;
    proxy.set_round_trip(round_trip)?;
    let _echo = AbortOnDropHandle::new(tokio::spawn(async move {
        let (mut client, _) = server.accept().await?;
        let (mut from, mut to) = client.split();
        tokio::io::copy(&mut from, &mut to).await
    }));
    let mut client = TcpStream::connect(proxy.addr()).await?;
    client.set_nodelay(true)?;
    let mut took = Vec::new();
    for _ in 0..times {
        let began = Instant::now();
        client.write_all(b"?").await?;
        client.read_exact(&mut [0]).await?;
        took.push(began.elapsed());
    }
    took.sort_unstable();
    Ok(took[times / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_round_trip_that_was_asked_for_is_there() {
        // The difference to a proxy without it depends on what else the machine does.
        let asked = Duration::from_millis(5);
        assert!(middle(asked, 3).await.expect("measured") >= asked);
        assert_eq!(measure(asked).await.expect("measured").round_trip_us, 5_000.0);
    }
}
