//! 100 requests, ten at a time, each of which increments a number in a cache: the result is 100, and
//! less without the lock.
//!
//! ```sh
//! cargo run --example hundred_requests
//! cargo run --features redis --example hundred_requests -- redis://127.0.0.1/
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use fencelock::Locks;
use tokio::task::JoinSet;
use tokio::time::sleep;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A number in a cache that has only GET and SET. The sleep is the round trip, during which other
/// requests run: without a lock, ten of them read the same number and write the same result.
async fn count(visits: &AtomicU64) {
    let seen = visits.load(Relaxed);
    sleep(Duration::from_millis(2)).await;
    visits.store(seen + 1, Relaxed);
}

async fn request(locks: Option<&Locks>, visits: &AtomicU64) -> Result<()> {
    match locks {
        None => count(visits).await,
        Some(locks) => {
            let lock = locks.lock("visits").wait_at_most(Duration::from_secs(10));
            let guard = lock.acquire().await?;
            guard.run(count(visits)).await?;
            guard.release().await?;
        }
    }
    Ok(())
}

/// The result of ten clients, each of which makes ten requests one after the other.
async fn hundred_requests(locks: Option<Locks>) -> Result<u64> {
    let visits = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..10 {
        let (locks, visits) = (locks.clone(), visits.clone());
        clients.spawn(async move {
            for _ in 0..10 {
                request(locks.as_ref(), &visits).await?;
            }
            Result::Ok(())
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    Ok(visits.load(Relaxed))
}

// On one thread all ten clients read before the first of them writes, so that updates are certainly
// lost without the lock.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("FENCELOCK_URL").ok());
    let locks = fencelock::connect(url.as_deref().unwrap_or("mem://")).await?;
    let with = hundred_requests(Some(locks)).await?;
    let without = hundred_requests(None).await?;
    println!("100 requests counted {with} with the lock, {without} without");
    assert!(with == 100 && without < 100, "it is 100 with the lock, and less without");
    Ok(())
}
