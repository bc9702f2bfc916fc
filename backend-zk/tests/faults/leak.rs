//! Connecting and closing, again and again, leaves neither a descriptor nor a thread. A process of
//! its own, whose descriptors and threads are counted.

use fencelock_testkit::servers::TestZooKeeper;

use crate::support::*;

fn count(what: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_and_closing_leaves_neither_descriptors_nor_threads() {
    if !is_alone("leak::connecting_and_closing_leaves_neither_descriptors_nor_threads") {
        return;
    }
    let server = TestZooKeeper::standalone().await.unwrap();
    let url = format!("zk://{}/leak?session=4s", server.connect_string());
    let round = async |closes: bool| {
        let locks = connect(&url).await;
        release(acquire(&locks, "one").await).await;
        if closes {
            soon("it closes", locks.close()).await.unwrap();
        }
    };
    // The first rounds open what stays open for the whole process.
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
