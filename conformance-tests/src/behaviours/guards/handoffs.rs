//! Local hand-offs: acquisitions of one client take turns on one grant of the store.

use std::sync::atomic::{AtomicUsize, Ordering};

use fencelock_core::{ErrorKind, Guard, Lock, Locks, LostReason, Owner, all};
use rand::RngExt;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::behaviours::prelude::*;
use crate::behaviours::work::SHORT_WAIT;
use crate::cancel_points::DroppedAfter;
use crate::suite::waiting::spawn_waiter;

const GROUP: &str = "handoffs";
const NEEDS: &[Need] = &[Need::LocalHandoffs];
const ARRIVAL: &[Need] = &[Need::LocalHandoffs, Need::Arrival];

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "tokens_rise_with_every_turn_across_clients", NEEDS, &tokens),
    behaviour(
        GROUP,
        "a_waiter_elsewhere_is_overtaken_no_more_than_by_one_tenure",
        ARRIVAL,
        &overtaken,
    ),
    behaviour(GROUP, "a_long_turn_is_the_last_of_its_tenure", ARRIVAL, &long),
    behaviour(GROUP, "local_waiters_are_served_in_order", NEEDS, &in_order),
    behaviour(GROUP, "a_dropped_waiter_passes_its_turn_on", NEEDS, &dropped),
    behaviour(GROUP, "the_last_waiter_that_leaves_leaves_the_queue", NEEDS, &left),
    behaviour(GROUP, "a_frozen_local_waiter_is_passed_over", NEEDS, &frozen),
    behaviour(GROUP, "a_limit_ends_one_turn_only", NEEDS, &limited),
    behaviour(GROUP, "a_close_tells_local_waiters", NEEDS, &closed),
    behaviour(GROUP, "a_try_meets_a_tenure_as_busy", NEEDS, &tries),
    behaviour(GROUP, "a_wait_limit_in_a_local_queue_ends_in_time", NEEDS, &limits),
    behaviour(GROUP, "what_cannot_have_hand_offs_is_refused", NEEDS, &refused),
    behaviour(GROUP, "owners_and_several_locks_can_have_hand_offs", NEEDS, &combined),
    behaviour(GROUP, "a_thousand_random_drops_leave_nothing", NEEDS, &random_drops),
];

pub(super) const MOST: u32 = 8;

pub(super) fn lock(locks: &Locks, name: &str) -> Lock {
    locks.lock(name).local_handoffs(MOST)
}

pub(super) async fn acquire(context: &Context, locks: &Locks, name: &str) -> Guard {
    let acquired = context.soon("a turn", lock(locks, name).acquire()).await;
    acquired.expect("acquired")
}

