//! Renewals and looks of many claims at the same time.
//!
//! They are grouped by shard, and looks by lock too. Shards wait for each other in nothing, and
//! each answer is told as soon as it is known. What a driver does not answer, because it panics or
//! answers too little, counts as unknown, so that nothing it does can make the keeper forget a
//! hold.

use std::collections::HashMap;
use std::hash::Hash;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;

use crate::backend::{Acquisition, DistributedLock, RenewOutcome, WaiterCheck};
use crate::erased::{Answer, Told};
use crate::error::{Error, ErrorKind};
use crate::seat::caught;

/// Requests of one batch under way in one shard: enough to keep it busy, not so many that others
/// wait for them.
const AT_ONCE: usize = 100;

/// Renews what each of `held` has.
pub(crate) fn renew<'a, S: DistributedLock>(
    store: &'a S,
    held: Vec<&'a S::Contender>,
    told: Told<'a, RenewOutcome>,
) -> impl Future<Output = ()> + Send + 'a {
    let renew_one = move |held: &'a S::Contender| -> Answer<'a, ()> {
        Box::pin(async move {
            // A store that answers at once must not let a large batch keep its worker thread.
            tokio::task::coop::consume_budget().await;
            told(held.claim(), caught(store.renew(held)).await);
        })
    };
    let shards = grouped(held, |held| store.shard(held));
    in_parallel(shards.into_iter().map(move |shard| shard.into_iter().map(renew_one).collect()))
}

/// Looks for each of `waiting`, once for each lock.
pub(crate) fn look<'a, S: DistributedLock>(
    store: &'a S,
    waiting: Vec<&'a S::Contender>,
    told: Told<'a, WaiterCheck>,
) -> impl Future<Output = ()> + Send + 'a {
    let look_at = move |waiting: Vec<&'a S::Contender>| -> Answer<'a, ()> {
        Box::pin(async move {
            tokio::task::coop::consume_budget().await;
            let lock = waiting[0].claim().name();
            let looks = caught(store.look(lock, &waiting)).await;
            let mut looks = looks.map(Vec::into_iter);
            for waiter in waiting {
                let look = match &mut looks {
                    Ok(looks) => looks.next().ok_or_else(no_answer),
                    Err(error) => Err(error.clone()),
                };
                told(waiter.claim(), look);
            }
        })
    };
    let shards = grouped(waiting, |waiter| store.shard(waiter));
    in_parallel(shards.into_iter().map(move |shard| {
        let locks = grouped(shard, |waiter| waiter.claim().name().key());
        locks.into_iter().map(look_at).collect()
    }))
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Unreachable, "the store's driver gave no answer")
}

/// `all` in groups with the same key, none of them empty, in the order of their first ones.
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

/// The requests of all shards, in each of them up to a limit at once.
fn in_parallel<'a>(
    shards: impl Iterator<Item = Vec<Answer<'a, ()>>>,
) -> impl Future<Output = ()> + Send + 'a {
    let in_shard = |requests| stream::iter(requests).buffer_unordered(AT_ONCE).collect::<()>();
    let all = join_all(shards.map(in_shard));
    async move { drop(all.await) }
}
