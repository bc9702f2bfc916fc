//! A stock in a SQL database that no late write can corrupt: each write passes the fencing token of its
//! lock, and a statement rejects a smaller one than the database has seen.
//!
//! ```sh
//! cargo run -p sql-fencing
//! cargo test -p sql-fencing
//! ```
//!
//! Both compile SQLite from C, so that no library has to be installed. That takes a while: the workspace's own tests
//! leave this package out, and `./test --long` has it.
//!
//! The program runs the statements in `sql/sqlite`. Those in `sql/postgres` differ only in the names of their
//! parameters and the types of the schema; they were tried on PostgreSQL 15, by hand.

mod database;
#[cfg(test)]
mod tests;

use std::time::Duration;

use database::Database;
use fencelock::Locks;
use tokio::time::sleep;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let locks = fencelock::connect("mem://").await?;
    late_write(&locks, &mut Database::open()?).await?;
    late_transaction(&locks, &mut Database::open()?).await?;
    println!("both late writes were rejected");
    Ok(locks.close().await?)
}

/// The token is a column of the row: one statement checks it and writes.
async fn late_write(locks: &Locks, database: &mut Database) -> Result<()> {
    let lock = locks.lock("stock/lamp");
    // A buyer that reads and is then paused: its lock is not renewed.
    let paused = lock.clone().fixed_lease(Duration::from_millis(100)).acquire().await?;
    let seen = database.remaining("lamp")?;
    paused.lost().await;

    let guard = lock.acquire().await?;
    for _ in 0..2 {
        let remaining = database.remaining("lamp")?;
        assert!(database.set_remaining("lamp", remaining - 1, guard.fencing_token())?);
    }
    guard.release().await?;

    // The paused buyer continues with what it saw.
    let late = database.set_remaining("lamp", seen - 1, paused.fencing_token())?;
    assert!(!late, "the late write must be rejected");
    assert_eq!(database.remaining("lamp")?, seen - 2);
    Ok(())
}

/// The lock's last token is a row of its own: a transaction begins with it and may write to any table.
async fn late_transaction(locks: &Locks, database: &mut Database) -> Result<()> {
    let lock = locks.lock("stock/lamp");
    let paused = lock.clone().fixed_lease(Duration::from_millis(100)).acquire().await?;
    // Longer than the lease, without looking at the guard.
    sleep(Duration::from_millis(200)).await;

    let guard = lock.acquire().await?;
    assert!(database.order("lamp", "Ada", guard.name().as_str(), guard.fencing_token())?);
    guard.release().await?;

    let late = database.order("lamp", "Bob", paused.name().as_str(), paused.fencing_token())?;
    assert!(!late, "the late transaction must be rolled back");
    assert_eq!(database.buyers()?, ["Ada"]);
    Ok(())
}
