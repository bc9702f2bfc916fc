//! A single Redis server.

use fencelock_testkit::proxy::{AfterDrop, DropReply, Proxy, framing};
use fencelock_testkit::servers::TestRedis;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::within;

#[tokio::test]
async fn the_reply_of_one_redis_command_is_lost_after_it_took_effect() {
    let redis = TestRedis::start().await.unwrap();
    let upstream = format!("127.0.0.1:{}", redis.port());
    let proxy = Proxy::framed(upstream, framing::resp).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    let armed = DropReply::nth(2, AfterDrop::Fin).matching(|command| command.starts_with(b"INCR"));
    proxy.drop_reply(armed).unwrap();
    client.write_all(b"PING\r\nINCR k\r\nPING\r\nINCR k\r\nPING\r\n").await.unwrap();
    within(proxy.dropped_reply()).await;
    let mut replies = String::new();
    within(client.read_to_string(&mut replies)).await.unwrap();
    assert_eq!(replies, "+PONG\r\n:1\r\n+PONG\r\n");
    assert_eq!(redis.command(&["GET", "k"]).await.unwrap(), "2");
}
