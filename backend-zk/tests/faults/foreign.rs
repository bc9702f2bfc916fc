//! Apache Curator on the same paths: its locks and ours exclude each other, in both directions. And
//! a server that has seen more claims than any test can make.

mod numbers;
mod peer;

use std::time::Duration;

use fencelock_core::{Guard, Lock, Locks, url};
use fencelock_zk::SCHEME;
use peer::Peer;
use tokio::time::timeout;

use crate::support::shared_server;

const PATIENCE: Duration = Duration::from_secs(20);

async fn acquire(lock: Lock) -> Guard {
    timeout(PATIENCE, lock.acquire()).await.expect("in time").expect("acquired")
}

async fn is_busy(lock: Lock) -> bool {
    timeout(PATIENCE, lock.try_acquire()).await.expect("in time").expect("no error").is_none()
}

fn ways(locks: &Locks, name: &str) -> [(&'static str, Lock); 3] {
    let both = locks.rw_lock(name);
    [("mutex", locks.lock(name)), ("read", both.read()), ("write", both.write())]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curators_locks_and_ours_exclude_each_other() {
    let host = shared_server().await.connect_string();
    let locks = url::connect(&[SCHEME], &format!("zk://{host}/app?prefix=")).await.unwrap();
    let mut peer = Peer::start(&host).await;
    for (ours, lock) in ways(&locks, "orders") {
        for theirs in ["mutex", "read", "write"] {
            // Curator's two classes do not exclude each other.
            if (ours == "mutex") != (theirs == "mutex") {
                continue;
            }
            let together = ours == "read" && theirs == "read";
            let expected = if together { "held" } else { "busy" };
            let guard = acquire(lock.clone()).await;
            let answer = peer.ask(&format!("{theirs} /app/orders 300")).await;
            assert_eq!(answer, expected, "{theirs} of Curator with our {ours}");
            if together {
                assert_eq!(peer.ask("release").await, "released");
            } else {
                // Curator waits, and is granted by our release.
                peer.send(&format!("{theirs} /app/orders 20000")).await;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            guard.release().await.unwrap();
            if !together {
                assert_eq!(peer.answer().await, "held");
                assert!(is_busy(lock.clone()).await, "our {ours} with {theirs} of Curator");
                // We wait, and are granted by Curator's release.
                let waiter = tokio::spawn(acquire(lock.clone()));
                tokio::time::sleep(Duration::from_millis(200)).await;
                assert!(!waiter.is_finished());
                assert_eq!(peer.ask("release").await, "released");
                waiter.await.unwrap().release().await.unwrap();
            }
        }
    }
    // Each lock that Curator holds blocks ours, also of the other class.
    for theirs in ["mutex", "write"] {
        assert_eq!(peer.ask(&format!("{theirs} /app/orders 1000")).await, "held");
        for (ours, lock) in ways(&locks, "orders") {
            assert!(is_busy(lock).await, "our {ours} with {theirs} of Curator");
        }
        assert!(is_busy(locks.semaphore("orders", 3)).await);
        assert_eq!(peer.ask("release").await, "released");
    }
    curators_locks_wait_for_a_writer_that_became_a_reader(&locks, &mut peer).await;
}

/// Curator knows writers by their nodes' names: it waits, and our readers do not.
async fn curators_locks_wait_for_a_writer_that_became_a_reader(locks: &Locks, peer: &mut Peer) {
    let both = locks.rw_lock("orders");
    for theirs in ["write", "read"] {
        let writer = acquire(both.write()).await;
        writer.downgrade().await.unwrap();
        let reader = acquire(both.read()).await;
        assert_eq!(peer.ask(&format!("{theirs} /app/orders 300")).await, "busy", "{theirs}");
        peer.send(&format!("{theirs} /app/orders 20000")).await;
        reader.release().await.unwrap();
        writer.release().await.unwrap();
        assert_eq!(peer.answer().await, "held", "{theirs}");
        assert_eq!(peer.ask("release").await, "released");
    }
}
