//! The end of the sequence numbers, which takes 2^31 claims of one lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fencelock_core::{Locks, url};
use fencelock_zk::SCHEME;
use fencelock_zk::zookeeper_client::Client;

use super::peer::make_numbers;
use super::{acquire, is_busy};
use crate::support::Borrowed;

async fn connect(host: &str) -> Locks {
    url::connect(&[SCHEME], &format!("zk://{host}/app?prefix=")).await.expect("connected")
}

async fn children(client: &Client) -> Vec<String> {
    client.list_children("/app/one").await.expect("a list")
}

/// ZooKeeper 3.8.0 gives its last numbers to several nodes: by its number alone, each of them would
/// be first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_claim_holds_by_a_number_that_other_nodes_have() {
    let borrowed = Borrowed::server().await;
    let servers = borrowed.servers();
    let host = servers.connect_string();
    acquire(connect(&host).await.lock("one")).await.release().await.unwrap();
    let [server] = servers.servers() else { panic!("one server") };
    server.kill().unwrap();
    make_numbers(&server.directory().join("data"), "/app/one", i32::MAX - 2).await;
    server.restart().await.unwrap();
    let client = Client::connect(&host).await.unwrap();
    client.delete("/app/one/other", None).await.unwrap();

    let (one, two) = (connect(&host).await, connect(&host).await);
    let first = acquire(one.lock("one")).await;
    assert!(children(&client).await[0].ends_with(&(i32::MAX - 2).to_string()));
    assert!(is_busy(two.lock("one")).await);
    let (held, last) =
        (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(first.fencing_token().get())));
    let claims: Vec<_> = (0..12)
        .map(|index| {
            let (held, last) = (held.clone(), last.clone());
            let lock = if index % 2 == 0 { one.lock("one") } else { two.lock("one") };
            tokio::spawn(async move {
                let guard = acquire(lock).await;
                assert!(!held.swap(true, Ordering::SeqCst), "both hold it");
                let token = guard.fencing_token().get();
                assert!(last.swap(token, Ordering::SeqCst) < token, "tokens rise");
                tokio::time::sleep(Duration::from_millis(5)).await;
                held.store(false, Ordering::SeqCst);
                guard.release().await.unwrap();
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    held.store(false, Ordering::SeqCst);
    first.release().await.unwrap();
    for claim in claims {
        claim.await.unwrap();
    }
    // The numbers have begun again.
    let guard = acquire(one.lock("one")).await;
    let [own] = &children(&client).await[..] else { panic!("one node") };
    let number: u32 = own[own.len() - 10..].parse().unwrap();
    assert!(number < 1000, "{own}");
    guard.release().await.unwrap();
}
