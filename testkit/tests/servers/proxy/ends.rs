//! The client and the server at the ends of a proxy, and what one reads of the other.

use std::net::SocketAddr;
use std::time::Duration;

use fencelock_testkit::proxy::{Proxy, framing};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(super) async fn both_ends() -> (TcpListener, Proxy, TcpStream, TcpStream) {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(server.local_addr().unwrap()).await.unwrap();
    let (client, peer) = ends(&server, &proxy).await;
    (server, proxy, client, peer)
}

/// A client and its peer, which the proxy of `listener` is in between.
pub(super) async fn ends(listener: &TcpListener, proxy: &Proxy) -> (TcpStream, TcpStream) {
    let client = connect(proxy.addr()).await;
    (client, within(listener.accept()).await.unwrap().0)
}

pub(super) async fn echo_through_proxy() -> (Proxy, TcpStream) {
    let proxy = Proxy::start(echo_server().await).await.unwrap();
    let client = connect(proxy.addr()).await;
    within(proxy.connections(1)).await;
    (proxy, client)
}

pub(super) async fn lines_through_proxy() -> (Proxy, TcpStream) {
    let proxy = Proxy::framed(echo_server().await, framing::lines).await.unwrap();
    let client = connect(proxy.addr()).await;
    within(proxy.connections(1)).await;
    (proxy, client)
}

pub(super) async fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = client.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
                let _ = writer.shutdown().await;
            });
        }
    });
    address
}

pub(super) async fn connect(address: SocketAddr) -> TcpStream {
    within(TcpStream::connect(address)).await.unwrap()
}

pub(super) async fn echo(client: &mut TcpStream, bytes: &[u8]) -> Vec<u8> {
    client.write_all(bytes).await.unwrap();
    read(client, bytes.len()).await
}

pub(super) async fn read(client: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    within(client.read_exact(&mut bytes)).await.unwrap();
    bytes
}

pub(super) async fn read_to_end(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    within(client.read_to_end(&mut bytes)).await?;
    Ok(bytes)
}

pub(super) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("this hangs")
}
