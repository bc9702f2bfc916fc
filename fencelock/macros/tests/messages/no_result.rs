#![allow(unused_variables)]

use fencelock::{Locks, locked};

#[locked(by = locks, name = "job")]
async fn job(locks: &Locks) {}

fn main() {}
