//! Nodes of a cluster that tell a map of slots which is not, or not wholly, that of the others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use fencelock_conformance::servers::{Babbler, RedisOptions};

use crate::support::*;

/// The commands in what a client has sent at a time, by name.
fn commands(heard: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(heard);
    let mut lines = text.split("\r\n");
    let mut names = Vec::new();
    while let Some(line) = lines.next() {
        let Some(count) = line.strip_prefix('*').and_then(|count| count.parse::<usize>().ok())
        else {
            continue;
        };
        let words: Vec<&str> = lines.by_ref().take(2 * count).skip(1).step_by(2).collect();
        names.push(words.join(" "));
    }
    names
}

/// A node of a cluster that is made up: whoever asks for a lock is granted it, unless `is_cut_off`.
async fn node(map: Arc<OnceLock<String>>, is_cut_off: Arc<AtomicBool>) -> Babbler {
    let answer = move |heard: &[u8]| {
        let one = |command: &String| match command.split(' ').next().unwrap_or_default() {
            "HELLO" => "%1\r\n+proto\r\n:3\r\n".to_owned(),
            "SUBSCRIBE" => {
                let channel = command.split(' ').nth(1).unwrap_or_default();
                format!(">3\r\n+subscribe\r\n${}\r\n{channel}\r\n:1\r\n", channel.len())
            }
            "INFO" => "$20\r\nredis_mode:cluster\r\n\r\n".to_owned(),
            "CLUSTER" => map.get().expect("a map").clone(),
            "EVALSHA" if is_cut_off.load(Ordering::Relaxed) => {
                "-CLUSTERDOWN The cluster is down\r\n".to_owned()
            }
            "EVALSHA" => "$16\r\n1732212174000001\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        };
        commands(heard).iter().map(one).collect::<String>().into_bytes()
    };
    Babbler::start(answer).await.expect("a port is free")
}

fn map_of(masters: [&Babbler; 3]) -> String {
    let mut map = "*3\r\n".to_owned();
    for (index, master) in masters.iter().enumerate() {
        let (first, last) = (index * 5461, if index == 2 { 16383 } else { index * 5461 + 5460 });
        let port = master.addr().port();
        map += &format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n");
    }
    map
}

/// Row 12, of a cluster: the node that a client asks is cut off from the others, and goes on telling
/// its old map. The others have agreed on another master of its slots.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_map_of_a_node_that_is_cut_off_is_not_believed() {
    let (old, new) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
    let (cut_off, serving) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let lone = node(old.clone(), cut_off).await;
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(node(new.clone(), serving.clone()).await);
    }
    old.set(map_of([&lone, &others[0], &others[1]])).unwrap();
    new.set(map_of([&others[2], &others[0], &others[1]])).unwrap();
    let locks = connect(&format!("redis-cluster://{}", lone.addr())).await;
    // One of each third of the slots.
    for name in ["a", "b", "c", "d", "e", "f"] {
        let guard = within(ms(10_000), "another node grants", locks.lock(name).acquire()).await;
        assert_eq!(guard.expect("granted").fencing_token().get(), 1_732_212_174_000_001);
    }
}

/// It has met no other node, so that it does not know at which address it is reached, and says
/// nothing in its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_one_node_is_used() {
    let server = RedisOptions::new().lone_cluster().await.unwrap();
    let url = server.url().replace("redis:", "redis-cluster:");
    let (one, other) = (connect(&url).await, connect(&url).await);
    let held = hold(&one, "lock").await;
    let waiter = wait_for(&other, "lock");
    queued(&one, "lock", 1).await;
    give_back(held).await;
    give_back(granted(waiter).await).await;
    drained(&server).await;
}
