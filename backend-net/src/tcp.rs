//! One TCP connection.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::select_ok;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Connects to the address of the host `name` that answers first. Data that the peer has not acknowledged
/// within `answer` is dropped with its connection, since its request has timed out. Otherwise the
/// kernel would keep sending it for a connection that was discarded and closed, and a request for a
/// lock could arrive long after its claim has ended.
///
/// # Errors
/// The last address's, or [`NotFound`](io::ErrorKind::NotFound) when there is none.
///
/// # Cancel safety
/// Cancel safe.
pub async fn tcp(name: &str, port: u16, answer: Duration) -> io::Result<TcpStream> {
    let addresses = tokio::net::lookup_host((name, port)).await?;
    let connecting: Vec<_> =
        addresses.map(|address| Box::pin(TcpStream::connect(address))).collect();
    if connecting.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    let (stream, _others) = select_ok(connecting).await?;
    set_up(stream, answer)
}

/// Connects to the server at `address`, as [`tcp`] does.
///
/// # Errors
/// The operating system's.
///
/// # Cancel safety
/// Cancel safe.
pub async fn tcp_to(address: SocketAddr, answer: Duration) -> io::Result<TcpStream> {
    set_up(TcpStream::connect(address).await?, answer)
}

fn set_up(stream: TcpStream, answer: Duration) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    // The kernel notices a vanished peer too, also while no request is under way.
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(1));
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(answer))?;
    #[cfg(not(target_os = "linux"))]
    let _ = answer;
    Ok(stream)
}
