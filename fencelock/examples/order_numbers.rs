//! Order numbers without gaps: 100 workers draw five each from one file, and no number is used twice.
//!
//! The file is the point here: a number is used or not drawn. Where gaps do no harm,
//! `locks.counter("order-number").add(1)` is all of it.
//!
//! ```sh
//! cargo run --example order_numbers
//! cargo run --features redis --example order_numbers -- redis://127.0.0.1/
//! ```

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencelock::Locks;
use tempfile::NamedTempFile;
use tokio::fs;
use tokio::task::JoinSet;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Reads the last number and writes the next. Two workers that read before either has written get the
/// same number; only the lock prevents that, since a file cannot compare fencing tokens as the
/// database in `flash_sale.rs` does.
async fn draw(directory: &Path) -> Result<u32> {
    let file = directory.join("last-order-number");
    let next = fs::read_to_string(&file).await?.parse::<u32>()? + 1;
    // Atomically, so that a crash leaves the old number or the new one.
    let mut draft = NamedTempFile::new_in(directory)?;
    write!(draft, "{next}")?;
    draft.persist(file)?;
    Ok(next)
}

async fn worker(locks: Locks, directory: PathBuf) -> Result<Vec<u32>> {
    let lock = locks.lock("order-number").wait_at_most(Duration::from_secs(30));
    let mut drawn = Vec::new();
    for _ in 0..5 {
        let guard = lock.acquire().await?;
        // Dropped if the lock is lost: no number is better than one that another worker has.
        drawn.push(guard.run(draw(&directory)).await??);
        guard.release().await?;
    }
    Ok(drawn)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("FENCELOCK_URL").ok());
    let locks = fencelock::connect(url.as_deref().unwrap_or("mem://")).await?;
    let directory = tempfile::tempdir()?;
    fs::write(directory.path().join("last-order-number"), "0").await?;

    let mut workers = JoinSet::new();
    for _ in 0..100 {
        workers.spawn(worker(locks.clone(), directory.path().to_owned()));
    }
    let numbers: Vec<u32> =
        workers.join_all().await.into_iter().collect::<Result<Vec<_>>>()?.concat();

    let different = BTreeSet::from_iter(&numbers);
    println!("100 workers drew {} numbers, {} of them different", numbers.len(), different.len());
    assert!(different.into_iter().copied().eq(1..=500), "each number from 1 to 500 is drawn once");
    Ok(())
}
