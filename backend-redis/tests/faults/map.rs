//! Servers other than the URL says, or that name others by wrong addresses: nodes with an old map of a
//! cluster, without a name, behind an address translation.

use std::sync::{Arc, OnceLock};

use fencelock_core::ErrorKind;
use fencelock_testkit::proxy::Proxy;
use fencelock_testkit::servers::{RedisOptions, TestRedis};

use crate::fake::{Call, FakeRedis};
use crate::support::*;

/// A simulated node of a cluster: grants every lock, unless `is_cut_off`.
async fn node(map: Arc<OnceLock<String>>, is_cut_off: bool) -> FakeRedis {
    let answer = move |call: &Call| match is_cut_off {
        true => "-CLUSTERDOWN The cluster is down\r\n".to_owned(),
        false => call.good(),
    };
    let other = move |command: &str| match command {
        "INFO" => Some("$20\r\nredis_mode:cluster\r\n\r\n".to_owned()),
        "CLUSTER" => Some(map.get().expect("a map").clone()),
        _ => None,
    };
    FakeRedis::with(answer, other).await
}

fn map_of(masters: [&FakeRedis; 3]) -> String {
    let mut map = "*3\r\n".to_owned();
    for (index, master) in masters.iter().enumerate() {
        let (first, last) = (index * 5461, if index == 2 { 16383 } else { index * 5461 + 5460 });
        let port = master.addr().port();
        map += &format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n");
    }
    map
}

/// Row 12, of a cluster: the node that a client asks is cut off from the others, and keeps reporting
/// its old map. The others have agreed on another master of its slots.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_map_of_a_node_that_is_cut_off_is_ignored() {
    let (old, new) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
    let lone = node(old.clone(), true).await;
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(node(new.clone(), false).await);
    }
    old.set(map_of([&lone, &others[0], &others[1]])).unwrap();
    new.set(map_of([&others[2], &others[0], &others[1]])).unwrap();
    let locks = connect(&format!("redis-cluster://{}", lone.addr())).await;
    // One of each third of the slots.
    for name in ["a", "b", "c", "d", "e", "f"] {
        let guard = soon("another node grants", locks.lock(name).acquire()).await;
        let guard = guard.expect("granted");
        assert_eq!(guard.fencing_token().get(), 1_700_000_000_000_000);
        release(guard).await;
    }
}

/// It has met no other node, so it does not know its own address, and reports an empty one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_one_node_is_used() {
    let server = RedisOptions::new().lone_cluster().await.unwrap();
    let url = server.url().replace("redis:", "redis-cluster:");
    let (one, other) = (connect(&url).await, connect(&url).await);
    let (held, waiter) = contested(&one, &other, "lock").await;
    hand_over(held, waiter).await;
    drained(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_another_kind_is_refused_with_the_right_url() {
    let (node, plain) = tokio::join!(RedisOptions::new().lone_cluster(), TestRedis::start());
    let (node, plain) = (node.unwrap(), plain.unwrap());
    let watched = RedisOptions::new().sentinel().await.unwrap();
    let sentinel = watched.sentinels()[0].addr();
    for (url, says) in [
        (format!("redis://{}", node.addr()), "use redis-cluster://"),
        (format!("redis-cluster://{}", plain.addr()), "use redis://"),
        (format!("redis://{sentinel}"), "use redis+sentinel://"),
        (format!("redis-cluster://{sentinel}"), "use redis+sentinel://"),
    ] {
        let error = soon(&url, try_connect(&url)).await.expect_err(&url);
        assert_kind(&error, ErrorKind::Refused);
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
}

/// The master is named by an address that is unreachable from here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_behind_an_address_translation_is_reached() {
    let watched = RedisOptions::new().sentinel().await.unwrap();
    let sentinels: Vec<String> =
        watched.sentinels().iter().map(|sentinel| sentinel.addr().to_string()).collect();
    let mut proxies = Vec::new();
    let mut map = Vec::new();
    for server in watched.nodes() {
        let proxy = Proxy::start(server.addr()).await.unwrap();
        map.push(format!("{}={}", server.addr(), proxy.addr()));
        proxies.push(proxy);
    }
    let (sentinels, map) = (sentinels.join(","), map.join(","));
    let url = format!("redis+sentinel://{sentinels}/{}?address_map={map}", watched.service());
    let locks = connect(&url).await;
    release(acquire(&locks, "lock").await).await;
    let passed: u64 = proxies.iter().map(|proxy| proxy.stats().accepted).sum();
    assert!(passed > 0, "no connection was made by the map");
}
