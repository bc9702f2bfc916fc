//! One proxied connection: two sockets, and a queue of bounded size for each direction.
//!
//! What comes in is queued with the time of its arrival and leaves through an [`Outlet`], so that
//! a delay is a delay and not a limit of throughput. Ends of stream travel in the same queues as
//! the bytes: a FIN is delayed, held or swallowed just like them. Everything runs in one task,
//! whose end closes both sockets.

use std::convert::Infallible;
use std::future::pending;
use std::io::{self, Read};
use std::sync::Arc;

use rustix::net::Shutdown;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::kinds::{Close, Direction, Item, WINDOW, What};
use super::outlet::Outlet;
use super::state::{Link, Registered, Shared};

/// The receiving ends that belong to a [`Link`].
pub(super) struct LinkEnds {
    end: watch::Receiver<Option<Close>>,
    to_client: UnboundedReceiver<Item>,
}

pub(super) fn link(id: u64) -> (Arc<Link>, LinkEnds) {
    let (end, end_rx) = watch::channel(None);
    let (to_client, to_client_rx) = mpsc::unbounded_channel();
    let link = Link {
        id,
        end,
        to_client,
        torn: Default::default(),
        cut_off: Default::default(),
        outstanding: Default::default(),
        finished: Default::default(),
    };
    (Arc::new(link), LinkEnds { end: end_rx, to_client: to_client_rx })
}

pub(super) async fn serve(
    mut registered: Registered,
    client: TcpStream,
    server: Option<TcpStream>,
    shared: Arc<Shared>,
    link: Arc<Link>,
    ends: LinkEnds,
) {
    let LinkEnds { mut end, to_client } = ends;
    let connected = match server {
        Some(server) => Ok(server),
        None => tokio::select! {
            how = asked_to_end(&mut end) => Err(how),
            upstream = TcpStream::connect(shared.upstream()) => upstream.map_err(|_| Close::Reset),
        },
    };
    let upstream = match connected {
        Ok(upstream) => upstream,
        Err(how) => return close(client, how),
    };
    // Failing to switch Nagle's algorithm off costs time only.
    let _ = (client.set_nodelay(true), upstream.set_nodelay(true));
    registered.opened();

    let (to_server_tx, to_server) = mpsc::unbounded_channel();
    let to_client_tx = link.to_client.clone();
    let mut up = Outlet::new(
        Direction::ToServer,
        &shared,
        &link,
        &upstream,
        to_server,
        to_client_tx.clone(),
    );
    let mut down =
        Outlet::new(Direction::ToClient, &shared, &link, &client, to_client, to_server_tx.clone());
    let how = tokio::select! {
        biased;
        how = asked_to_end(&mut end) => how,
        how = up.run() => how,
        how = down.run() => how,
        never = intake(&client, Direction::ToServer, &shared, &to_server_tx) => match never {},
        never = intake(&upstream, Direction::ToClient, &shared, &to_client_tx) => match never {},
    };
    close(client, how);
    close(upstream, how);
    drop(registered);
}

/// Closes as the peers are to see it.
pub(super) fn close(stream: TcpStream, how: Close) {
    match how {
        Close::Reset => {
            // If it fails the peer has reset the connection already.
            let _ = stream.set_zero_linger();
        }
        Close::Fin => {
            let _ = rustix::net::shutdown(&stream, Shutdown::Write);
            // Closing a socket with unread bytes sends an RST and throws away what the peer has
            // not taken yet. A bound on the reads, for peers that never stop sending.
            if let Ok(mut stream) = stream.into_std() {
                let mut rest = [0; 16 * 1024];
                for _ in 0..64 {
                    if !matches!(stream.read(&mut rest), Ok(n) if n > 0) {
                        break;
                    }
                }
            }
        }
    }
}

async fn asked_to_end(end: &mut watch::Receiver<Option<Close>>) -> Close {
    let how = end.wait_for(Option::is_some).await.map(|how| *how);
    match how {
        Ok(Some(how)) => how,
        // The link lives as long as the connection's task: there is always a sender.
        Ok(None) | Err(_) => pending().await,
    }
}

/// Queues what the peer sends. Stops reading when the window is full: TCP's own flow control then
/// holds the sender back, as on a long line.
async fn intake(
    from: &TcpStream,
    direction: Direction,
    shared: &Shared,
    queue: &UnboundedSender<Item>,
) -> Infallible {
    // A price per chunk as well as per byte, so that one-byte chunks are bounded too.
    const CHUNK: usize = 16 * 1024;
    const CHUNK_PRICE: usize = 64;
    let window = Arc::new(Semaphore::new(WINDOW + CHUNK + CHUNK_PRICE));
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = read_some(from, &mut buffer).await;
        let at = Instant::now();
        let (what, price) = match read {
            Ok(0) => (What::Fin, 0),
            Ok(n) => (What::Bytes(buffer[..n].to_vec()), n + CHUNK_PRICE),
            Err(_) => (What::Reset, 0),
        };
        if let What::Bytes(bytes) = &what {
            shared.count(direction, |traffic| traffic.received += bytes.len() as u64);
        }
        let is_end = matches!(what, What::Fin | What::Reset);
        let price = u32::try_from(price).unwrap_or(u32::MAX);
        let room = Arc::clone(&window).acquire_many_owned(price).await.ok();
        // The outlet lives in the same task, so there is always a receiver.
        let _ = queue.send(Item { at, what, _room: room });
        if is_end {
            return pending().await;
        }
    }
}

async fn read_some(from: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        from.readable().await?;
        match from.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}
