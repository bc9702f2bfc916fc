#![allow(unused_variables)]

use fencelock::{Locks, locked};

#[locked("job")]
async fn job(locks: &Locks) -> fencelock::Result<()> {
    Ok(())
}

fn main() {}
