//! Nothing is wrong here.

use fencelock::{Locks, Result, locked};

#[locked(by = locks, name = "job")]
async fn job(locks: &Locks) -> Result<()> {
    Ok(())
}

fn main() {}