/// Awaits that the queue of this process has one more waiter, which no store can be asked about: it has
/// run until it waits.
pub(super) async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// Turns exclude each other, and the claims of a client without hand-offs.
async fn tokens(context: Arc<Context>) {
    let name = context.name("lock");
    let (seen, inside) =
        (Arc::new(std::sync::Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for client in 0..3 {
        let locks = context.client().await;
        for _ in 0..4 {
            let (seen, inside) = (seen.clone(), inside.clone());
            let wanted = if client == 0 { locks.lock(&name) } else { lock(&locks, &name) };
            tasks.spawn(async move {
                for _ in 0..10 {
                    let guard = wanted.acquire().await.expect("acquired");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    seen.lock().expect("no panic").push(guard.fencing_token());
                    tokio::task::yield_now().await;
                    assert!(guard.is_held());
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.expect("released");
                }
            });
        }
    }
    context.within(context.patience() * 4, "every task had its turns", tasks.join_all()).await;
    let seen = seen.lock().expect("no panic");
    assert_eq!(seen.len(), 120);
    let rising = seen.windows(2).all(|pair| pair[0] < pair[1]);
    context.assert_final(rising, || format!("tokens that do not rise: {seen:?}"));
}

async fn overtaken(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let first = acquire(&context, &one, &name).await;
    let turns = Arc::new(AtomicUsize::new(0));
    let mut waiters = JoinSet::new();
    for _ in 0..3 * MOST {
        let (lock, turns) = (lock(&one, &name), turns.clone());
        waiters.spawn(async move {
            let guard = lock.acquire().await.expect("acquired");
            turns.fetch_add(1, Ordering::SeqCst);
            guard.release().await.expect("released");
        });
    }
    let other = work::spawn_waiter(&two, &name, How::Exclusive);
    context.until_queued(&two, &name, 1).await;
    settle().await;
    context.release(first).await;
    let other = context.until_granted("the other client's waiter", other).await;
    let before = turns.load(Ordering::SeqCst);
    assert!(before < MOST as usize, "{before} turns after the first one, of at most {MOST}");
    context.release(other).await;
    context.soon("all have had their turns", waiters.join_all()).await;
}

async fn long(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let first = acquire(&context, &one, &name).await;
    let local = spawn_waiter(lock(&one, &name));
    settle().await;
    let other = work::spawn_waiter(&two, &name, How::Exclusive);
    context.until_queued(&two, &name, 1).await;
    context.sleep_until(&one, one.now() + Duration::from_millis(50)).await;
    context.release(first).await;
    let other = context.until_granted("the other client's waiter comes first", other).await;
    assert!(!local.is_finished());
    context.release(other).await;
    let local = context.until_granted("the local waiter", local).await;
    context.release(local).await;
}

async fn in_order(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let first = acquire(&context, &locks, &name).await;
    let order = std::sync::Mutex::new(Vec::new());
    let mut waiters = Vec::new();
    for index in 0..20 {
        let (lock, order) = (lock(&locks, &name), &order);
        let mut waiter = Box::pin(async move {
            let guard = lock.acquire().await.expect("acquired");
            order.lock().expect("no panic").push(index);
            guard.release().await.expect("released");
        });
        // From here on it has its place.
        assert!(futures_util::poll!(&mut waiter).is_pending());
        waiters.push(waiter);
    }
    context.release(first).await;
    context.soon("all have had their turns", futures_util::future::join_all(waiters)).await;
    let order = order.lock().expect("no panic");
    assert!(order.is_sorted(), "{order:?}");
}

async fn dropped(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let first = acquire(&context, &locks, &name).await;
    // It is offered the turn, and dropped without being polled again.
    let next = lock(&locks, &name);
    let mut offered = Box::pin(next.acquire());
    assert!(futures_util::poll!(&mut offered).is_pending());
    let last = spawn_waiter(lock(&locks, &name));
    settle().await;
    context.release(first).await;
    drop(offered);
    let last = context.until_granted("the next one has the turn", last).await;
    context.release(last).await;
}

async fn left(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let holder = context.acquire(&two, &name).await;
    let waiters = [(); 3].map(|()| spawn_waiter(lock(&one, &name)));
    context.until_queued(&two, &name, 1).await;
    for waiter in &waiters {
        waiter.abort();
    }
    context.until_queued(&two, &name, 0).await;
    assert!(holder.is_held());
    context.release(holder).await;
}

async fn frozen(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let first = acquire(&context, &locks, &name).await;
    let next = lock(&locks, &name);
    let mut frozen = Box::pin(next.acquire());
    assert!(futures_util::poll!(&mut frozen).is_pending());
    let last = spawn_waiter(lock(&locks, &name));
    settle().await;
    context.release(first).await;
    let last = context.until_granted("the one after it is granted", last).await;
    context.release(last).await;
    let thawed = context.soon("the frozen one is granted after its thaw", frozen).await;
    context.release(thawed.expect("acquired")).await;
}

async fn limited(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let limit = Duration::from_millis(100);
    let first = lock(&locks, &name).hold_at_most(limit);
    let first = context.soon("a turn", first.acquire()).await.expect("acquired");
    let waiter = spawn_waiter(lock(&locks, &name));
    assert_eq!(work::until_lost(&context, &first).await, LostReason::HoldLimit);
    let token = first.fencing_token();
    std::mem::forget(first);
    let waiter = context.until_granted("the waiter is granted", waiter).await;
    assert!(waiter.fencing_token() > token);
    context.release(waiter).await;
}

async fn closed(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let guard = acquire(&context, &locks, &name).await;
    let waiters = [(); 3].map(|()| spawn_waiter(lock(&locks, &name)));
    settle().await;
    context.soon("the client closes", locks.close()).await.expect("closed");
    for waiter in waiters {
        let ended = context.soon("a waiter is told", waiter).await.expect("no panic");
        work::assert_kind(&ended.expect_err("closed"), ErrorKind::Closed);
    }
    assert_eq!(work::until_lost(&context, &guard).await, LostReason::Closed);
}

async fn tries(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    let guard = acquire(&context, &one, &name).await;
    for locks in [&one, &two] {
        let tried = context.soon("a try answers", lock(locks, &name).try_acquire()).await;
        assert!(tried.expect("no error").is_none());
    }
    context.release(guard).await;
    for locks in [&one, &two] {
        let tried = context.soon("a try answers", lock(locks, &name).try_acquire()).await;
        context.release(tried.expect("no error").expect("it is free")).await;
    }
}

async fn limits(context: Arc<Context>) {
    let (name, one, two) = context.lock_of_two().await;
    for holder in [&one, &two] {
        let guard = acquire(&context, holder, &name).await;
        let limited = lock(&one, &name).wait_at_most(SHORT_WAIT);
        let error = context.soon("an answer", limited.acquire()).await.expect_err("it is held");
        work::assert_kind(&error, ErrorKind::WaitTimedOut);
        context.until_queued(&two, &name, 0).await;
        context.release(guard).await;
    }
}

async fn refused(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let mut wrong = vec![
        locks.lock(&name).local_handoffs(MOST).fixed_lease(Duration::from_secs(1)),
        locks.lock(&name).local_handoffs(0),
        locks.lock(&name).local_handoffs(1_025),
    ];
    if context.profile().modes.shared {
        wrong.push(locks.rw_lock(&name).write().local_handoffs(MOST));
    }
    if context.profile().modes.permits {
        wrong.push(locks.semaphore(&name, 2).local_handoffs(MOST));
    }
    for lock in wrong {
        let error = context.soon("an answer", lock.acquire()).await.expect_err("refused");
        work::assert_kind(&error, ErrorKind::InvalidArgument);
    }
    let most = locks.lock(&name).local_handoffs(1_024);
    context.release(context.soon("a turn", most.acquire()).await.expect("acquired")).await;
}

async fn combined(context: Arc<Context>) {
    let names = ["one", "two"].map(|name| context.name(name));
    let (locks, owner) = (context.client().await, Owner::new());
    let outer = lock(&locks, &names[0]).owned_by(&owner);
    let outer = context.soon("a turn", outer.acquire()).await.expect("acquired");
    let waiter = spawn_waiter(lock(&locks, &names[0]));
    let both = all(names.iter().map(|name| lock(&locks, name).owned_by(&owner)));
    let guards = context.soon("entered again", both.acquire()).await.expect("acquired");
    assert_eq!(guards[0].fencing_token(), outer.fencing_token());
    // A child that inherits it would hold a lock that is handed on.
    #[cfg(unix)]
    assert!(outer.keep_alive().is_none() && guards[1].keep_alive().is_none());
    context.release(outer).await;
    assert!(guards.is_held() && !waiter.is_finished());
    context.soon("released", guards.release()).await.expect("released");
    let waiter = context.until_granted("the waiter has its turn", waiter).await;
    context.release(waiter).await;
}

/// Some after so many polls, and some after a time. In small batches: often all waiters of a client
/// leave, and with them its place in the store's queue.
async fn random_drops(context: Arc<Context>) {
    const BATCHES: usize = 100;
    const EACH: usize = 10;
    const LONGEST: u64 = 2_000;
    let name = context.name("lock");
    let clients = [context.client().await, context.client().await];
    let mut random = context.random();
    for batch in 1..=BATCHES {
        let mut tasks = JoinSet::new();
        for locks in clients.iter().cycle().take(EACH) {
            let (lock, polls) = (lock(locks, &name), random.random_range(0..6));
            let [hold, limit] = [(); 2].map(|()| random.random_range(0..LONGEST));
            tasks.spawn(async move {
                let acquiring = async move {
                    let guard = lock.acquire().await.expect("acquired");
                    sleep(Duration::from_micros(hold)).await;
                    guard.release().await.expect("released");
                };
                let acquiring = DroppedAfter::polls(polls, acquiring);
                let _ = timeout(Duration::from_micros(limit), acquiring).await;
            });
        }
        let what = format!("all of batch {batch} are dropped or done");
        context.soon(&what, tasks.join_all()).await;
        context.until_free(&clients[1], &name).await;
    }
    let guard = acquire(&context, &clients[0], &name).await;
    context.release(guard).await;
}
