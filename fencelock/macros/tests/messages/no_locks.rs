#![allow(unused_variables)]

use fencelock::{Locks, locked};

#[locked(name = "job")]
async fn job(locks: &Locks) -> fencelock::Result<()> {
    Ok(())
}

fn main() {}
