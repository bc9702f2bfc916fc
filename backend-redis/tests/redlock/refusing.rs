//! A minority of nodes that reply and refuse, or that cannot be written to: rows 20, 22 and 24 on a quorum;
//! `classes` in the other program has the rest. Like in `away.rs`, no request waits for them.

use fencelock_testkit::servers::TestRedis;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::away::{ONE, with_a_minority};
use crate::shared::scripts_flushed;
use crate::support::*;

/// Sends a command without waiting for the reply.
async fn order(node: &TestRedis, command: &str) {
    let mut line = TcpStream::connect(node.addr()).await.expect("a connection");
    line.write_all(format!("{command}\r\n").as_bytes()).await.expect("a command");
    line.flush().await.expect("a command");
}

async fn says(node: &TestRedis, word: &str) -> bool {
    let info = redis_command(node, &["INFO", "persistence"]).await;
    info.lines().any(|line| line.trim_end() == word)
}

/// Row 20.
/// Fault 20: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_load_their_data_are_not_waited_for() {
    with_a_minority(
        &[ONE],
        async |quorum, _, node| {
            let node = &quorum.nodes[node];
            // 1 ms for each key, after each of which it serves the clients.
            redis_command(node, &["DEBUG", "POPULATE", "20000", "ballast"]).await;
            redis_command(node, &["CONFIG", "SET", "key-load-delay", "1000"]).await;
            redis_command(
                node,
                &["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"],
            )
            .await;
            order(node, "DEBUG RELOAD").await;
            until("it loads", async || says(node, "loading:1").await).await;
        },
        async |quorum, _, node| {
            let node = &quorum.nodes[node];
            assert!(says(node, "loading:1").await, "it was ready too early to test anything");
            redis_command(node, &["CONFIG", "SET", "key-load-delay", "0"]).await;
            until("it is ready", async || says(node, "loading:0").await).await;
            let remove = "for i = 0, 19999 do redis.call('DEL', 'ballast:' .. i) end";
            redis_command(node, &["EVAL", remove, "0"]).await;
        },
    )
    .await;
}

/// Row 22.
/// Fault 22: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_whose_writes_are_paused_are_not_waited_for() {
    with_a_minority(
        &[ONE],
        async |quorum, _, node| {
            redis_command(&quorum.nodes[node], &["CLIENT", "PAUSE", "600000", "WRITE"]).await;
        },
        async |quorum, _, node| {
            drop(redis_command(&quorum.nodes[node], &["CLIENT", "UNPAUSE"]).await);
        },
    )
    .await;
}

/// Row 24, on all nodes.
/// Fault 24: redlock
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_flush_is_not_noticed() {
    let quorum = TestQuorum::new(3, LONG).await;
    let (one, other) = (quorum.direct(LONG).await, quorum.direct(LONG).await);
    let flush = async || {
        for node in &quorum.nodes {
            redis_command(node, &["SCRIPT", "FLUSH"]).await;
        }
    };
    for _ in 0..2 {
        scripts_flushed(&one, &other, ms(9000), flush).await;
    }
    quorum.drained().await;
}
