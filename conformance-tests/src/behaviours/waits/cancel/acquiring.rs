//! Acquisitions that are dropped at each of their awaits: on a free lock, in the queue, and under
//! network faults.

use fencelock_core::{Guard, Lock, Locks, Result};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{anywhere, assert_clean, ways};
use crate::behaviours::prelude::*;

/// Acquires, or tries with a wait limit. A try without one may find the lock busy: the request of
/// the attempt that was dropped before may still be in flight.
async fn acquire(lock: Lock, tries: bool) -> Result<Option<Guard>> {
    if tries { lock.try_acquire().await } else { lock.acquire().await.map(Some) }
}

/// Drops the guard, unless it was dropped with its future.
fn no_error(acquired: Option<Result<Option<Guard>>>) {
    drop(acquired.map(|acquired| acquired.expect("acquired")));
}

pub(super) async fn free(context: Arc<Context>, tries: bool) {
    let (name, one, two) = context.lock_of_two().await;
    for how in ways(&context) {
        let make = async || ((), acquire(how.lock(&one, &name), tries));
        anywhere(&context, make, async |(), acquired| {
            no_error(acquired);
            assert_clean(&context, &two, &name).await;
        })
        .await;
    }
}

/// The holder releases while the waiter is polled, so that later polls coincide with the hand-off.
pub(super) async fn contended(context: Arc<Context>, tries: bool) {
    let (name, one, two) = context.lock_of_two().await;
    for how in ways(&context) {
        let make = async || {
            let holder = Leaving::when_queued(&context, &one, &name).await;
            let lock = how.lock(&two, &name);
            let lock = if tries { lock.wait_at_most(context.patience()) } else { lock };
            (holder, acquire(lock, tries))
        };
        anywhere(&context, make, async |holder, acquired| {
            holder.left(&context).await;
            no_error(acquired);
            assert_clean(&context, &one, &name).await;
        })
        .await;
    }
}

/// A holder that releases once its lock has a waiter.
struct Leaving {
    task: JoinHandle<Result<()>>,
    /// Dropped when there will be no further waiter.
    hopeful: oneshot::Sender<()>,
}

impl Leaving {
    async fn when_queued(context: &Arc<Context>, locks: &Locks, name: &str) -> Leaving {
        let guard = context.acquire(locks, name).await;
        let (hopeful, mut hopeless) = oneshot::channel();
        let (locks, name) = (locks.clone(), name.to_owned());
        let task = tokio::spawn(async move {
            let queued = async {
                while locks.inspect(&name).await.expect("inspect answers").waiters.is_empty() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::select! {
                () = queued => {}
                _ = &mut hopeless => {}
            }
            guard.release().await
        });
        Leaving { task, hopeful }
    }

    async fn left(self, context: &Context) {
        drop(self.hopeful);
        let released = context.soon("the holder releases", self.task).await;
        released.expect("no panic").expect("released");
    }
}

/// Another client holds the lock all the time.
pub(super) async fn busy(context: Arc<Context>, limit: Duration) {
    let (name, one, two) = context.lock_of_two().await;
    let holder = context.acquire(&one, &name).await;
    for how in ways(&context) {
        let make = async || {
            let lock = how.lock(&two, &name).wait_at_most(limit);
            ((), async move { lock.try_acquire().await })
        };
        anywhere(&context, make, async |(), tried| {
            context.until_queued(&one, &name, 0).await;
            assert!(holder.is_held());
            if let Some(tried) = tried {
                assert!(tried.expect("no error").is_none(), "granted while another client holds");
            }
        })
        .await;
    }
    work::assert_busy(&context, &two, &name).await;
    context.release(holder).await;
}

/// The duration of an outage.
pub(super) const OUTAGE: Duration = Duration::from_millis(40);

/// A request that was or may have been sent is undone once the store is reachable again, without
/// harm to other holders.
pub(super) async fn under_fault(context: Arc<Context>, fault: NetworkFault) {
    let (name, other) = (context.name("lock"), context.name("other"));
    let (one, two) = (context.client().await, context.client().await);
    let kept = context.acquire(&two, &other).await;
    let make = async || {
        context.inject_fault(fault).await;
        let mending = tokio::spawn(mended(context.clone()));
        (mending, acquire(one.lock(&name), false))
    };
    anywhere(&context, make, async |mending, acquired| {
        context.soon("the fault is healed", mending).await.expect("no panic");
        no_error(acquired);
        assert_clean(&context, &two, &name).await;
        assert!(kept.is_held());
        work::assert_busy(&context, &one, &other).await;
    })
    .await;
    context.release(kept).await;
}

async fn mended(context: Arc<Context>) {
    tokio::time::sleep(OUTAGE).await;
    context.heal().await;
}
