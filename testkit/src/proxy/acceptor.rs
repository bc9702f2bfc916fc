//! Accepts clients, or turns them away.
//!
//! One task owns the listener and all connections, so that ending it ends everything the proxy
//! ever started. The admission is switched by messages that are answered: once the answer is there,
//! no client slips in under the old rule.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fencelock_conformance::NewConnections;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::connection;
use super::kinds::Close;
use super::state::Shared;

/// What happens to clients that connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    Open,
    Shut(NewConnections),
}

pub(super) enum Order {
    Switch {
        admission: Admission,
        done: oneshot::Sender<io::Result<()>>,
    },
    /// A client that was accepted elsewhere, with its way on.
    Carry {
        client: TcpStream,
        server: TcpStream,
    },
}

pub(super) struct Acceptor {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// None while connections are refused.
    listener: Option<TcpListener>,
    admission: Admission,
    orders: mpsc::Receiver<Order>,
    connections: JoinSet<()>,
    accepted: u64,
}

impl Acceptor {
    pub(super) fn new(
        listener: TcpListener,
        shared: Arc<Shared>,
        orders: mpsc::Receiver<Order>,
    ) -> io::Result<Self> {
        Ok(Self {
            shared,
            address: listener.local_addr()?,
            listener: Some(listener),
            admission: Admission::Open,
            orders,
            connections: JoinSet::new(),
            accepted: 0,
        })
    }

    pub(super) async fn run(mut self) {
        loop {
            tokio::select! {
                biased;
                order = self.orders.recv() => {
                    match order {
                        Some(Order::Switch { admission, done }) => {
                            // An interrupted flap does not wait for its answer.
                            let _ = done.send(self.switch(admission).await);
                        }
                        Some(Order::Carry { client, server }) => self.admit(client, Some(server)),
                        // The proxy is gone.
                        None => return,
                    }
                }
                client = accept(self.listener.as_ref()) => match client {
                    Ok(client) => self.admit(client, None),
                    // Out of file descriptors, say: it lasts, and accepting fails at once each
                    // time.
                    Err(_) => sleep(Duration::from_millis(10)).await,
                },
                Some(_) = self.connections.join_next() => {}
            }
        }
    }

    async fn switch(&mut self, admission: Admission) -> io::Result<()> {
        if admission == Admission::Shut(NewConnections::Refused) {
            self.listener = None;
        } else if self.listener.is_none() {
            self.listener = Some(self.listen_again().await?);
        }
        self.admission = admission;
        Ok(())
    }

    async fn listen_again(&self) -> io::Result<TcpListener> {
        const ATTEMPTS: u32 = 100;
        const PAUSE: Duration = Duration::from_millis(10);
        for _ in 1..ATTEMPTS {
            if let Ok(listener) = TcpListener::bind(self.address).await {
                return Ok(listener);
            }
            sleep(PAUSE).await;
        }
        TcpListener::bind(self.address).await
    }

    fn admit(&mut self, client: TcpStream, server: Option<TcpStream>) {
        if self.admission != Admission::Open {
            connection::close(client, Close::Fin);
            return;
        }
        self.accepted += 1;
        let (link, ends) = connection::link(self.accepted);
        // Here and not in the task: the next cut must find the connection.
        let registered = self.shared.enter(&link);
        let shared = Arc::clone(&self.shared);
        self.connections.spawn(connection::serve(registered, client, server, shared, link, ends));
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(client, _)| client),
        None => pending().await,
    }
}
