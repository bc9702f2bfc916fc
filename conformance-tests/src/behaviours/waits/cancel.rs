//! Any future may be dropped at any await point: nothing is left behind, and no other client's
//! wake-up is lost (invariant 4, lessons 4 and 17).

use fencelock_core::{Guard, Locks};
use rand::RngExt;
use tokio::time::Instant;

use crate::behaviours::prelude::*;
use crate::behaviours::work::SHORT_WAIT;
use crate::cancel_points::{DroppedAfter, at_every_await};

mod acquiring;
mod holding;
mod store;

const GROUP: &str = "cancel";

/// What breaks on the way to the store is mended again.
const MENDED: Need = Need::Backdoor(Backdoor::CutOff);

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    // Fault 44
    behaviour(GROUP, "an_acquire_dropped_anywhere_leaves_nothing", &[], &|c| {
        acquiring::free(c, false)
    }),
    behaviour(GROUP, "a_try_of_a_free_lock_dropped_anywhere_leaves_nothing", &[], &|c| {
        acquiring::free(c, true)
    }),
    // Fault 44
    behaviour(GROUP, "a_wait_dropped_anywhere_leaves_nothing", &[], &|c| {
        acquiring::contended(c, false)
    }),
    behaviour(GROUP, "a_try_that_waits_dropped_anywhere_leaves_nothing", &[], &|c| {
        acquiring::contended(c, true)
    }),
    // Fault 44
    behaviour(GROUP, "a_try_dropped_anywhere_leaves_nothing", &[], &|c| {
        acquiring::busy(c, Duration::ZERO)
    }),
    behaviour(GROUP, "a_failed_try_dropped_anywhere_leaves_nothing", &[], &|c| {
        acquiring::busy(c, SHORT_WAIT)
    }),
    behaviour(
        GROUP,
        "an_acquire_dropped_anywhere_with_slow_replies_leaves_nothing",
        &[Need::Backdoor(Backdoor::SlowReplies), MENDED],
        &|c| acquiring::under_fault(c, NetworkFault::SlowReplies(acquiring::OUTAGE / 4)),
    ),
    behaviour(
        GROUP,
        "an_acquire_dropped_anywhere_around_a_lost_reply_leaves_nothing",
        &[Need::Backdoor(Backdoor::LoseReply), MENDED],
        &|c| acquiring::under_fault(c, NetworkFault::ReplyDropped),
    ),
    behaviour(GROUP, "an_acquire_dropped_anywhere_while_cut_off_leaves_nothing", &[MENDED], &|c| {
        acquiring::under_fault(c, NetworkFault::CutOff)
    }),
    // Fault 45
    behaviour(GROUP, "a_release_dropped_anywhere_still_releases", &[], &holding::release),
    behaviour(GROUP, "a_dropped_wait_for_the_loss_leaves_the_guard_unchanged", &[], &holding::lost),
    behaviour(
        GROUP,
        "a_dropped_wait_for_the_expiry_leaves_the_guard_unchanged",
        &[],
        &holding::expiring,
    ),
    behaviour(GROUP, "dropped_work_ends_and_leaves_the_guard_unchanged", &[], &holding::work),
    behaviour(GROUP, "work_dropped_around_a_loss_hides_no_loss", &[], &holding::lost_work),
    behaviour(GROUP, "a_dropped_inspect_changes_nothing", &[], &store::inspect),
    behaviour(GROUP, "a_dropped_evict_can_be_repeated", &[], &store::evict),
    behaviour(GROUP, "a_dropped_close_can_be_repeated", &[], &store::close),
    behaviour(GROUP, "a_dropped_connect_leaves_nothing_running", &[], &store::connect),
    behaviour(GROUP, "a_cancelled_waiter_releases_no_other_hold", &[], &frees_no_other),
    behaviour(GROUP, "waiters_cancelled_at_the_hand_off_lose_no_turn", &[], &at_hand_off),
    // Fault 44
    behaviour(GROUP, "a_thousand_random_drops_leave_nothing", &[], &thousand),
    behaviour(GROUP, "a_hundred_waiters_give_up_at_once", &[], &hundred),
];

/// What the behaviours do at every await, each future within the context's patience.
async fn anywhere<S, F: Future>(
    context: &Context,
    make: impl AsyncFnMut() -> (S, F),
    check: impl AsyncFnMut(S, Option<F::Output>),
) {
    at_every_await(context.patience(), make, check).await;
}

fn ways(context: &Context) -> Vec<How> {
    let mut ways = vec![How::Exclusive];
    ways.extend(context.profile().modes.shared.then_some(How::Shared));
    ways.extend(context.profile().modes.permits.then_some(How::Permits { n: 2, limit: 3 }));
    ways
}

/// The lock can be acquired at once, as if nothing had happened.
async fn assert_clean(context: &Context, locks: &Locks, name: &str) {
    context.until_free(locks, name).await;
    let guard = context.acquire(locks, name).await;
    context.release(guard).await;
}

/// A clean-up that deletes any holder's entry would free another client's lock.
async fn frees_no_other(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let holder = context.acquire(&one, &name).await;
    for locks in [&one, &two] {
        let waiter = work::spawn_waiter(locks, &name, How::Exclusive);
        context.until_queued(&one, &name, 1).await;
        waiter.abort();
        context.until_queued(&one, &name, 0).await;
        work::assert_busy(&context, &two, &name).await;
        assert!(holder.is_held());
    }
    context.release(holder).await;
}

/// The first waiter is cancelled while the lock is being handed off to it. A lost turn costs a
/// waiter check after a second, or a lease; a hundred of them would show it.
async fn at_hand_off(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let mut random = context.random();
    let mut slow = 0;
    for _ in 0..100 {
        let holder = context.acquire(&one, &name).await;
        let first = work::spawn_waiter(&two, &name, How::Exclusive);
        context.until_queued(&one, &name, 1).await;
        let second = work::spawn_waiter(&one, &name, How::Exclusive);
        context.until_queued(&one, &name, 2).await;
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
        let second = context.until_granted("the second waiter is granted", second).await;
        slow += u32::from(started.elapsed() > Duration::from_millis(500));
        assert!(slow < 8, "at least {slow} of 100 turns were lost with a cancelled waiter");
        context.release(second).await;
    }
}

/// Futures are dropped at random points, while others hold and release.
async fn thousand(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
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
            if let Some(acquired) = DroppedAfter::polls(polls, lock.acquire()).await {
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

async fn hundred(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let holder = context.acquire(&one, &name).await;
    let waiters: Vec<tokio::task::JoinHandle<fencelock_core::Result<Guard>>> = (0..100)
        .map(|index| if index % 2 == 0 { &one } else { &two })
        .map(|locks| work::spawn_waiter(locks, &name, How::Exclusive))
        .collect();
    context.until_queued(&one, &name, 100).await;
    let last = work::spawn_waiter(&two, &name, How::Exclusive);
    context.until_queued(&one, &name, 101).await;
    for waiter in &waiters {
        waiter.abort();
    }
    context.until_queued(&one, &name, 1).await;
    context.release(holder).await;
    let last = context.until_granted("the remaining waiter is granted", last).await;
    context.release(last).await;
}
