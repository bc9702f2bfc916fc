//! Arguments that do not exist, are missing, or contradict each other.

use fencelock::{Locks, Result, locked};

#[locked]
async fn nothing(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(name = "job")]
async fn no_locks(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks)]
async fn no_name(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked("job")]
async fn not_an_argument(locks: &Locks) -> Result<()> {
    Ok(())
}

// Its body uses the guard, which is not one more mistake.
#[locked(by = locks, nam = "job", as = guard)]
async fn near_name(locks: &Locks) -> Result<u64> {
    Ok(guard.fencing_token().get())
}

#[locked(by = locks, name = "job", waits = "3s")]
async fn near_wait(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job", atmost = "3s")]
async fn near_at_most(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job", handoffs = 16)]
async fn near_no_other(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job", wait_at_most = "3s")]
async fn method_of_lock(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job", label = "the importer")]
async fn option_of_lock(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job", wait = "3s", wait = "4s")]
async fn given_twice(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job", read, try, read)]
async fn read_twice(locks: &Locks) -> Result<Option<()>> {
    Ok(Some(()))
}

#[locked(by = locks, name = "job", read, write)]
async fn read_and_write(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job", local_handoffs = 16, read)]
async fn handoffs_of_a_reader(locks: &Locks) -> Result<()> {
    Ok(())
}

fn main() {}
