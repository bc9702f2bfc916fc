//! A server that talks nonsense: something else listens at the port, or what is there is broken.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::port::Port;

type Answer = Arc<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// A server that sends scripted replies to whatever it receives, on every connection. Dropping it closes the port
/// and all connections.
pub struct ScriptedServer {
    port: Port,
    _connections: JoinSet<()>,
}

impl ScriptedServer {
    /// Listens on a free port of 127.0.0.1. What comes in at a time is handed to `answer`.
    ///
    /// # Errors
    /// When no port can be listened on.
    pub async fn start(
        answer: impl Fn(&[u8]) -> Vec<u8> + Send + Sync + 'static,
    ) -> io::Result<ScriptedServer> {
        let port = Port::lease()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).await?;
        let mut connections = JoinSet::new();
        connections.spawn(listen(listener, Arc::new(answer)));
        Ok(ScriptedServer { port, _connections: connections })
    }

    /// Where clients connect.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port.number()))
    }
}

impl fmt::Debug for ScriptedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedServer").field("addr", &self.addr()).finish_non_exhaustive()
    }
}

async fn listen(listener: TcpListener, answer: Answer) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(babble(stream, answer.clone()));
    }
}

/// Until the client has had enough.
async fn babble(mut stream: TcpStream, answer: Answer) {
    let mut heard = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = stream.read(&mut heard).await {
        if stream.write_all(&answer(&heard[..length])).await.is_err() {
            return;
        }
    }
}
