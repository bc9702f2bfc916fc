//! Renewals and checks of many acquisitions at once, for one server and for a quorum alike.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use fencelock_core::{Acquisition, RenewOutcome, Report, Result, WaiterCheck};
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream;

/// Concurrent requests of one batch at one server: enough to keep it busy, few enough not to delay
/// others.
pub(crate) const AT_ONCE: usize = 100;
/// How many waiters of this client each check asks about.
pub(crate) const SAMPLE: usize = 4;

/// The requests of one store.
pub(crate) trait StoreRequests: Sync {
    type Acquisition: Acquisition;

    /// Renews one held acquisition.
    fn renew_one(
        &self,
        acquisition: &Self::Acquisition,
    ) -> impl Future<Output = Result<RenewOutcome>> + Send;

    /// One check for all of `waiting`, which wait for the same lock; a result for each.
    fn check_lock(
        &self,
        waiting: &[&Self::Acquisition],
    ) -> impl Future<Output = Result<Vec<WaiterCheck>>> + Send;
}

/// The backend's own type behind the trait object.
pub(crate) fn own<T: Acquisition>(contender: &Arc<dyn Acquisition>) -> Option<&T> {
    let any: &dyn Any = &**contender;
    any.downcast_ref()
}

/// A few of `waiting`, from a random start.
pub(crate) fn in_turn<'a, T>(waiting: &'a [&T]) -> impl Iterator<Item = &'a T> {
    let start = rand::random_range(0..waiting.len().max(1));
    waiting.iter().copied().cycle().skip(start).take(waiting.len().min(SAMPLE))
}

/// Renews those of `held` whose indices are in `shards`.
pub(crate) async fn renew<S: StoreRequests>(
    store: &S,
    held: &[Arc<dyn Acquisition>],
    shards: Vec<Vec<usize>>,
    report: Report<'_, RenewOutcome>,
) {
    let renew_one = async |index: usize| {
        if let Some(acquisition) = own(&held[index]) {
            report(index, store.renew_one(acquisition).await);
        }
    };
    in_parallel(shards, |index| Box::pin(renew_one(index))).await;
}

/// Checks those of `waiting` whose indices are in `shards`, once for each lock.
pub(crate) async fn check_waiters<S: StoreRequests>(
    store: &S,
    waiting: &[Arc<dyn Acquisition>],
    shards: Vec<Vec<usize>>,
    report: Report<'_, WaiterCheck>,
) {
    let by_lock = |shard: Vec<usize>| {
        let mut locks: HashMap<&str, Vec<usize>> = HashMap::new();
        for index in shard {
            locks.entry(waiting[index].claim().name().key()).or_default().push(index);
        }
        locks.into_values().collect()
    };
    let look_for = async |lock: Vec<usize>| {
        let waiters: Vec<_> = lock.iter().filter_map(|at| own(&waiting[*at])).collect();
        match store.check_lock(&waiters).await {
            Ok(looks) => lock.into_iter().zip(looks).for_each(|(at, look)| report(at, Ok(look))),
            Err(error) => lock.into_iter().for_each(|at| report(at, Err(error.clone()))),
        }
    };
    let shards = shards.into_iter().map(by_lock).collect();
    in_parallel(shards, |lock| Box::pin(look_for(lock))).await;
}

/// Runs `each` for all items of all shards, [`AT_ONCE`] at a time in each shard.
async fn in_parallel<'a, T>(shards: Vec<Vec<T>>, each: impl Fn(T) -> BoxFuture<'a, ()>) {
    join_all(shards.into_iter().map(|shard| {
        // One shard's requests do not delay another's.
        stream::iter(shard).map(&each).buffer_unordered(AT_ONCE).collect::<()>()
    }))
    .await;
}
