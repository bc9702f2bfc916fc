//! The work of a peer: an unprotected counter that only the lock protects.

use std::path::Path;

use fencelock_core::{Lock, Result};

use crate::history::Worker;
use crate::how::How;
use crate::processes::trouble;

/// Acquires and releases `rounds` times and counts in between.
pub(crate) async fn work(
    lock: &Lock,
    name: &str,
    how: How,
    rounds: u32,
    counter: &Path,
    history: &Path,
) -> Result<()> {
    let mut worker = Worker::to_file(history).map_err(|error| trouble(&error))?;
    for _ in 0..rounds {
        let (guard, claim) = worker.acquire_lock(lock, name, how).await?;
        if how == How::Exclusive {
            count(counter).map_err(|error| trouble(&error))?;
        }
        tokio::task::yield_now().await;
        worker.release(guard, &claim).await?;
    }
    Ok(())
}

/// Read, add, write: another one in between loses an update.
fn count(counter: &Path) -> std::io::Result<()> {
    let text = std::fs::read_to_string(counter)?;
    let count: u64 = text.trim().parse().map_err(std::io::Error::other)?;
    std::thread::yield_now();
    // By a second file, since a reader must never see half a number after a kill.
    let next = counter.with_extension(format!("{}", std::process::id()));
    std::fs::write(&next, (count + 1).to_string())?;
    std::fs::rename(&next, counter)
}
