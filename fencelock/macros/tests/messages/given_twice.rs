#![allow(unused_variables)]

use fencelock::{Locks, locked};

#[locked(by = locks, name = "job", wait = "3s", wait = "4s")]
async fn job(locks: &Locks) -> fencelock::Result<()> {
    Ok(())
}

fn main() {}
