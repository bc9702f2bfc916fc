//! What is wrong in a body is said as in any other function.

use fencelock::{Locks, Result, locked};

#[locked(by = locks, name = "job")]
async fn ends_with_another_type(locks: &Locks) -> Result<u32> {
    Ok("three")
}

#[locked(by = locks, name = "job")]
async fn ends_with_a_semicolon(locks: &Locks) -> Result<u32> {
    Ok(3);
}

#[locked(by = locks, name = "job")]
async fn returns_another_type(locks: &Locks, is_early: bool) -> Result<u32> {
    if is_early {
        return Some(3);
    }
    Ok(3)
}

#[locked(by = locks, name = "job", try)]
async fn tries_without_some(locks: &Locks) -> Result<Option<u32>> {
    Ok(3)
}

#[locked(by = locks, name = "job")]
async fn has_another_error(locks: &Locks, text: &str) -> Result<u32> {
    Ok(text.parse()?)
}

#[locked(by = locks, name = "job")]
async fn is_empty(locks: &Locks) -> Result<u32> {}

fn main() {}
