//! What cannot run under a lock, or has no place for the lock's errors.

use std::future::Future;
use std::pin::Pin;

use fencelock::{Locks, Result, locked};

#[locked(by = locks, name = "job", as = guard)]
fn not_async(locks: &Locks) -> Result<()> {
    guard.run(async {}).await
}

// As #[async_trait] leaves a method.
#[locked(by = locks, name = "job")]
fn boxed(locks: &Locks) -> Pin<Box<dyn Future<Output = Result<()>> + Send + '_>> {
    Box::pin(async { Ok(()) })
}

#[locked(by = locks, name = "job")]
struct Job;

trait Jobs {
    #[locked(by = locks, name = "job")]
    async fn no_body(locks: &Locks) -> Result<()>;
}

#[locked(by = self.locks, name = "job")]
async fn no_self(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = format!("orders/{}", self.id))]
async fn no_self_in_the_name(locks: &Locks) -> Result<()> {
    Ok(())
}

#[locked(by = locks, name = "job")]
async fn returns_nothing(locks: &Locks) {}

#[locked(by = locks, name = "job", as = guard)]
async fn returns_a_number(locks: &Locks) -> u64 {
    guard.fencing_token().get()
}

#[locked(by = locks, name = "job")]
async fn returns_an_option(locks: &Locks) -> std::option::Option<&Locks> {
    Some(locks)
}

#[locked(by = locks, name = "job")]
async fn returns_a_tuple(locks: &Locks) -> (u32, String) {
    (3, String::new())
}

#[locked(by = locks, name = "job")]
async fn returns_a_reference(locks: &Locks) -> &'static str {
    "done"
}

#[locked(by = locks, name = "job")]
async fn returns_a_list(locks: &Locks) -> Vec<u32> {
    vec![]
}

#[locked(by = locks, name = "job", try)]
async fn tries_for_an_option(locks: &Locks) -> Option<u32> {
    Some(3)
}

// Its attributes are no error besides.
#[locked(by = locks, name = "job")]
fn inner_attributes(locks: &Locks) -> Result<()> {
    #![allow(unused_variables)]
    Ok(())
}

fn main() {}
