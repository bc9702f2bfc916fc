//! The guard's futures, dropped at each of their awaits: the guard stays unchanged.

use std::sync::atomic::{AtomicBool, Ordering};

use fencelock_core::{ErrorKind, Guard, Locks, LostReason};

use super::{anywhere, assert_clean, ways};
use crate::behaviours::prelude::*;
use crate::behaviours::work::BRIEFLY;

/// redis-py #3847: a cancelled release wedged the lock. Never polled at all, the guard is in the
/// future, and is dropped with it.
pub(super) async fn release(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    for how in ways(&context) {
        let make = async || ((), work::acquire(&context, &one, &name, how).await.release());
        anywhere(&context, make, async |(), released| {
            // Without a check first: the next acquisition need not wait for the clean-up of the
            // dropped one.
            let next = context.acquire(&two, &name).await;
            context.release(next).await;
            released.into_iter().for_each(|released| released.expect("released"));
        })
        .await;
    }
}

/// A guard that will be lost after a short time.
async fn brief(context: &Context, locks: &Locks, name: &str) -> Arc<Guard> {
    let lock = locks.lock(name).hold_at_most(BRIEFLY);
    let acquired = context.soon("acquired for a moment", lock.acquire()).await;
    Arc::new(acquired.expect("acquired"))
}

/// A repeated call reports the loss, in time.
async fn assert_reports_its_loss(context: &Context, guard: Arc<Guard>) {
    assert_eq!(work::until_lost(context, &guard).await, LostReason::HoldLimit);
    let guard = Arc::into_inner(guard).expect("the future went with its guard");
    work::release_is_not_held(context, guard).await;
}

pub(super) async fn lost(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let make = async || {
        let guard = brief(&context, &one, &name).await;
        (guard.clone(), async move { guard.lost().await })
    };
    anywhere(&context, make, async |guard, reported| {
        assert!(reported.is_none_or(|reason| reason == LostReason::HoldLimit));
        assert_reports_its_loss(&context, guard).await;
        assert_clean(&context, &two, &name).await;
    })
    .await;
}

pub(super) async fn expiring(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let margin = BRIEFLY / 2;
    let make = async || {
        let guard = brief(&context, &one, &name).await;
        (guard.clone(), async move { guard.expiring(margin).await })
    };
    anywhere(&context, make, async |guard, _| {
        context.soon("a repeated call reports the expiry", guard.expiring(margin)).await;
        assert!(guard.remaining() <= margin);
        assert_reports_its_loss(&context, guard).await;
        assert_clean(&context, &two, &name).await;
    })
    .await;
}

/// Work of several steps that records whether it still exists.
fn steps(there: &Arc<AtomicBool>, count: usize) -> impl Future<Output = usize> + use<> {
    struct There(Arc<AtomicBool>);
    impl Drop for There {
        fn drop(&mut self) {
            self.0.store(false, Ordering::SeqCst);
        }
    }
    there.store(true, Ordering::SeqCst);
    let there = There(there.clone());
    async move {
        let _there = there;
        for _ in 0..count {
            tokio::task::yield_now().await;
        }
        count
    }
}

pub(super) async fn work(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let guard = Arc::new(context.acquire(&one, &name).await);
    let there = Arc::new(AtomicBool::new(false));
    let make = async || {
        let (guard, work) = (guard.clone(), steps(&there, 5));
        ((), async move { guard.run(work).await })
    };
    anywhere(&context, make, async |(), done| {
        assert!(!there.load(Ordering::SeqCst), "the work continues without its future");
        assert!(guard.is_held());
        assert!(done.is_none_or(|done| done.expect("still held") == 5));
        let again = context.soon("the guard is used again", guard.run(steps(&there, 2))).await;
        assert_eq!(again.expect("still held"), 2);
        work::assert_busy(&context, &two, &name).await;
    })
    .await;
    context.release(Arc::into_inner(guard).expect("no future has it now")).await;
}

pub(super) async fn lost_work(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let there = Arc::new(AtomicBool::new(false));
    let make = async || {
        let guard = brief(&context, &one, &name).await;
        let steps = steps(&there, 2);
        // Its last await is woken by the loss alone.
        let endless = async { (steps.await, std::future::pending::<()>().await) };
        (guard.clone(), async move { guard.run(endless).await.map(drop) })
    };
    anywhere(&context, make, async |guard, done| {
        assert!(!there.load(Ordering::SeqCst), "the work continues without its future");
        if let Some(done) = done {
            work::assert_kind(&done.expect_err("it has no end of its own"), ErrorKind::Lost);
        }
        assert_reports_its_loss(&context, guard).await;
        assert_clean(&context, &two, &name).await;
    })
    .await;
}
