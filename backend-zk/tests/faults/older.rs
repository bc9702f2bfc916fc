//! Servers of a version that does not know all requests.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fencelock_core::Locks;
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::*;

const MULTI_READ: i32 = 22;
const UNIMPLEMENTED: i32 = -6;

/// A way to a server that answers `multiRead` as ZooKeeper 3.5 does: by an error, and by closing the
/// connection.
struct Older {
    addr: SocketAddr,
    refused: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Older {
    async fn than(server: String) -> Older {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let refused = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        let count = refused.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (server, count) = (server.clone(), count.clone());
                connections.spawn(async move {
                    // It ends with either side.
                    let _ = carry(client, &server, &count).await;
                });
            }
        });
        Older { addr, refused, _tasks: tasks }
    }

    fn refused(&self) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }
}

async fn frame(from: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    from.read_exact(&mut frame).await?;
    let length = u32::from_be_bytes(frame[..4].try_into().expect("four bytes"));
    frame.resize(4 + usize::try_from(length).expect("a length"), 0);
    from.read_exact(&mut frame[4..]).await?;
    Ok(frame)
}

async fn carry(client: TcpStream, server: &str, refused: &AtomicU64) -> io::Result<()> {
    let (mut client_in, mut client_out) = client.into_split();
    let (mut server_in, mut server_out) = TcpStream::connect(server).await?.into_split();
    let requests = async {
        // The first frame asks for the session.
        server_out.write_all(&frame(&mut client_in).await?).await?;
        loop {
            let request = frame(&mut client_in).await?;
            if request[8..12] == MULTI_READ.to_be_bytes() {
                return io::Result::Ok(request[4..8].to_vec());
            }
            server_out.write_all(&request).await?;
        }
    };
    let replies = async {
        loop {
            let reply = frame(&mut server_in).await?;
            client_out.write_all(&reply).await?;
        }
    };
    let ended: io::Result<Vec<u8>> = tokio::select! {
        request = requests => request,
        ended = replies => ended,
    };
    let xid = ended?;
    refused.fetch_add(1, Ordering::SeqCst);
    let body = [&xid[..], &0i64.to_be_bytes(), &UNIMPLEMENTED.to_be_bytes()].concat();
    client_out.write_all(&16i32.to_be_bytes()).await?;
    client_out.write_all(&body).await
}

async fn take_turns(locks: &Locks, name: String, turns: usize) {
    for _ in 0..turns {
        release(acquire(locks, &name).await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_multi_read_is_sent_it_once() {
    let testbed = Testbed::start().await;
    let older = Older::than(testbed.servers.connect_string()).await;
    let locks = connect(&testbed.url(&older.addr.to_string(), "")).await;
    let turns = (0..32).map(|n| take_turns(&locks, format!("lock-{n}"), 20));
    within(PATIENCE * 3, "all have had their turns", join_all(turns)).await;
    let refused = older.refused();
    // Two may be under way before the first is answered.
    assert!((1..=2).contains(&refused), "it was asked {refused} times");
    testbed.drained(&["lock-0", "lock-31"]).await;
}
