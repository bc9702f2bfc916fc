//! Steps for many seats at once, alike for one server and for a quorum.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use fencelock_core::{Contender, Look, Renewal, Report, Result};
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream;

/// Requests of one batch under way at one server: enough to keep it busy, not so many that others
/// wait for them.
pub(crate) const AT_ONCE: usize = 100;
/// How many of a process's waiters each look asks about.
pub(crate) const SAMPLE: usize = 4;

/// A store's own part of them.
pub(crate) trait StoreRequests: Sync {
    type Acquisition: Contender;

    /// Extends what one acquisition holds.
    fn renew_one(
        &self,
        acquisition: &Self::Acquisition,
    ) -> impl Future<Output = Result<Renewal>> + Send;

    /// One look for all of `waiting`, which wait for the same lock; each one's own result.
    fn check_lock(
        &self,
        waiting: &[&Self::Acquisition],
    ) -> impl Future<Output = Result<Vec<Look>>> + Send;
}

/// The driver's own acquisition behind the trait.
pub(crate) fn own<T: Contender>(contender: &Arc<dyn Contender>) -> Option<&T> {
    let any: &dyn Any = &**contender;
    any.downcast_ref()
}

/// A few of `waiting`, in turn.
pub(crate) fn in_turn<'a, T>(waiting: &'a [&T]) -> impl Iterator<Item = &'a T> {
    let start = rand::random_range(0..waiting.len().max(1));
    waiting.iter().copied().cycle().skip(start).take(waiting.len().min(SAMPLE))
}

/// Extends what those of `held` in `shards` hold.
pub(crate) async fn renew<S: StoreRequests>(
    store: &S,
    held: &[Arc<dyn Contender>],
    shards: Vec<Vec<usize>>,
    report: Report<'_, Renewal>,
) {
    let renew_one = async |index: usize| {
        if let Some(acquisition) = own(&held[index]) {
            report(index, store.renew_one(acquisition).await);
        }
    };
    in_parallel(shards, |index| Box::pin(renew_one(index))).await;
}

/// Looks for those of `waiting` in `shards`, once for each lock.
pub(crate) async fn check_waiters<S: StoreRequests>(
    store: &S,
    waiting: &[Arc<dyn Contender>],
    shards: Vec<Vec<usize>>,
    report: Report<'_, Look>,
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

/// Does `each` for everything in `shards`, in each of them up to a limit at once.
async fn in_parallel<'a, T>(shards: Vec<Vec<T>>, each: impl Fn(T) -> BoxFuture<'a, ()>) {
    join_all(shards.into_iter().map(|shard| {
        // The requests of one shard; another one's do not wait for them.
        stream::iter(shard).map(&each).buffer_unordered(AT_ONCE).collect::<()>()
    }))
    .await;
}
