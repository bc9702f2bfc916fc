//! Types that only the compiler knows, such as those behind an alias.

use fencelock::{Locks, Result, locked};

type Answer<T> = Option<T>;
type Fallible<T> = std::result::Result<T, std::fmt::Error>;

#[locked(by = locks, name = "job")]
async fn returns_an_alias(locks: &Locks) -> Answer<u32> {
    Some(3)
}

#[locked(by = locks, name = "job")]
async fn no_conversion(locks: &Locks) -> std::result::Result<(), std::fmt::Error> {
    Ok(())
}

#[locked(by = locks, name = "job")]
async fn no_conversion_of_an_alias(locks: &Locks) -> Fallible<()> {
    Ok(())
}

#[locked(by = locks, name = "job", try)]
async fn try_without_option(locks: &Locks) -> Result<u32> {
    Ok(3)
}

#[locked(by = locks, name = "job", try)]
async fn try_without_conversion(locks: &Locks) -> Fallible<Option<u32>> {
    Ok(Some(3))
}

#[locked(by = url, name = "job")]
async fn locks_of_another_type(url: &str) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = order)]
async fn name_of_another_type(locks: &Locks, order: u64) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job", owner = "me")]
async fn owner_of_another_type(locks: &Locks) -> Result<()> {
    Ok(())
}

fn main() {}
