//! ZooKeeper, alone and as an ensemble.

use std::io::ErrorKind;
use std::time::Duration;

use fencelock_testkit::proxy::{AfterDrop, Direction, DropReply, Proxy, framing};
use fencelock_testkit::servers::{ServerError, TestZooKeeper, ZooKeeperOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{is_running, process_state, within};

#[tokio::test]
async fn zookeeper_serves_freezes_restarts_and_ends() {
    let zookeeper = TestZooKeeper::standalone().await.unwrap();
    let [server] = zookeeper.servers() else { panic!("{zookeeper:?}") };
    assert_eq!(zookeeper.connect_string(), format!("127.0.0.1:{}", server.port()));
    assert_eq!(server.four_letter("ruok").await.unwrap(), "imok");
    assert!(server.four_letter("mntr").await.unwrap().contains("zk_server_state\tstandalone"));
    assert!(zookeeper.leader().await.is_some());

    let mut client = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
    server.freeze().await.unwrap();
    assert_eq!(process_state(server.pid()), Some('T'));
    client.write_all(b"ruok").await.unwrap();
    assert_eq!(client.try_read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    server.thaw().unwrap();
    let mut answer = String::new();
    within(client.read_to_string(&mut answer)).await.unwrap();
    assert_eq!(answer, "imok");

    let first = server.pid();
    server.kill().unwrap();
    assert!(!is_running(first));
    server.restart().await.unwrap();
    assert_ne!(server.pid(), first);
    assert_eq!(server.four_letter("ruok").await.unwrap(), "imok");

    let (second, directory) = (server.pid(), server.directory().to_owned());
    drop(zookeeper);
    assert!(!is_running(second) && !directory.exists());
}

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
async fn an_ensemble_elects_again_when_its_leader_is_killed() {
    let zookeeper = ZooKeeperOptions::new().ensemble(3).await.unwrap();
    assert_eq!(zookeeper.servers().len(), 3);
    assert_eq!(zookeeper.connect_string().split(',').count(), 3);
    let leader = zookeeper.leader().await.unwrap();
    leader.kill().unwrap();
    let next = within(async {
        loop {
            if let Some(next) = zookeeper.leader().await {
                return next;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_ne!(next.port(), leader.port());
    leader.restart().await.unwrap();
    assert!(leader.four_letter("srvr").await.unwrap().contains("Mode: follower"));

    zookeeper.restart().await.unwrap();
    assert!(zookeeper.leader().await.is_some());
    let pids: Vec<_> = zookeeper.servers().iter().map(|server| server.pid()).collect();
    drop(zookeeper);
    assert!(!pids.into_iter().any(is_running));
}

/// With a small sync limit it notices, which shows that nothing bypasses the proxies.
#[tokio::test]
async fn a_follower_is_cut_off_from_its_peers_but_not_from_clients() {
    let options = ZooKeeperOptions::new().sync_limit(3).peers_through_proxies();
    let zookeeper = options.ensemble(3).await.unwrap();
    let leader = zookeeper.leader().await.unwrap().port();
    let servers = zookeeper.servers().iter();
    let follower = servers.clone().position(|server| server.port() != leader).unwrap();
    let says = async |what| {
        let answer = zookeeper.servers()[follower].four_letter("srvr").await.unwrap();
        answer.contains(what)
    };
    assert!(says("Mode: follower").await);
    assert_eq!(zookeeper.peer_links_of(follower).count(), 2);
    for wire in zookeeper.peer_links_of(follower) {
        // With the other follower it has nothing but elections to talk about.
        within(wire.wait_for(|stats| stats.open > 0 && stats.to_client.forwarded > 0)).await;
        wire.stall(Direction::ToServer);
        wire.stall(Direction::ToClient);
    }
    for (what, heals) in [("not currently serving", true), ("Mode: follower", false)] {
        within(async {
            while !says(what).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        assert_eq!(zookeeper.leader().await.unwrap().port(), leader);
        for wire in zookeeper.peer_links_of(follower).filter(|_| heals) {
            wire.heal().await.unwrap();
        }
    }
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
