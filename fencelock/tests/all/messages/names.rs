//! Names that the compiler does not find in a format string.

use fencelock::{Locks, Result, locked};

#[locked(by = locks, name = "orders/{ordre}")]
async fn no_such_argument(locks: &Locks, order: u64) -> Result<()> {
    Ok(())
}

#[locked(by = lock, name = "job")]
async fn no_such_locks(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "orders/{order")]
async fn open_brace(locks: &Locks, order: u64) -> Result<()> {
    Ok(())
}

fn main() {}
