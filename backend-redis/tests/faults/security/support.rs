//! Shared by the tests: uses all operations of a store.

use std::time::Duration;

use fencelock_core::{Error, ErrorKind, Guard, Lock, Locks, LostReason, Result};
use fencelock_testkit::helpers::{PATIENCE, error_chain};
use tokio::time::Instant;

pub(crate) use crate::support::{connect_once, try_connect as connect};

/// Connects, and uses every operation of the store; returns the first error.
pub(crate) async fn use_all(url: &str) -> Result<()> {
    let using = async {
        let locks = connect(url).await?;
        let used = steps(&locks).await;
        locks.close().await?;
        used
    };
    let late = || wrong(&format!("not done within {PATIENCE:?}"));
    tokio::time::timeout(PATIENCE, using).await.unwrap_or_else(|_| Err(late()))
}

async fn steps(locks: &Locks) -> Result<()> {
    let profile = format!("{:?}", locks.profile().exclusion_fails_when);
    require(!profile.contains("unknown"), "the profile knows the server")?;
    hand_off(locks).await?;
    give_up(locks).await?;
    renew(locks).await?;
    share(locks).await?;
    evict(locks).await?;
    use_cells(locks).await
}

/// Only acquires and releases.
pub(crate) async fn use_once(url: &str) -> Result<()> {
    let locks = connect(url).await?;
    let guard = locks.lock("once").acquire().await?;
    require(locks.lock("once").try_acquire().await?.is_none(), "a held lock is busy")?;
    guard.release().await?;
    locks.close().await
}

async fn hand_off(locks: &Locks) -> Result<()> {
    let guard = locks.lock("a").acquire().await?;
    let lock = locks.lock("a");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    while locks.inspect("a").await?.waiters.is_empty() {
        require(!waiting.is_finished(), "it waits its turn")?;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    guard.release().await?;
    let next = waiting.await.unwrap()?;
    require(locks.lock("a").try_acquire().await?.is_none(), "a held lock is busy")?;
    next.release().await
}

/// A waiter that gives up leaves the queue, in the background.
async fn give_up(locks: &Locks) -> Result<()> {
    let guard = locks.lock("a").acquire().await?;
    let waited = locks.lock("a").wait_at_most(Duration::from_millis(50)).acquire().await;
    require(waited.is_err(), "it is held")?;
    let start = Instant::now();
    while !locks.inspect("a").await?.waiters.is_empty() {
        require(start.elapsed() < PATIENCE, "no waiter is left")?;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    guard.release().await
}

async fn renew(locks: &Locks) -> Result<()> {
    let short = |lock: Lock| lock.ttl(Duration::from_secs(2));
    let exclusive = short(locks.lock("b")).acquire().await?;
    let shared = short(locks.rw_lock("c").read()).acquire().await?;
    for guard in [&exclusive, &shared] {
        until_renewed(guard).await?;
    }
    exclusive.release().await?;
    shared.release().await
}

async fn until_renewed(guard: &Guard) -> Result<()> {
    let first = guard.valid_until();
    while guard.valid_until() == first {
        require(guard.is_held(), "it is renewed")?;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn share(locks: &Locks) -> Result<()> {
    let one = locks.rw_lock("d").read().acquire().await?;
    let other = locks.rw_lock("d").read().acquire().await?;
    require(locks.rw_lock("d").write().try_acquire().await?.is_none(), "readers hold it")?;
    one.release().await?;
    other.release().await?;
    let permit = locks.semaphore("d", 1).acquire().await?;
    require(locks.semaphore("d", 1).try_acquire().await?.is_none(), "no permit is left")?;
    permit.release().await
}

async fn evict(locks: &Locks) -> Result<()> {
    let guard = locks.lock("e").acquire().await?;
    let holder = locks.inspect("e").await?.holders.pop();
    let holder = holder.ok_or_else(|| wrong("a holder is seen"))?;
    require(locks.evict("e", &holder.id).await?, "a holder is evicted")?;
    require(guard.lost().await == LostReason::TakenAway, "the holder is notified")
}

/// Writes a cell, and waits for changes of it.
pub(crate) async fn use_cells(locks: &Locks) -> Result<()> {
    let (cell, mut watch) = (locks.cell("f"), locks.cell("f").watch().await?);
    require(watch.next().await?.is_none(), "there is no cell")?;
    require(cell.compare_and_set(None, *b"1").await?, "it is written")?;
    require(watch.next().await?.is_some(), "the write is seen")?;
    let brief = locks.latch("g", 1);
    brief.count_down().await?;
    brief.wait().await?;
    brief.remove().await?;
    cell.remove().await?;
    require(watch.next().await?.is_none(), "the removal is seen")
}

fn require(is_so: bool, promise: &str) -> Result<()> {
    if is_so { Ok(()) } else { Err(wrong(promise)) }
}

fn wrong(promise: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("not so: {promise}"))
}

/// All texts of an error.
pub(crate) fn words(error: &Error) -> String {
    format!("{error:?}\n{error:#?}\n{}", error_chain(error))
}
