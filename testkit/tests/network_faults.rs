//! The faults of the proxy that a suite asks for by name, where `proxy.rs` does not have them.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use fencelock_testkit::helpers::soon;
use fencelock_testkit::proxy::{Direction, NetworkFault, Proxy, framing};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Both ends of a connection through the proxy.
async fn ends(framed: bool) -> (Proxy, TcpStream, TcpStream) {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let proxy = match framed {
        true => Proxy::framed(address, framing::lines).await.unwrap(),
        false => Proxy::start(address).await.unwrap(),
    };
    let client = TcpStream::connect(proxy.addr()).await.unwrap();
    let (peer, _) = soon("the server is reached", server.accept()).await.unwrap();
    (proxy, client, peer)
}

#[tokio::test]
async fn a_narrow_line_takes_its_time_in_one_direction_and_keeps_every_byte() {
    let (proxy, mut client, mut peer) = ends(false).await;
    let bytes: Vec<u8> = (0..20_000u32).map(|n| n as u8).collect();
    proxy.throttle(Direction::ToServer, 50_000);
    let began = Instant::now();
    client.write_all(&bytes).await.unwrap();
    let mut arrived = vec![0; bytes.len()];
    soon("all bytes arrive", peer.read_exact(&mut arrived)).await.unwrap();
    // What is written last has not taken its time yet.
    assert!(began.elapsed() > Duration::from_millis(350), "in {:?}", began.elapsed());
    assert_eq!(arrived, bytes);
    // The other direction is as wide as ever, and so is this one afterwards.
    proxy.throttle(Direction::ToServer, 1);
    peer.write_all(&bytes).await.unwrap();
    soon("all bytes come back", client.read_exact(&mut arrived)).await.unwrap();
    client.write_all(&bytes).await.unwrap();
    proxy.heal().await.unwrap();
    soon("all bytes arrive", peer.read_exact(&mut arrived)).await.unwrap();
    assert_eq!(arrived, bytes);
}

#[tokio::test]
async fn a_torn_reply_ends_in_its_middle_with_its_connection() {
    let (proxy, mut client, mut peer) = ends(true).await;
    proxy.apply(NetworkFault::Torn).await.unwrap();
    client.write_all(b"one\ntwo\n").await.unwrap();
    let mut asked = [0; 8];
    soon("it is asked", peer.read_exact(&mut asked)).await.unwrap();
    peer.write_all(b"eins...\nzwei...\n").await.unwrap();
    let mut heard = Vec::new();
    soon("it ends", client.read_to_end(&mut heard)).await.unwrap();
    assert_eq!(heard, b"eins");
}
