//! Any future may be dropped at any await point: nothing is left behind, and nobody's wake-up goes
//! with it (invariant 4, lessons 4 and 17).

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fencelock_core::{Guard, Locks};
use rand::RngExt;
use tokio::time::{Instant, timeout};

use super::behaviour;
use super::work;
use crate::context::Context;
use crate::peer::protocol::How;
use crate::suite::Behaviour;

const GROUP: &str = "cancel";

pub(super) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "an_acquire_dropped_anywhere_leaves_nothing", &[], |c| {
        Box::pin(uncontended(c))
    }),
    behaviour(GROUP, "a_wait_dropped_anywhere_leaves_nothing", &[], |c| Box::pin(contended(c))),
    behaviour(GROUP, "a_try_dropped_anywhere_leaves_nothing", &[], |c| Box::pin(tries(c))),
    behaviour(GROUP, "a_release_dropped_anywhere_still_releases", &[], |c| Box::pin(releases(c))),
    behaviour(GROUP, "a_cancelled_waiter_frees_nobody", &[], |c| Box::pin(frees_nobody(c))),
    behaviour(GROUP, "a_cancelled_waiter_passes_its_turn_on", &[], |c| Box::pin(passes_on(c))),
    behaviour(GROUP, "waiters_cancelled_at_the_hand_over_lose_no_turn", &[], |c| {
        Box::pin(at_hand_over(c))
    }),
    behaviour(GROUP, "a_thousand_random_drops_leave_nothing", &[], |c| Box::pin(thousand(c))),
    behaviour(GROUP, "a_timeout_around_acquire_leaves_nothing", &[], |c| Box::pin(timeouts(c))),
    behaviour(GROUP, "a_hundred_waiters_give_up_at_once", &[], |c| Box::pin(hundred(c))),
];

/// Polls `future` and drops it after the `polls`-th time that it was not ready. `None` if so.
async fn dropped_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = Some(Box::pin(future));
    let mut polled = 0;
    poll_fn(move |cx| {
        let Some(running) = future.as_mut() else { return Poll::Ready(None) };
        if let Poll::Ready(value) = running.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        polled += 1;
        if polled < polls {
            return Poll::Pending;
        }
        future = None;
        Poll::Ready(None)
    })
    .await
}

/// No future here has more await points than this on its way.
const MOST_POLLS: usize = 200;

fn ways(context: &Context) -> Vec<How> {
    let mut ways = vec![How::Exclusive];
    ways.extend(context.profile().modes.shared.then_some(How::Shared));
    ways.extend(context.profile().modes.permits.then_some(How::Permits { n: 2, limit: 3 }));
    ways
}

/// The lock can be had at once, and is as free as if nothing had happened.
async fn assert_clean(context: &Context, locks: &Locks, name: &str) {
    context.free(locks, name).await;
    let guard = context.hold(locks, name).await;
    context.give_back(guard).await;
}

async fn uncontended(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    for how in ways(&context) {
        for polls in 1..MOST_POLLS {
            let lock = how.lock(&one, &name);
            let acquired = dropped_after(polls, lock.acquire());
            let acquired = context.soon("acquired or dropped", acquired).await;
            let done = acquired.is_some();
            if let Some(acquired) = acquired {
                drop(acquired.expect("acquired"));
            }
            assert_clean(&context, &two, &name).await;
            if done {
                break;
            }
        }
    }
}

/// The holder leaves while the waiter is polled, so that later polls meet the hand-over.
async fn contended(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    for how in ways(&context) {
        for polls in 1..MOST_POLLS {
            let holder = context.hold(&one, &name).await;
            let lock = how.lock(&two, &name);
            let waiter = tokio::spawn(async move { dropped_after(polls, lock.acquire()).await });
            let queued = async || {
                waiter.is_finished()
                    || !one.inspect(&name).await.expect("answers").waiters.is_empty()
            };
            context.until("the waiter is queued or dropped", queued).await;
            context.give_back(holder).await;
            let acquired = context.soon("granted or dropped", waiter).await.expect("no panic");
            let done = acquired.is_some();
            if let Some(acquired) = acquired {
                drop(acquired.expect("granted"));
            }
            assert_clean(&context, &one, &name).await;
            if done {
                break;
            }
        }
    }
}

async fn tries(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    let holder = context.hold(&one, &name).await;
    for how in ways(&context) {
        for polls in 1..MOST_POLLS {
            let lock = how.lock(&two, &name);
            let tried = dropped_after(polls, lock.try_acquire());
            let tried = context.soon("answered or dropped", tried).await;
            context.queued(&one, &name, 0).await;
            assert!(holder.is_held());
            if let Some(tried) = tried {
                assert!(tried.expect("no error").is_none(), "granted beside a holder");
                break;
            }
        }
    }
    work::assert_busy(&context, &two, &name).await;
    context.give_back(holder).await;
}

