//! ZooKeeper.

use fencelock_testkit::proxy::{AfterDrop, DropReply, Proxy, framing};
use fencelock_testkit::servers::{ServerError, TestZooKeeper, ZooKeeperOptions};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::within;

#[tokio::test]
async fn the_reply_of_one_zookeeper_request_is_lost_whatever_pings_come_between() {
    let zookeeper = TestZooKeeper::standalone().await.unwrap();
    let proxy = Proxy::framed(zookeeper.connect_string(), framing::zookeeper).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    let framed = |parts: &[&[u8]]| {
        let body = parts.concat();
        [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat()
    };
    let int = |n: i32| n.to_be_bytes();
    // Version, last zxid, timeout, session and an empty password: a new session.
    let hello = framed(&[&int(0), &[0; 8], &int(4000), &[0; 8], &int(16), &[0; 16], &[0]]);
    let ping = framed(&[&int(-2), &int(11)]);
    // `exists /` with a watch bit of 0.
    let exists = |xid| framed(&[&int(xid), &int(3), &int(1), b"/", &[0]]);
    client.write_all(&hello).await.unwrap();
    proxy.drop_reply(DropReply::nth(2, AfterDrop::Reset)).unwrap();
    let requests = [&ping[..], &exists(1), &ping, &exists(2), &exists(3)].concat();
    client.write_all(&requests).await.unwrap();
    within(proxy.dropped_reply()).await;
    let stats = proxy.stats();
    assert_eq!((stats.requests, stats.replies, stats.garbled), (3, 1, 0), "{stats:?}");
}

#[tokio::test]
async fn a_missing_java_or_jar_is_reported_with_the_package() {
    for absent in [
        ZooKeeperOptions::new().java("/nonexistent/java"),
        ZooKeeperOptions::new().jars("/nonexistent"),
    ] {
        let error = absent.standalone().await.unwrap_err();
        assert!(matches!(error, ServerError::NotInstalled { .. }));
        assert!(error.to_string().ends_with("apt-get install zookeeper"), "{error}");
    }
}
