//! The errors of connecting to something else than a ZooKeeper server.

use fencelock_core::ErrorKind;
use fencelock_testkit::servers::ScriptedServer;
use fencelock_zk::zookeeper_client::{Acls, CreateMode};
use futures_util::future::join_all;

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_a_zookeeper_is_named() {
    let answers = [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "is an HTTP server"),
        (b"-ERR unknown command\r\n", "redis://"),
        (b"\x15\x03\x01\x00\x02\x02\x32", "tls_ca=FILE"),
        (b"220 mail.example.com ESMTP\r\n", "is not a ZooKeeper server"),
        // A frame that never ends.
        (&[b'p'; 5000], "is not a ZooKeeper server"),
    ];
    join_all(answers.map(async |(answer, says)| {
        let server = ScriptedServer::start(move |_| answer.to_vec()).await.expect("it listens");
        let url = format!("zk://{}/x?unreachable_after=5s", server.addr());
        let error = soon("connecting ends", try_connect(&url)).await.expect_err("not connected");
        assert_kind(&error, ErrorKind::Unreachable);
        let text = error_chain(&error);
        let addr = server.addr().to_string();
        assert!(text.contains(says) && text.contains(&addr), "{text}");
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clickhouse_keeper_is_refused() {
    let testbed = Testbed::alone().await;
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for path in ["/keeper", "/keeper/api_version"] {
        testbed.client.create(path, b"2", &options).await.expect("the node is created");
    }
    let url = format!("zk://{}/x", testbed.servers.connect_string());
    let error = soon("connecting ends", try_connect(&url)).await.expect_err("not connected");
    assert_kind(&error, ErrorKind::Refused);
    assert!(error_chain(&error).contains("ClickHouse Keeper"), "{error}");
    let root = testbed.client.check_stat("/x").await.expect("the server answers");
    assert!(root.is_none(), "nothing was created there");
    for path in ["/keeper/api_version", "/keeper"] {
        testbed.client.delete(path, None).await.expect("the node is deleted");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_no_kind_of_server_is_reported() {
    let server = ScriptedServer::start(|_| Vec::new()).await.expect("it listens");
    let url = format!("zk://{}/x?unreachable_after=5s", server.addr());
    drop(server);
    let error = soon("connecting ends", try_connect(&url)).await.expect_err("not connected");
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(error_chain(&error).contains("no server accepts a connection"), "{error}");
}
