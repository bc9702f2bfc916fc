#![allow(unused_variables)]

use fencelock::{Locks, locked};

#[locked(by = locks, name = "job")]
async fn job(locks: &Locks) -> Result<(), std::fmt::Error> {
    Ok(())
}

fn main() {}