/// redis-py #3847: a cancelled release wedged the lock.
async fn releases(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    for how in ways(&context) {
        for polls in 0..MOST_POLLS {
            let guard = work::hold(&context, &one, &name, how).await;
            let releasing = guard.release();
            let released = match polls {
                // Never polled at all: the guard is in the future, and is dropped with it.
                0 => {
                    drop(releasing);
                    None
                }
                _ => context.soon("released or dropped", dropped_after(polls, releasing)).await,
            };
            let next = context.hold(&two, &name).await;
            context.give_back(next).await;
            if let Some(released) = released {
                released.expect("released");
                break;
            }
        }
    }
}

/// A clean-up that deletes whatever is there would free the holder.
async fn frees_nobody(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    let holder = context.hold(&one, &name).await;
    for locks in [&one, &two] {
        let waiter = work::wait_for(locks, &name, How::Exclusive);
        context.queued(&one, &name, 1).await;
        waiter.abort();
        context.queued(&one, &name, 0).await;
        work::assert_busy(&context, &two, &name).await;
        assert!(holder.is_held());
    }
    context.give_back(holder).await;
}

async fn passes_on(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    let holder = context.hold(&one, &name).await;
    let first = work::wait_for(&two, &name, How::Exclusive);
    context.queued(&one, &name, 1).await;
    let second = work::wait_for(&one, &name, How::Exclusive);
    context.queued(&one, &name, 2).await;
    first.abort();
    context.queued(&one, &name, 1).await;
    context.give_back(holder).await;
    let second = work::granted(&context, "the second waiter is granted", second).await;
    context.give_back(second).await;
}

/// The first waiter is cancelled while the lock is being handed to it. A lost turn costs a safety
/// look of a second, or a lease; a hundred of them would show it.
async fn at_hand_over(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    let mut random = context.random();
    let mut slow = 0;
    for _ in 0..100 {
        let holder = context.hold(&one, &name).await;
        let first = work::wait_for(&two, &name, How::Exclusive);
        context.queued(&one, &name, 1).await;
        let second = work::wait_for(&one, &name, How::Exclusive);
        context.queued(&one, &name, 2).await;
        let started = Instant::now();
        let cancelling = async {
            for _ in 0..random.random_range(0..6) {
                tokio::task::yield_now().await;
            }
            first.abort();
        };
        let (released, ()) = tokio::join!(holder.release(), cancelling);
        released.expect("released");
        // Granted before it was cancelled: then its guard was dropped with it.
        drop(first.await);
        let second = work::granted(&context, "the second waiter is granted", second).await;
        slow += u32::from(started.elapsed() > Duration::from_millis(500));
        assert!(slow < 8, "at least {slow} of 100 turns were lost with a cancelled waiter");
        context.give_back(second).await;
    }
}

/// Fault 44: dropped at random points, while others hold and release.
async fn thousand(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    let mut random = context.random();
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..1000 {
        let locks = if index % 2 == 0 { &one } else { &two };
        let how = ways(&context)[index % ways(&context).len()];
        let lock = how.lock(locks, &name);
        let (polls, pauses) = (random.random_range(1..4), random.random_range(0..20));
        tasks.spawn(async move {
            for _ in 0..pauses {
                tokio::task::yield_now().await;
            }
            // Granted, its guard is dropped at once.
            if let Some(acquired) = dropped_after(polls, lock.acquire()).await {
                drop(acquired.expect("granted"));
            }
        });
        if index % 50 == 49 {
            let done = async {
                while let Some(done) = tasks.join_next().await {
                    done.expect("no error");
                }
            };
            context.soon("each is granted or dropped", done).await;
        }
    }
    assert_clean(&context, &one, &name).await;
}

async fn timeouts(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    let holder = context.hold(&one, &name).await;
    for _ in 0..5 {
        let waited = timeout(Duration::from_millis(10), two.lock(&name).acquire()).await;
        assert!(waited.is_err(), "granted beside a holder");
    }
    context.queued(&one, &name, 0).await;
    context.give_back(holder).await;
    assert_clean(&context, &two, &name).await;
}

async fn hundred(context: Arc<Context>) {
    let name = context.name("lock");
    let (one, two) = (context.client().await, context.client().await);
    let holder = context.hold(&one, &name).await;
    let waiters: Vec<tokio::task::JoinHandle<fencelock_core::Result<Guard>>> = (0..100)
        .map(|index| if index % 2 == 0 { &one } else { &two })
        .map(|locks| work::wait_for(locks, &name, How::Exclusive))
        .collect();
    context.queued(&one, &name, 100).await;
    let last = work::wait_for(&two, &name, How::Exclusive);
    context.queued(&one, &name, 101).await;
    for waiter in &waiters {
        waiter.abort();
    }
    context.queued(&one, &name, 1).await;
    context.give_back(holder).await;
    let last = work::granted(&context, "the patient one is granted", last).await;
    context.give_back(last).await;
}
