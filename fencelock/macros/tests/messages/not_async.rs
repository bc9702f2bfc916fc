#![allow(unused_variables)]

use fencelock::{Locks, locked};

#[locked(by = locks, name = "job")]
fn job(locks: &Locks) -> fencelock::Result<()> {
    Ok(())
}

fn main() {}
