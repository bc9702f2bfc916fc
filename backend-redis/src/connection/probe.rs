//! Finds out what listens at an address that does not answer as the URL's scheme expects: a server
//! without TLS waits for the end of a line when it gets a TLS handshake, and ZooKeeper, as well as a
//! server with TLS, closes the connection without an answer. Nothing secret is sent.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::host::HostPort;

/// For connecting and the answer together, for each question.
const TIMEOUT: Duration = Duration::from_millis(500);

/// What ZooKeeper answers to `srvr`, allowed or not.
const ZOOKEEPER: [&[u8]; 2] = [b"Zookeeper version", b"srvr is not executed"];

/// What was recognized at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A Redis server that does not expect TLS.
    Redis,
    ZooKeeper,
    /// A server that expects TLS.
    Tls,
}

/// A word of ZooKeeper, and none of Redis's.
const SRVR: &[u8] = b"srvr\r\n";

/// A ClientHello of TLS 1.2, with one cipher suite and no session:
/// <https://www.rfc-editor.org/rfc/rfc5246#section-7.4.1.2>. A server with TLS answers it, if only by
/// an alert. Its 32 bytes of randomness protect nothing here.
const CLIENT_HELLO: &[u8] = b"\x16\x03\x01\x00\x2d\x01\x00\x00\x29\x03\x03\
                              fencelock asks: do you speak TLS\
                              \x00\x00\x02\xc0\x2f\x01\x00";

/// What listens at `host`, if it is recognized.
pub(crate) async fn probe(host: &HostPort) -> Option<Peer> {
    for question in [SRVR, CLIENT_HELLO] {
        if let Ok(Some(peer)) = timeout(TIMEOUT, ask(host, question)).await {
            return Some(peer);
        }
    }
    None
}

async fn ask(host: &HostPort, question: &[u8]) -> Option<Peer> {
    let mut stream = TcpStream::connect((host.name.as_str(), host.port)).await.ok()?;
    stream.write_all(question).await.ok()?;
    let mut answer = [0; 32];
    let mut length = 0;
    while length < answer.len() {
        match stream.read(&mut answer[length..]).await {
            Ok(more) if more > 0 => length += more,
            _ => break,
        }
        if let Some(peer) = read(&answer[..length]) {
            return Some(peer);
        }
    }
    None
}

/// The peer whose answer begins like this, if that is clear already.
fn read(answer: &[u8]) -> Option<Peer> {
    match answer {
        // An error with its code, such as -ERR or -NOAUTH.
        [b'-', b'A'..=b'Z', b'A'..=b'Z', ..] => Some(Peer::Redis),
        // An alert or a handshake of TLS 1.x.
        [0x15 | 0x16, 3, ..] => Some(Peer::Tls),
        _ if ZOOKEEPER.iter().any(|says| answer.starts_with(says)) => Some(Peer::ZooKeeper),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_known_by_its_answer() {
        for (answer, peer) in [
            (&b"-ERR unknown command 'srvr'\r\n"[..], Some(Peer::Redis)),
            (b"-NOAUTH Authentication required.\r\n", Some(Peer::Redis)),
            (b"-DENIED Redis is running in protected mode", Some(Peer::Redis)),
            (b"Zookeeper version: 3.9.5-abc, built on", Some(Peer::ZooKeeper)),
            (b"srvr is not executed because it is not in", Some(Peer::ZooKeeper)),
            (b"-E", None),
            (b"Zookeeper", None),
            (b"\x15\x03\x01\x00\x02\x02\x32", Some(Peer::Tls)),
            (b"\x16\x03\x03\x00\x4a", Some(Peer::Tls)),
            (b"HTTP/1.1 400 Bad Request\r\n", None),
            (b"", None),
        ] {
            assert_eq!(read(answer), peer, "{answer:?}");
        }
    }
}
