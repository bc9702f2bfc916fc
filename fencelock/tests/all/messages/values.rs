//! Values of another form than the argument has.

use fencelock::{Locks, Result, locked};

#[locked(by = locks, name = "job", wait = 3s)]
async fn without_quotes(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job", ttl = 3)]
async fn a_number(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job", at_most = std::time::Duration::from_secs(3))]
async fn an_expression(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job", wait = "3")]
async fn no_unit(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job", ttl = "99ms")]
async fn short_ttl(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job", at_most = "366days")]
async fn long_hold(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job", wait, try)]
async fn no_value(locks: &Locks) -> Result<Option<()>> {
    Ok(Some(()))
}

#[locked(by = locks, name = "job", wait =)]
async fn half_a_value(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job", read = true)]
async fn value_of_a_word(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks name = "job")]
async fn no_comma(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job", as = "guard")]
async fn guard_in_quotes(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job", local_handoffs = 0)]
async fn no_handoffs(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job", local_handoffs = "16")]
async fn handoffs_in_quotes(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = 7)]
async fn name_is_a_number(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "orders/{}")]
async fn positional(locks: &Locks, order: u64) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "{{}}/{order.0:?}")]
async fn field(locks: &Locks, order: (u64,)) -> Result<()> {
    Ok(())
}

fn main() {}
