//! A batch in shards: eight workers import one each, and a reducer that needs all of them waits at a `latch`.
//! A worker that is started again, since its supervisor does not know how far it came, counts once.
//!
//! ```sh
//! cargo run --example batch
//! cargo run --features redis --example batch -- redis://127.0.0.1/
//! cargo run --example batch -- --without # the reducer does not wait: ends with an error
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fencelock::{Latch, Locks};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SHARDS: u32 = 8;
/// The rows of each shard: 0 to 99, 100 to 199 and so on.
const ROWS: u32 = 100;

/// The latch of a batch, the same for workers and reducer. It exists from the first count-down on.
fn latch(locks: &Locks, batch: &str) -> Latch {
    locks.latch(batch, SHARDS).keep_for(Duration::from_secs(86_400))
}

/// The table of results, by shard: a worker that is started again replaces its row.
type Results = Mutex<BTreeMap<u32, u32>>;

/// Imports a shard, and returns how many the batch still waits for.
async fn worker(locks: Locks, batch: String, shard: u32, results: Arc<Results>) -> Result<u32> {
    sleep(Duration::from_millis(10)).await; // The work.
    let sum = (shard * ROWS..(shard + 1) * ROWS).sum();
    results.lock().await.insert(shard, sum);
    // Last of all: what has counted down is done. By its name, so that it counts once.
    Ok(latch(&locks, &batch).count_down_as(&format!("shard-{shard}")).await?)
}

/// Adds up the results of all shards.
async fn reducer(locks: Locks, batch: String, results: Arc<Results>, without: bool) -> Result<u32> {
    if !without {
        latch(&locks, &batch).wait_at_most(Duration::from_secs(60)).wait().await?;
    }
    Ok(results.lock().await.values().sum())
}

#[tokio::main]
async fn main() -> Result<()> {
    let without = std::env::args().any(|arg| arg == "--without");
    let url = std::env::args().skip(1).find(|arg| arg != "--without");
    let url = url.or_else(|| std::env::var("FENCELOCK_URL").ok());
    let locks = fencelock::connect(url.as_deref().unwrap_or("mem://")).await?;

    // A name for each batch, since an open latch stays open. Usually a date or the number of a job.
    let batch = format!("import/{}", locks.ids("imports").next().await?);
    let results = Arc::new(Results::default());
    let start = |shard| worker(locks.clone(), batch.clone(), shard, results.clone());

    // It waits before there is any worker.
    let reducer = tokio::spawn(reducer(locks.clone(), batch.clone(), results.clone(), without));
    let workers = (0..SHARDS - 1).map(start).collect::<JoinSet<_>>();
    workers.join_all().await.into_iter().collect::<Result<Vec<u32>>>()?;
    let left = start(3).await?;
    println!("all but one shard are imported, shard 3 twice: {left} left");
    assert_eq!(left, 1, "a worker that is started again counts once");

    start(SHARDS - 1).await?;
    let sum = reducer.await??;
    println!("the sum of all shards is {sum}");
    assert_eq!(sum, (0..SHARDS * ROWS).sum(), "the reducer has the results of all shards");
    Ok(locks.close().await?)
}
