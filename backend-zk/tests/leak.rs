//! Connecting and closing, again and again, leaves neither a descriptor nor a thread. A process of
//! its own, whose descriptors and threads are counted.

#![allow(clippy::unwrap_used)]

use fencelock_core::url;
use fencelock_testkit::helpers::{acquire, connect_retrying, release, soon, until};
use fencelock_testkit::servers::TestZooKeeper;
use fencelock_zk::SCHEME;

fn count(what: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_and_closing_leaves_neither_descriptors_nor_threads() {
    let server = TestZooKeeper::standalone().await.unwrap();
    let url = format!("zk://{}/leak?session=4s", server.connect_string());
    let round = async |closes: bool| {
        let locks = connect_retrying(|| url::connect(&[SCHEME], &url)).await;
        release(acquire(&locks, "one").await).await;
        if closes {
            soon("it closes", locks.close()).await.unwrap();
        }
    };
    // What stays for the whole process is there after the first ones.
    for closes in [true, false, true] {
        round(closes).await;
    }
    let (descriptors, threads) = (count("fd"), count("task"));
    for at in 0..50 {
        round(at % 2 == 0).await;
    }
    until("all descriptors are closed", async || count("fd") <= descriptors).await;
    until("all threads have ended", async || count("task") <= threads).await;
}
