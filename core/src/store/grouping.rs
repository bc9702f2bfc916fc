//! Renewals of many claims, and checks of many waiters, at the same time.
//!
//! Claims are grouped by shard, and waiters also by lock. No shard waits for another, and each
//! answer is reported as soon as it is known. What a backend leaves unanswered, because it panics
//! or returns too few answers, counts as unknown, so that no fault of a backend can make the
//! renewal worker forget a hold.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream;

use crate::store::claim::Claim;
use crate::store::distributed_lock::{Acquisition, DistributedLock, RenewOutcome, WaiterCheck};
use crate::store::panics::caught;
use crate::types::error::{Error, ErrorKind, Result};

/// Receives the answer about one claim, as soon as it is known.
pub(crate) type Report<'a, T> = &'a (dyn Fn(&Arc<Claim>, Result<T>) + Send + Sync);

/// The limit of requests in flight in one shard: enough to keep the shard busy, few enough that
/// other requests to it are not delayed.
const IN_FLIGHT_PER_SHARD: usize = 100;

/// Renews each claim in `held`.
pub(crate) fn renew<'a, S: DistributedLock>(
    store: &'a S,
    held: Vec<&'a S::Acquisition>,
    report: Report<'a, RenewOutcome>,
) -> impl Future<Output = ()> + Send + 'a {
    let renew_one = move |held: &'a S::Acquisition| -> BoxFuture<'a, ()> {
        Box::pin(async move {
            // With a store that answers at once, a large batch would occupy its worker thread.
            tokio::task::coop::consume_budget().await;
            report(held.claim(), caught(store.renew(held)).await);
        })
    };
    let shards = grouped(held, |held| store.shard(held));
    in_parallel(shards.into_iter().map(move |shard| shard.into_iter().map(renew_one).collect()))
}

/// Checks each claim in `waiting`, with one request per lock.
pub(crate) fn check_waiters<'a, S: DistributedLock>(
    store: &'a S,
    waiting: Vec<&'a S::Acquisition>,
    report: Report<'a, WaiterCheck>,
) -> impl Future<Output = ()> + Send + 'a {
    let check_lock = move |waiting: Vec<&'a S::Acquisition>| -> BoxFuture<'a, ()> {
        Box::pin(async move {
            tokio::task::coop::consume_budget().await;
            let lock = waiting[0].claim().name();
            let checks = caught(store.check_waiters(lock, &waiting)).await;
            let mut checks = checks.map(Vec::into_iter);
            for waiter in waiting {
                let check = match &mut checks {
                    Ok(checks) => checks.next().ok_or_else(no_answer),
                    Err(error) => Err(error.clone()),
                };
                report(waiter.claim(), check);
            }
        })
    };
    let shards = grouped(waiting, |waiter| store.shard(waiter));
    in_parallel(shards.into_iter().map(move |shard| {
        let locks = grouped(shard, |waiter| waiter.claim().name().key());
        locks.into_iter().map(check_lock).collect()
    }))
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Unreachable, "the backend gave no answer")
}

/// `all` in groups with the same key, none of them empty, in the order of their first elements.
fn grouped<T: Copy, K: Eq + Hash>(all: Vec<T>, key: impl Fn(T) -> K) -> Vec<Vec<T>> {
    let mut groups: Vec<Vec<T>> = Vec::new();
    let mut known: HashMap<K, usize> = HashMap::new();
    for one in all {
        let at = *known.entry(key(one)).or_insert(groups.len());
        match groups.get_mut(at) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups
}

/// The requests of all shards; each shard has up to a limit in flight.
fn in_parallel<'a>(
    shards: impl Iterator<Item = Vec<BoxFuture<'a, ()>>>,
) -> impl Future<Output = ()> + Send + 'a {
    let in_shard =
        |requests| stream::iter(requests).buffer_unordered(IN_FLIGHT_PER_SHARD).collect::<()>();
    let all = join_all(shards.map(in_shard));
    async move { drop(all.await) }
}
