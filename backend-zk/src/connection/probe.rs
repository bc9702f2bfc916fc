//! Probes the servers' addresses when the transport gets no session: it does not report whether
//! nothing listens there, or a server that is not a ZooKeeper.
//!
//! Each address is sent `srvr`, one of ZooKeeper's four-letter words, in a line: an HTTP or Redis
//! server answers that with an error of its own, a TLS port with an alert.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// For each step at one address.
const TIMEOUT: Duration = Duration::from_millis(500);

/// How many bytes of an answer are read: enough to identify the sender.
const MAX_REPLY: u64 = 128;

/// What is found at one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// No connection, since nothing listens there.
    Refused,
    /// No connection, since the host's name has no address.
    NoHost,
    /// No connection.
    Nothing,
    /// A connection, and no answer.
    Silence,
    /// A connection that is closed without an answer.
    Closed,
    Tls,
    Http,
    Redis,
    /// A ZooKeeper server that serves clients.
    ZooKeeper,
    /// A ZooKeeper server without a quorum.
    NoQuorum,
    /// Another answer.
    Other,
}

/// Probes one address.
pub(crate) async fn probe((host, port): &(String, u16)) -> Found {
    let mut stream = match timeout(TIMEOUT, connect(host, *port)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(found)) => return found,
        Err(_) => return Found::Nothing,
    };
    let mut answer = Vec::new();
    let asking = async {
        stream.write_all(b"srvr\r\n\r\n").await?;
        stream.take(MAX_REPLY).read_to_end(&mut answer).await
    };
    let ended = timeout(TIMEOUT, asking).await;
    match &answer[..] {
        [] if ended.is_err() => Found::Silence,
        [] => Found::Closed,
        answer => read(answer),
    }
}

async fn connect(host: &str, port: u16) -> Result<TcpStream, Found> {
    let addresses: Vec<_> =
        tokio::net::lookup_host((host, port)).await.map_err(|_| Found::NoHost)?.collect();
    TcpStream::connect(&addresses[..]).await.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => Found::Refused,
        _ => Found::Nothing,
    })
}

fn read(answer: &[u8]) -> Found {
    let text = String::from_utf8_lossy(answer);
    match answer {
        // An alert, in any version of the protocol.
        [0x15, 0x03, ..] => Found::Tls,
        [b'-', b'A'..=b'Z', ..] => Found::Redis,
        _ if text.starts_with("HTTP/") => Found::Http,
        _ if text.contains("not currently serving") || text.contains("Mode: read-only") => {
            Found::NoQuorum
        }
        // The answer, or the error that this word is not in `4lw.commands.whitelist`.
        _ if text.starts_with("Zookeeper version") || text.starts_with("srvr is not") => {
            Found::ZooKeeper
        }
        _ => Found::Other,
    }
}

impl Found {
    /// Whether the transport, which uses TLS if `is_secure`, cannot get a session there.
    pub(crate) fn is_foreign(self, is_secure: bool) -> bool {
        match self {
            Found::Http | Found::Redis | Found::Other => true,
            Found::Tls => !is_secure,
            Found::ZooKeeper => is_secure,
            Found::Refused
            | Found::NoHost
            | Found::Nothing
            | Found::Silence
            | Found::Closed
            | Found::NoQuorum => false,
        }
    }

    /// Whether there was no connection.
    pub(crate) fn is_nothing(self) -> bool {
        matches!(self, Found::Refused | Found::NoHost | Found::Nothing)
    }

    /// Whether this alone explains that the transport, which uses TLS if `is_secure`, gets no session
    /// there. A TLS connection that is closed has a cause, which only the transport knows.
    pub(crate) fn explains_no_session(self, is_secure: bool) -> bool {
        let is_closed = self == Found::Closed && !is_secure;
        self.is_nothing() || self.is_foreign(is_secure) || is_closed
    }

    /// What was found, and what to try; `is_secure` when the transport is to use TLS.
    pub(crate) fn advice(self, is_secure: bool) -> &'static str {
        match (self, is_secure) {
            (Found::Refused, _) => {
                "refuses the connection; is ZooKeeper running, and listening there?"
            }
            (Found::NoHost, _) => "has no address; check the spelling of the host",
            (Found::Nothing, _) => {
                "does not accept connections; is the host up, and the port open in its firewall?"
            }
            (Found::Silence, _) => "accepts connections and does not answer; is it overloaded?",
            (Found::Closed, false) => {
                "closes connections without an answer; if it is the secureClientPort, name the \
                 authority by tls_ca=FILE; if not, see maxClientCnxns and the server's log"
            }
            (Found::Closed, true) => {
                "closes connections; check tls_ca, tls_cert and the server's log"
            }
            (Found::Tls, false) => {
                "speaks TLS; name the authority that signed its certificate by tls_ca=FILE"
            }
            (Found::Tls, true) => "refused the TLS connection; check tls_ca, tls_cert and the host",
            (Found::Http, _) => "is an HTTP server; the client port of ZooKeeper is usually 2181",
            (Found::Redis, _) => {
                "is a Redis server; use redis://, or name the client port of ZooKeeper, usually 2181"
            }
            (Found::ZooKeeper, false) => {
                "is a ZooKeeper server and granted no session; see maxClientCnxns and its log"
            }
            (Found::ZooKeeper, true) => {
                "is a ZooKeeper server without TLS; leave out tls_ca, or use its secureClientPort"
            }
            (Found::NoQuorum, _) => "is a ZooKeeper server without a quorum",
            (Found::Other, _) => "is not a ZooKeeper server",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_server_is_known_by_its_answer() {
        for (answer, found) in [
            (&b"Zookeeper version: 3.9.5-abc, built on"[..], Found::ZooKeeper),
            (b"srvr is not executed because it is not in the whitelist.\n", Found::ZooKeeper),
            (b"This ZooKeeper instance is not currently serving requests\n", Found::NoQuorum),
            (b"Zookeeper version: 3.9.5-abc, built on\nMode: read-only\n", Found::NoQuorum),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", Found::Http),
            (b"-ERR unknown command 'srvr'\r\n", Found::Redis),
            (b"-NOAUTH Authentication required.\r\n", Found::Redis),
            (b"\x15\x03\x01\x00\x02\x02\x32", Found::Tls),
            (b"SSH-2.0-OpenSSH_9.2\r\n", Found::Other),
            (b"-", Found::Other),
            (b"\xff", Found::Other),
        ] {
            assert_eq!(read(answer), found, "{answer:?}");
        }
    }
}
