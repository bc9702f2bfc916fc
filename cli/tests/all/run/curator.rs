//! Together with Apache Curator's `InterProcessReadWriteLock`, on ZooKeeper: the command takes either
//! of its locks.

#[path = "../../../../backend-zk/tests/faults/foreign/peer.rs"]
#[allow(dead_code, reason = "the backend's own tests use the rest")]
mod peer;

use fencelock_testkit::servers::TestZooKeeper;

use crate::support::Scratch;
use peer::Peer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_is_a_writer_and_a_reader_to_curator() {
    let server = TestZooKeeper::standalone().await.expect("ZooKeeper starts");
    let host = server.connect_string();
    let mut curator = Peer::start(&host).await;
    let here = Scratch::new();
    let url = format!("zk://{host}/app?prefix=");
    let code = |mode| here.code(&["--url", &url, "-n", mode, "orders", "--", "true"]);
    for (ours, theirs, together) in [
        ("--write", "read", false),
        ("--write", "write", false),
        ("-s", "read", true),
        ("-s", "write", false),
        ("-x", "mutex", false),
    ] {
        let mut job = here.hold(&["--url", &url, ours], "orders");
        let answer = curator.ask(&format!("{theirs} /app/orders 300")).await;
        let expected = if together { "held" } else { "busy" };
        assert_eq!(answer, expected, "{theirs} of Curator with {ours}");
        if together {
            assert_eq!(curator.ask("release").await, "released");
        } else {
            // It waits, and is granted when the job has ended.
            curator.send(&format!("{theirs} /app/orders 20000")).await;
        }
        assert_eq!(job.hung_up(), 0);
        if together {
            continue;
        }
        assert_eq!(curator.answer().await, "held");
        assert_eq!(code(ours), 75, "{ours} with {theirs} of Curator");
        assert_eq!(curator.ask("release").await, "released");
        assert_eq!(code(ours), 0);
    }
}
