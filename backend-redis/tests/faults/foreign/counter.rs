//! All libraries increment one counter that only the lock protects.

use std::path::Path;
use std::time::Duration;

use fencelock_core::{FencingToken, Lock};

use crate::foreign::peer::{Library, Peer};
use crate::foreign::testbed::Testbed;

/// Increments of each process.
const TIMES: u32 = 60;

#[tokio::test]
async fn no_increment_is_lost_among_three_libraries() {
    let testbed = Testbed::start().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("counter");
    std::fs::write(&file, "0").unwrap();

    let mut peers = Vec::new();
    for library in Library::ALL {
        for _ in 0..2 {
            peers.push(Peer::start(library, &testbed.server).await);
        }
    }
    let order = format!("count lock:counter {} {TIMES}", file.display());
    for peer in &mut peers {
        peer.send(&order).await;
    }
    let (one, other) = (testbed.locks.lock("counter"), testbed.locks.rw_lock("counter").write());
    tokio::join!(count(&one, &file), count(&other, &file));
    for peer in &mut peers {
        assert_eq!(peer.answer().await, "counted");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), (6 * TIMES).to_string());
}

async fn count(lock: &Lock, file: &Path) {
    let mut last = FencingToken::new(0);
    for _ in 0..TIMES {
        let guard = lock.acquire().await.unwrap();
        // Holders of other libraries in between have no token.
        assert!(guard.fencing_token() > last);
        last = guard.fencing_token();
        let number: u32 = std::fs::read_to_string(file).unwrap().parse().unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        std::fs::write(file, (number + 1).to_string()).unwrap();
        guard.release().await.unwrap();
        // Ours hand off to each other: without a pause the others would have no chance.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
